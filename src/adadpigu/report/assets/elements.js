"use strict";
// Elements made from text alone: what a stranger wrote becomes textContent, never markup.

/** An element with properties (class, attributes, listeners as functions) and children: nodes, text, or lists of them. */
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (key === "class") made.className = value;
    else if (key === "key") made.dataset.key = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  for (const child of children.flat()) {  // one at a time: a call has room for some ten thousand arguments
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

const byId = (id) => document.getElementById(id);

/** A number with so many digits, or a dash where there is none. */
function digits(value, most = 4) {
  if (value === null || value === undefined) return "—";
  return worded(Number(value.toPrecision(most)));
}

const worded = (short) => (short !== 0 && Math.abs(short) < 1e-3 ? short.toExponential().replace("e-", "e−") : String(short));

const percent = (value) => (value === null || value === undefined ? "—" : `${(100 * value).toFixed(2)} %`);
const whole = (value) => (value === null || value === undefined ? "—" : value.toLocaleString("en"));

/** ε or δ with four digits, never below what was spent. */
function roundedUp(value) {
  if (value === null || value === undefined) return "—";
  if (value <= 0) return "0";
  const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
  return worded(Number((Math.ceil(value / unit - 1e-6) * unit).toPrecision(4)));
}

/** A table whose first cells may be row headings; cells are text or nodes. */
function plainTable(caption, columns, rows, numeric = new Set()) {
  const kind = (at) => (numeric.has(at) ? "number" : "words");
  const head = columns.map((column, at) => el("th", { scope: "col", class: numeric.has(at) ? "number" : "" }, column));
  const body = rows.map((row) => el("tr", {}, row.map((cell, at) => el("td", { class: kind(at) }, cell))));
  return el(
    "div",
    { class: "scroll low", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", {}, el("caption", {}, el("span", {}, caption)), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)),
  );
}

/** Which parts that fold are open, by their keys: they stay so when new data come. */
const unfolded = new Set();

/** A part that is made when it is first opened. */
function folded(key, title, make) {
  const made = el("details", {}, el("summary", { key: `fold ${key}` }, title));
  const fill = () => {
    if (made.open && made.childElementCount === 1) made.append(make());
  };
  made.addEventListener("toggle", () => {
    if (made.open) unfolded.add(key);
    else unfolded.delete(key);
    fill();
  });
  made.open = unfolded.has(key);
  fill();
  return made;
}
