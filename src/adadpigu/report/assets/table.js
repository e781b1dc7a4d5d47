"use strict";
// The table of runs: sorted by any column, filtered by words, with a box that plots a run and a name that opens it.

const COLUMNS = [
  { key: "name", title: "Run", of: (run) => run.name },
  { key: "accuracy", title: "Accuracy", number: true, of: (run) => run.accuracy },
  { key: "epsilon", title: "ε", number: true, of: (run) => (run.private === false ? Infinity : run.epsilon) },
  { key: "method", title: "Method", of: (run) => run.method },
  { key: "dataset", title: "Data", of: (run) => run.dataset },
  { key: "delta", title: "δ", number: true, of: (run) => run.delta },
  { key: "sigma", title: "σ", number: true, of: (run) => run.noise_multiplier },
  { key: "steps", title: "Steps", number: true, of: (run) => run.steps },
  { key: "seconds", title: "Seconds", number: true, of: (run) => run.seconds },
  { key: "state", title: "State", of: (run) => run.state },
];

/** Short marks of what a reader must know beside the numbers. */
function badges(run) {
  const found = [];
  if (run.private === false) found.push(["NOT PRIVATE", true]);
  if (run.warnings.some((line) => line.startsWith("Diagnostics"))) found.push(["Diagnostics on", true]);
  for (const mark of run.marks) found.push([mark, true]);
  const refuted = run.audits.filter((audit) => !audit.passed).length;
  if (refuted) found.push(["audit: REFUTED", true]);
  else if (run.audits.length) found.push([`${run.audits.length} audit${run.audits.length > 1 ? "s" : ""}`, false]);
  const processes = run.ledger ? run.ledger.processes.length + run.ledger.more : 0;
  if (processes > 1) found.push([`resumed ${whole(processes - 1)}×`, false]);
  if (run.score !== "test") found.push([run.score, false]);
  return found;
}

function matches(run, words) {
  const text = [run.name, run.method, run.dataset, run.state, run.where, ...badges(run).map((mark) => mark[0])].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Rows in the order and selection that is asked for; what has no value stands last either way. */
function arranged(runs, sort, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const column = COLUMNS.find((each) => each.key === sort.key);
  const order = new Intl.Collator("en", { numeric: true });
  return runs
    .filter((run) => matches(run, words))
    .sort((one, two) => {
      const [a, b] = [column.of(one), column.of(two)];
      const missing = (a === null || a === undefined) - (b === null || b === undefined);
      if (missing || a === null || a === undefined) return missing;
      const by = column.number ? (a < b ? -1 : a > b ? 1 : 0) : order.compare(a, b);
      return sort.down ? -by : by;
    });
}

function headRow(sort, onSort) {
  return el(
    "tr", {},
    el("th", { scope: "col" }, "Plot"),
    ...COLUMNS.map((column) =>
      el(
        "th",
        {
          scope: "col", class: column.number ? "number" : "",
          "aria-sort": sort.key !== column.key ? "none" : sort.down ? "descending" : "ascending",
        },
        el("button", { type: "button", key: `sort ${column.key}`, click: () => onSort(column) }, column.title),
      ),
    ),
    el("th", { scope: "col" }, "Notes"),
  );
}

function bodyRow(run, { plotted, opened, onPlot, onOpen }) {
  const drawable = Boolean(run.curves.accuracy || run.curves.epsilon);
  const box = el("input", {
    type: "checkbox", key: `plot ${run.id}`, "aria-label": `Plot ${run.name}`, disabled: !drawable,
    change: (event) => onPlot(run, event.target.checked),
  });
  box.checked = plotted;
  const done = run.steps_done === null || run.steps_done === run.steps ? whole(run.steps) : `${whole(run.steps_done)} of ${whole(run.steps)}`;
  return el(
    "tr", { class: opened ? "open" : "" },
    el("td", {}, box),
    el("th", { scope: "row", class: "name" },
      el("button", { type: "button", key: `open ${run.id}`, title: run.where, click: () => onOpen(run) }, run.name)),
    el("td", { class: "number" }, percent(run.accuracy)),
    el("td", { class: run.private === false ? "number bad-text" : "number" }, run.epsilon_text),
    el("td", { class: "words" }, run.method),
    el("td", { class: "words" }, run.dataset),
    el("td", { class: "number" }, roundedUp(run.delta)),
    el("td", { class: "number" }, digits(run.noise_multiplier)),
    el("td", { class: "number" }, done),
    el("td", { class: "number" }, run.seconds === null ? "—" : run.seconds.toFixed(1)),
    el("td", {}, run.state),
    el("td", { class: "words" }, ...badges(run).map(([text, bad]) => el("span", { class: bad ? "badge bad" : "badge" }, text))),
  );
}
