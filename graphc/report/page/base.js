// What all parts of the page share: the data, what is selected, elements, and numbers as text.
// Names come from models and may hold anything: they become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const state = { all: null, R: null, which: "report", tab: "overview", overlay: "time", chosen: null,
  form: null };

/** A name with characters that cannot be seen, or that turn the order of others, made visible. */
const clean = (text) => String(text).replace(HIDDEN, "\ufffd");
/** The same for code, which has lines. */
const cleanCode = (text) => String(text).replace(HIDDEN, (c) => (c === "\n" || c === "\t" ? c : "\ufffd"));

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, clean(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child != null && child !== false) node.append(child instanceof Node ? child : clean(child));
  }
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const sum = (numbers) => numbers.reduce((a, b) => a + (b || 0), 0);

// ---------------------------------------------------------------- numbers

const digits = (value, n = 3) => String(Number(value.toPrecision(n)));
function seconds(value) {
  if (value == null) return "";
  if (value >= 1) return digits(value) + " s";
  return value >= 1e-3 ? digits(value * 1e3) + " ms" : digits(value * 1e6) + " µs";
}
function bytes(value) {
  if (value == null) return "";
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return digits(value / size) + " " + unit;
  }
  return value + " B";
}
function quantity(value) {
  if (value == null) return "";
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= size) return digits(value / size) + unit;
  }
  return digits(value);
}
const percent = (part) => (part == null ? "" : digits(100 * part) + "%");
const plain = (value) => (value == null ? "" : typeof value === "number" ? digits(value, 4) : clean(value));
/** A path by its end, or a text by its start, where there is no room for all of it. */
const short = (text, most) => cut(text, most, (letters) => "…" + letters.slice(1 - most).join(""));
const begin = (text, most) => cut(text, most, (letters) => letters.slice(0, most - 1).join("") + "…");
function cut(text, most, shorter) {
  const letters = [...clean(text)];
  return letters.length <= most ? letters.join("") : shorter(letters);
}
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- the data

/** What every tab asks of a report, found once: whether anything was measured (else times are the
 * least by the roofline), and the seconds of all steps. */
const sums = new WeakMap();
function summed(R) {
  if (!sums.has(R)) {
    const isMeasured = R.steps.some((step) => step.seconds != null);
    sums.set(R, { isMeasured, total: sum(R.steps.map((step) => (isMeasured ? step.seconds : step.least))) });
  }
  return sums.get(R);
}
const measured = (R) => summed(R).isMeasured;
const total = (R) => summed(R).total;
const timeOf = (R, step) => (measured(R) ? step.seconds : step.least);
/** What a step is weighed by: its time or, where no time is known, its operations. */
const weightOf = (R, step) => (total(R) ? timeOf(R, step) || 0 : step.flops);
const named = (thing) => thing.name || thing.loc?.[0] || thing.result || thing.operator;
const stepTitle = (step) => (step.name || "(" + step.kind + ")");
const layerNames = (R, numbers, loc) => numbers.length
  ? R.layers[numbers[0]].name + (numbers.length > 1 ? ` +${numbers.length - 1}` : "")
  : (loc && loc[0]) || "";

/** What an overlay shows of steps: a number, or a text for what is no quantity. */
const OVERLAYS = {
  time: { title: "time", of: (R, steps) => sum(steps.map((s) => timeOf(R, s))), text: seconds },
  factor: { title: "times the least (roofline)", measured: true, text: (v) => "×" + digits(v, 2),
    of: (R, steps) => ratio(sum(steps.map((s) => s.seconds)), sum(steps.map((s) => s.least))) },
  bound: { title: "bound by", of: (R, steps) => longest(R, steps)?.bound || "", text: (v) => v },
  flops: { title: "operations", of: (R, steps) => sum(steps.map((s) => s.flops)), text: quantity },
  bytes: { title: "bytes moved", of: (R, steps) => sum(steps.map((s) => s.bytes)), text: bytes },
  memory: { title: "live memory", text: bytes,
    of: (R, steps) => Math.max(0, ...steps.map((s) => R.arenas[s.program]?.live[s.call] || 0)) },
  accuracy: { title: "difference from the reference", layers: true, text: (v) => digits(v, 2) },
  none: { title: "nothing", of: () => null, text: () => "" },
};
const ratio = (a, b) => (b ? a / b : 0);
const longest = (R, steps) => [...steps].sort((a, b) => (timeOf(R, b) || 0) - (timeOf(R, a) || 0))[0];

/** The value of an overlay for some layers and steps. */
function overlaid(R, name, layers, steps) {
  const overlay = OVERLAYS[name];
  if (overlay.layers) return Math.max(0, ...layers.map((n) => R.layers[n].accuracy?.relative || 0));
  return overlay.of(R, [...new Set(steps)].map((n) => R.steps[n]));
}
const usable = (R) => Object.entries(OVERLAYS).filter(([name, overlay]) =>
  (!["time", "bound"].includes(name) || total(R)) && (name !== "accuracy" || R.layers.some((x) => x.accuracy)) && (!overlay.measured || measured(R)));

// ---------------------------------------------------------------- what is selected

const listeners = [];
const onSelect = (listener) => listeners.push(listener);

/** Selects a layer, a group, or a step; everything that shows any of them follows. */
function select(kind, number, more = {}) {
  state.chosen = kind == null ? null : { kind, number, ...more };
  for (const listener of listeners) listener(state.chosen);
}

/** The layers, groups and steps that belong to what is selected. */
function related(R, chosen) {
  if (!chosen) return { layers: new Set(), groups: new Set(), steps: new Set() };
  const own = { layers: [], groups: [], steps: [] };
  if (chosen.kind === "layer") {
    const layer = R.layers[chosen.number];
    Object.assign(own, { layers: [chosen.number], groups: layer.groups, steps: layer.steps });
  } else if (chosen.kind === "group") {
    const group = R.groups[chosen.number];
    Object.assign(own, { layers: group.layers, groups: [chosen.number], steps: group.steps });
  } else {
    const groups = R.groups.map((g, n) => (g.steps.includes(chosen.number) ? n : -1)).filter((n) => n >= 0);
    Object.assign(own, { layers: R.steps[chosen.number].layers, groups, steps: [chosen.number] });
  }
  return { layers: new Set(own.layers), groups: new Set(own.groups), steps: new Set(own.steps) };
}
