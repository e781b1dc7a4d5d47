"use strict";
// Charts over steps. uPlot draws; here are the lines it is given, the values at the step that is looked at, and a table.

const DASHES = [[], [8, 4], [2, 3]];
const DASH_NAMES = ["", "dashed", "dotted"];
const COLOURS = 8;
const MOST_CELLS = 40000;
const WHOLE_STEPS = Array.from({ length: 30 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3));
const charts = new Map();

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** Colour and dashes of a line: its own place among the runs that are drawn, so that they are the same on every chart. */
const placeOf = (line, at) => (line.place === undefined ? at : line.place);
const dashOf = (place) => Math.floor(place / COLOURS) % DASHES.length;

/** Steps come as differences. */
function unpacked(line) {
  let step = 0;
  return { x: line.x.map((more) => (step += more)), y: line.y, recorded: line.n };
}

/** What was left out of long lines, in words; empty where nothing was. */
function thinning(lines) {
  const thinned = lines.filter((line) => line.recorded > line.x.length);
  if (!thinned.length) return "";
  const drawn = thinned.reduce((sum, line) => sum + line.x.length, 0);
  const recorded = thinned.reduce((sum, line) => sum + line.recorded, 0);
  return ` Long lines are thinned: ${whole(drawn)} of ${whole(recorded)} points are drawn, the first, the last and the lowest and highest of each stretch.`;
}

/** The place nearest to `at` where a line has a value; lines of different runs have values at different steps. */
function nearest(values, at) {
  for (let away = 0; away < values.length; away++) {
    if (values[at - away] !== null && values[at - away] !== undefined) return at - away;
    if (values[at + away] !== null && values[at + away] !== undefined) return at + away;
  }
  return null;
}

/**
 * A figure: caption, plot, a slider for the step, the values there, and a table of all that is drawn.
 * spec: {key, title, note, lines: [{label, x, y, recorded, place, points: "dot" or "ring" instead of a line}],
 *        format, tick, range, xLabel, xRange, xValues, stepped, short}
 */
function chart(spec) {
  const data = uPlot.join(spec.lines.map((line) => [line.x, line.y]));
  const note = (spec.note || "") + thinning(spec.lines);
  const plot = el("div", { class: spec.short ? "plot short" : "plot", "aria-hidden": "true" });
  const xLabel = spec.xLabel || "step";
  const output = el("output", {}, "");
  const slider = el("input", {
    type: "range", min: 0, max: data[0].length - 1, value: data[0].length - 1, key: `slider ${spec.key}`,
    "aria-label": `${xLabel} whose values are shown: ${spec.title}`,
  });
  const values = spec.lines.map(() => el("span", { class: "value" }));
  const list = el("ul", { class: "values" }, spec.lines.map((line, at) => legend(line, at, values[at])));
  const made = el(
    "figure", { "data-chart": spec.key, "aria-label": spec.title },
    el("figcaption", {}, spec.title, note ? el("span", { class: "soft" }, note) : null),
    plot,
    el("div", { class: "step" }, slider, output),
    list,
    folded(`table ${spec.key}`, "The same as a table", () => tableOf(spec, data)),
  );

  const show = (at) => {
    const words = [];
    output.textContent = `${xLabel} ${whole(data[0][at])}`;
    spec.lines.forEach((line, number) => {
      const text = valueAt(spec, line, data, number + 1, at);
      values[number].textContent = text;
      words.push(`${line.label} ${text}`);
    });
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", `${output.textContent}: ${words.slice(0, 12).join(", ")}`);
  };
  charts.set(spec.key, { spec, data, plot, slider, show, drawn: null });
  slider.addEventListener("input", () => pointTo(spec.key, Number(slider.value)));
  show(data[0].length - 1);
  return made;
}

/** A line's value at a step; where it has none there, the nearest with its step. A point has no neighbours. */
function valueAt(spec, line, data, number, at) {
  const found = line.points ? at : nearest(data[number], at);
  const value = found === null ? null : data[number][found];
  if (value === null || value === undefined) return "—";
  return found === at ? spec.format(value) : `${spec.format(value)} (${spec.xLabel || "step"} ${whole(data[0][found])})`;
}

function legend(line, at, value) {
  const place = placeOf(line, at);
  const colour = `var(--c${place % COLOURS})`;
  const swatch = el("span", { class: `swatch ${line.points || DASH_NAMES[dashOf(place)]}`, "aria-hidden": "true" });
  swatch.style.borderColor = colour;
  if (line.points === "dot") swatch.style.background = colour;
  return el("li", {}, swatch, el("span", { class: "label", title: line.label }, line.label), value);
}

function pointTo(key, at) {
  const { data, drawn, show } = charts.get(key);
  show(at);
  if (drawn) drawn.setCursor({ left: drawn.valToPos(data[0][at], "x"), top: drawn.over.clientHeight / 2 }, false);
}

function tableOf(spec, data) {
  const columns = [spec.xLabel || "step", ...spec.lines.map((line) => line.label)];
  const most = Math.max(20, Math.floor(MOST_CELLS / columns.length));
  const rows = [];
  for (let at = 0; at < Math.min(most, data[0].length); at++) {
    const cells = spec.lines.map((_, number) => data[number + 1][at]);
    rows.push([whole(data[0][at]), ...cells.map((value) => (value === null || value === undefined ? "" : spec.format(value)))]);
  }
  const cut = data[0].length > most ? ` (the first ${whole(most)} of ${whole(data[0].length)} rows: plot fewer runs to see all)` : "";
  return plainTable(spec.title + cut, columns, rows, new Set(columns.keys()));
}

function optionsOf(key, width, height) {
  const { spec, show } = charts.get(key);
  const axis = (more) => ({
    stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 },
    font: "12px system-ui, sans-serif", ...more,
  });
  return {
    width, height,
    legend: { show: false },
    padding: [10, 26, 0, 0],
    scales: { x: { time: false, range: spec.xRange || ((self, low, high) => [low <= self.data[0][0] ? 0 : low, high]) }, y: { range: spec.range || undefined } },
    axes: [
      axis({ size: 36, incrs: WHOLE_STEPS, values: spec.xValues || ((_, ticks) => ticks.map(whole)) }),
      axis({ size: 62, values: (_, ticks) => ticks.map(spec.tick || spec.format) }),
    ],
    cursor: {
      y: false,
      drag: { x: true, y: false },
      dataIdx: (self, number, at) => (number === 0 ? at : nearest(self.data[number], at) ?? at),
    },
    hooks: { setCursor: [(self) => self.cursor.idx !== null && self.cursor.idx !== undefined && show(self.cursor.idx)] },
    series: [{}, ...spec.lines.map((line, at) => seriesOf(line, at, spec))],
  };
}

function seriesOf(line, at, spec) {
  const place = placeOf(line, at);
  const stroke = css(`--c${place % COLOURS}`);
  if (line.points === "ring") return { stroke, paths: () => null, points: { show: true, size: 18, width: 3, fill: "transparent" } };
  if (line.points) return { stroke, paths: () => null, points: { show: true, size: 10, fill: stroke } };
  return {
    stroke, width: 2, dash: DASHES[dashOf(place)],
    points: { show: line.x.length === 1, size: 7, fill: stroke },
    paths: spec.stepped && line.x.length > 1 ? uPlot.paths.stepped({ align: 1 }) : undefined,
  };
}

/** Draws what is on the page and has a width; a plot that has left it is forgotten. */
function drawCharts() {
  for (const [key, entry] of charts) {
    if (!entry.plot.isConnected) {
      entry.drawn?.destroy();
      charts.delete(key);
    } else if (entry.plot.clientWidth) {
      entry.drawn?.destroy();
      entry.drawn = new uPlot(optionsOf(key, entry.plot.clientWidth, entry.plot.clientHeight), entry.data, entry.plot);
    }
  }
}

let waiting = 0;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    for (const { drawn, plot } of charts.values()) {
      if (drawn && plot.clientWidth) drawn.setSize({ width: plot.clientWidth, height: plot.clientHeight });
    }
  }, 100);
});
