"use strict";
// What is looked at (order, filter, plotted runs, the opened one, theme), and the page drawn from it and the data.

const FIRST_PLOTTED = 6;
const MOST_PLOTTED = 50;
const EVERY = 2000;
const THEMES = ["system", "light", "dark"];

const looked = { data: null, sort: { key: "name", down: false }, filter: "", plotted: new Set(), opened: null, theme: "system" };

function take(data) {
  const first = !looked.data?.runs.length;  // also when the first run begins while the page is open
  looked.data = data;
  if (first) {
    const drawable = data.runs.filter((run) => run.curves.accuracy || run.curves.epsilon);
    drawable.slice(0, FIRST_PLOTTED).forEach((run) => looked.plotted.add(run.id));
  }
  if (!data.runs.some((run) => run.id === looked.opened)) looked.opened = data.runs.length ? data.runs[0].id : null;
}

/** Draws anew, and gives the focus back to the element that had it. */
function keepingFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (key && document.activeElement?.dataset?.key !== key) {
    document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  }
}

function drawTable() {
  const shown = arranged(looked.data.runs, looked.sort, looked.filter);
  const onSort = (column) => {
    const same = looked.sort.key === column.key;
    looked.sort = { key: column.key, down: same ? !looked.sort.down : Boolean(column.number) };
    keepingFocus(drawTable);
  };
  const onPlot = (run, wanted) => {
    if (wanted) looked.plotted.add(run.id);
    else looked.plotted.delete(run.id);
    drawCompared();
    drawCharts();
  };
  const onOpen = (run) => openRun(run.id);
  byId("table").tHead.replaceChildren(headRow(looked.sort, onSort));
  byId("table").tBodies[0].replaceChildren(
    ...shown.map((run) => bodyRow(run, { plotted: looked.plotted.has(run.id), opened: run.id === looked.opened, onPlot, onOpen })),
  );
  byId("count").textContent = !looked.data.runs.length && document.documentElement.dataset.mode === "live" ? "No run yet: the page fills by itself when one begins." : `${whole(shown.length)} of ${whole(looked.data.runs.length)} shown`;
  return shown;
}

function drawCompared() {
  const plotted = looked.data.runs.filter((run) => looked.plotted.has(run.id));
  const drawn = plotted.slice(0, MOST_PLOTTED);
  byId("compare-note").textContent = plotted.length === 0
    ? "No run is ticked in the table."
    : plotted.length > drawn.length ? `${plotted.length} runs are ticked; the first ${drawn.length} are drawn.` : "Drag across a chart to look closer, double-click to see all again.";
  const specs = [
    ["accuracy", "Accuracy", percent, (value) => `${Math.round(100 * value)} %`, (_, low, high) => [Math.max(0, low - 0.03), Math.min(1, high + 0.03)]],
    ["epsilon", "ε spent", roundedUp, (value) => digits(value), (_, low, high) => [0, high * 1.08 || 1]],
  ];
  const made = [];
  for (const [key, title, format, tick, range] of specs) {
    const lines = drawn
      .map((run, place) => (run.curves[key] ? { label: run.name, place, ...unpacked(run.curves[key]) } : null))
      .filter(Boolean);
    const note = key === "epsilon" ? "As each run noted it while it trained; what counts is the ε in the table." : "";
    if (lines.length) made.push(chart({ key, title, note, lines, format, tick, range }));
  }
  byId("compare-charts").replaceChildren(...made);
}

function drawDetails() {
  const run = looked.data.runs.find((each) => each.id === looked.opened);
  byId("details").hidden = !run;
  if (!run) return;
  byId("details-title").textContent = run.name;
  const choose = byId("choose");
  choose.replaceChildren(...looked.data.runs.map((each) => el("option", { value: each.id }, each.name)));
  choose.value = run.id;
  byId("details-body").replaceChildren(...detailsOf(run));
}

/** What a reader must know before any number: drawn first, so that nothing that goes wrong later can hide it. */
function drawCautions() {
  const { data } = looked;
  byId("written").textContent = document.documentElement.dataset.mode === "live"
    ? `Followed while it trains; last news ${data.written}. adadpigu ${data.version}`
    : `Written ${data.written} by adadpigu ${data.version}`;
  const unsafe = data.runs.filter((run) => run.private === false || badges(run).some(([text, bad]) => bad && text !== "NOT PRIVATE"));
  const names = unsafe.slice(0, 12).map((run) => `${run.name}: ${badges(run).filter((mark) => mark[1]).map((mark) => mark[0]).join(", ")}`);
  if (unsafe.length > 12) names.push(`and ${unsafe.length - 12} more: their rows say so`);
  byId("cautions").replaceChildren(
    ...[
      cautionsOf(names, names.length ? "Not covered by what the numbers say:" : ""),
      cautionsOf(data.left_out, data.left_out.length ? "Not shown, because it is missing or cannot be read:" : ""),
    ].filter(Boolean),
  );
}

function drawRest() {
  const { data } = looked;
  byId("audits").hidden = !data.audits.length;
  if (data.audits.length) byId("audits-body").replaceChildren(auditsOf(data.audits, "other audits"));
  byId("others").hidden = !data.tables.length;
  byId("others-body").replaceChildren(...data.tables.map((table) => folded(`other ${table.name}`, `${table.name} (${whole(table.rows.length)} rows)`, () => otherTable(table))));
}

function otherTable(table) {
  const text = (value) => (typeof value === "number" ? digits(value, 6) : value === null ? "—" : String(value));
  return plainTable(table.name, table.columns, table.rows.map((row) => row.map(text)));
}

function openRun(id) {
  looked.opened = id;
  drawTable();
  drawDetails();
  drawCharts();
  byId("details-title").focus({ preventScroll: true });
  byId("details").scrollIntoView({ block: "start" });
}

function setTheme(theme) {
  looked.theme = theme;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  drawCharts();
}

function drawAll() {
  keepingFocus(() => {
    drawCautions();
    drawTable();
    drawCompared();
    drawDetails();
    drawRest();
    drawCharts();
  });
}

/** Asks the page's own server what is new, for as long as it answers. */
async function follow() {
  let tag = "";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, EVERY));
    try {
      const answer = await fetch("data.json", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
      if (answer.status === 200) {
        const fresh = await answer.json();
        if (tag !== answer.headers.get("ETag")) {
          tag = answer.headers.get("ETag");
          take(fresh);
          drawAll();
        }
      }
      if (answer.status >= 500) byId("written").textContent = (await answer.text()).trim();
      document.documentElement.dataset.followed = "yes";
    } catch {
      byId("written").textContent = "The server has ended: what is shown is the last that it told.";
      return;
    }
  }
}

function begin() {
  take(JSON.parse(byId("data").textContent));
  byId("filter").addEventListener("input", (event) => {
    looked.filter = event.target.value;
    drawTable();
  });
  byId("plot-shown").addEventListener("click", () => {
    arranged(looked.data.runs, looked.sort, looked.filter)
      .filter((run) => run.curves.accuracy || run.curves.epsilon)
      .forEach((run) => looked.plotted.add(run.id));
    drawAll();
  });
  byId("plot-none").addEventListener("click", () => {
    looked.plotted.clear();
    drawAll();
  });
  byId("choose").addEventListener("change", (event) => openRun(event.target.value));
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(looked.theme) + 1) % THEMES.length]));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
  setTheme("system");
  drawAll();
  document.documentElement.dataset.drawn = "yes";
  performance.mark("drawn");
  if (document.documentElement.dataset.mode === "live") follow();
}

begin();
