"use strict";
// The details of one run: cautions, statement, timeline, layers, audits, configuration and how to run it again.

function cautionsOf(lines, title) {
  if (!lines.length) return null;
  const words = lines.length === 1 && !title ? lines[0] : el("ul", {}, lines.map((line) => el("li", {}, line)));
  return el("div", { class: "caution", role: "note" }, title || null, words);
}

function factsOf(run) {
  const facts = [
    ["folder or file", run.where],
    [`accuracy (${run.score} records)`, percent(run.accuracy)],
    [run.private === null ? "ε" : "ε claimed (PLD)", run.private === false ? "∞: NOT PRIVATE" : run.epsilon_text],
    ["δ", roundedUp(run.delta)],
    ["noise multiplier σ", digits(run.noise_multiplier)],
    ["steps", run.steps_done === null ? whole(run.steps) : `${whole(run.steps_done)} of ${whole(run.steps)}`],
    ["seed of what is public", run.seed === null ? "—" : String(run.seed)],
    ...Object.entries(run.facts),
  ];
  return el("dl", {}, facts.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text))));
}

function whyUnstated(run) {
  if (run.state === "result") return "A row of results holds no statement; the run that made it had one.";
  if (run.marks.includes("claim not trusted") || run.marks.includes("no claim")) return "No statement can be shown: what it would be written from is missing or cannot be trusted.";
  return "Nothing is claimed yet: a statement is written when the run ends.";
}

function statementOf(run) {
  if (run.statement === null) {
    return el("p", { class: "soft" }, whyUnstated(run));
  }
  return el(
    "div", { class: "statement" },
    run.statement.flatMap(([words, ...entries]) => [
      el("p", {}, words),
      entries.length ? el("ul", { class: /^\d/.test(entries[0]) ? "plain" : "" }, entries.map((entry) => el("li", {}, entry))) : null,
    ]),
  );
}

/** How many guesses are right without the model, and at most with it. */
function guessesOf(run) {
  const bar = (share, text, kind) => {
    const filled = el("span", { class: `bar ${kind}`, "aria-hidden": "true" });
    filled.style.width = `${Math.min(100, 100 * share)}%`;
    return el("span", { class: "barred" }, filled, el("span", {}, text));
  };
  const rows = run.guesses.map(([words, without, within, before, after]) => [words, bar(without, before, "before"), bar(within, after, "after")]);
  return el(
    "figure", { "data-figure": "guesses", "aria-label": "Guessing who was used" },
    el("figcaption", {}, "Guessing who was used", el("span", { class: "soft" }, "*by somebody who wrongly names 1 in 1,000 of those that were not used.")),
    plainTable("Guessing who was used: how many are right", ["of 100 …", "right without the model", "right with it, at most"], rows),
  );
}

/** The run's step over all steps that were charged: where a process crashed, the line falls back to a checkpoint. */
function timelineOf(run) {
  const { processes, more, planned_steps: planned, spare_steps: spare, steps: charged, damage, torn, records, digest } = run.ledger;
  const count = processes.length + more;
  let before = 0;
  const lines = processes.map((process, at) => {
    const line = { x: [before, before + process.steps], y: [process.first_step, process.first_step + process.steps] };
    before += process.steps;
    if (!process.steps) return null;
    return { ...line, recorded: 2, label: `process ${at + 1}: ${process.short}` };
  });
  const drawn = lines.filter(Boolean);
  const spareWords = spare ? `, and ${whole(spare)} spare to repeat lost ones` : "";
  const words = `${whole(charged)} steps were charged, ${whole(planned)} were planned${spareWords}. ` +
    (count > 1 ? `${whole(count)} processes worked on the run${more ? ` (the first ${processes.length} are shown)` : ""}; where the line falls back, steps were charged, lost and repeated.` : "One process worked on the run.");
  const rows = processes.map((process, at) => [
    String(at + 1), whole(process.first_step), whole(process.steps),
    process.bad ? el("span", { class: "bad-text" }, process.end) : process.end,
    process.began || "—", process.ended || "—",
    process.secret ? process.randomness : el("span", { class: "bad-text" }, `${process.randomness}: can be repeated`),
  ]);
  return el(
    "div", {},
    el("p", {}, words),
    el("p", { class: damage ? "bad-text" : "soft" },
      damage ? `The ledger is DAMAGED: ${damage}` : `The ledger is whole: ${whole(records)} records, digest ${digest}${torn ? "; a record that was never finished is counted as charged" : ""}.`),
    drawn.length > 1 ? chart({
      key: "ledger", title: "Steps of the run over steps charged", xLabel: "charged", lines: drawn, short: true,
      format: (value) => whole(Math.round(value)),
    }) : null,
    plainTable("Processes that worked on the run", ["No.", "began at step", "steps charged", "end", "began", "ended", "randomness"], rows, new Set([1, 2])),
  );
}

function layersOf(run) {
  const parts = [];
  const kinds = [
    ["mask", "Mask by layer: weights that may change", percent, (_, low, high) => [0, Math.max(1, high)]],
    ["alpha", "α by layer: mean of the restored gradient", (value) => digits(value), undefined],
    ["beta", "β by layer: its spread, by which gradients are standardised", (value) => digits(value), undefined],
  ];
  for (const [key, title, format, range] of kinds) {
    const layers = linesOf(run, key);
    if (!layers.length) continue;
    const lines = layers.map(([label, line]) => ({ label, ...unpacked(line) }));
    parts.push(chart({ key, title, lines, format, range, stepped: key === "mask", tick: key === "mask" ? (value) => `${Math.round(100 * value)} %` : undefined, note: stagesNote(run) }));
  }
  const unrecorded = run.curves.alpha || run.curves.beta
    ? null
    : el("p", { class: "soft" }, "α and β: none are recorded. The method does not standardise gradients, or holds both where they started.");
  return el("div", {}, el("div", { class: "charts" }, ...parts), unrecorded);
}

/** A line for each layer, and where there are several masks one of all layers together. */
function linesOf(run, key) {
  const layers = run.curves[key] || [];
  const { active } = run.curves;
  return key === "mask" && active && layers.length !== 1 ? [...layers, ["all layers", active]] : layers;
}

function stagesNote(run) {
  const { stages, more_stages: more } = run.curves;
  if (stages.length < 2) return "";
  return stages.map(([step, stage]) => `${stage} from step ${whole(step)}`).join(", ") + (more ? `, and ${whole(more)} more` : "") + " (as recorded).";
}

/** Claimed against shown: an audit above the claim has refuted it. */
function auditsOf(audits, key) {
  const shown = (value) => (value === null ? "∞" : digits(value));
  const rows = audits.map((audit, at) => [
    String(at + 1), audit.audit, audit.subject, audit.epsilon_claimed === null ? "∞" : roundedUp(audit.epsilon_claimed), shown(audit.epsilon_lower), shown(audit.epsilon_lower_certain),
    whole(audit.observations),
    el("span", { class: audit.passed ? "" : "bad-text" }, audit.verdict),
    el("span", {}, [...audit.findings, ...(audit.diagnostics_exposed ? ["OUTSIDE the guarantee: private records were looked at"] : [])].join("; ") || "—"),
  ]);
  const x = audits.map((_, at) => at + 1);
  const line = (label, of, points) => ({ label, x, y: audits.map(of), recorded: x.length, points });
  const assumed = [...new Set(audits.flatMap((audit) => audit.assumed))];
  const names = (at) => (audits[at - 1] ? audits[at - 1].audit : "");
  return el(
    "div", {},
    el("p", { class: "soft" }, "An audit can refute a claim, never prove one. Shown at confidence 1 − 1e-6 above the claim: refuted."),
    chart({
      key, title: "ε claimed against ε shown", xLabel: "audit", short: true, format: (value) => digits(value),
      note: `From left to right: ${audits.map((audit, at) => `${at + 1} ${audit.audit}`).slice(0, 30).join(", ")}.`,
      lines: [
        line("claimed", (audit) => audit.epsilon_claimed, "ring"),
        line("shown, at its confidence", (audit) => audit.epsilon_lower, "dot"),
        line("shown, at 1 − 1e-6", (audit) => audit.epsilon_lower_certain, "dot"),
      ],
      xRange: () => [0.5, audits.length + 0.5],
      xValues: (_, ticks) => ticks.map((tick) => (audits.length <= 6 ? names(tick) : String(tick))),
      range: (_, low, high) => [0, Math.max(1, high * 1.15)],
    }),
    plainTable("Audits", ["No.", "audit", "of", "ε claimed", "ε shown", "ε shown, 1 − 1e-6", "observations", "verdict", "findings"], rows, new Set([3, 4, 5, 6])),
    assumed.length ? folded(`assumed ${key}`, "What the audits assume", () => el("ul", {}, assumed.map((text) => el("li", {}, text)))) : null,
  );
}

function detailsOf(run) {
  const rerun = run.rerun.map(([command, words]) => el("li", {}, command ? el("pre", {}, command) : null, el("span", { class: "soft" }, words)));
  return [
    cautionsOf(run.warnings),
    cautionsOf(run.missing, run.missing.length ? "Not shown, because it is missing or cannot be read:" : ""),
    factsOf(run),
    el("h3", {}, "What it gives away"),
    statementOf(run),
    run.guesses ? guessesOf(run) : null,
    ...(run.ledger ? [el("h3", {}, "The ledger’s timeline"), timelineOf(run)] : []),
    ...(run.curves.mask || run.curves.active || run.curves.alpha || run.curves.beta ? [el("h3", {}, "Layer by layer"), layersOf(run)] : []),
    el("h3", {}, "Audits"),
    run.audits.length ? auditsOf(run.audits, "audits") : el("p", { class: "soft" }, "None is stored with it."),
    el("h3", {}, "Configuration, and how to run it again"),
    run.config ? folded("config", "config.toml", () => el("pre", {}, run.config)) : el("p", { class: "soft" }, "None is stored."),
    el("ul", { class: "commands" }, rerun),
  ].filter(Boolean);
}
