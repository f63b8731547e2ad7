// Two reports side by side: totals, and layers matched by name, else by the tensor they give.

function compareTab(A, B) {
  const names = [label(A, "A"), label(B, "B")];
  const rows = matched(A, B);
  const both = rows.filter((row) => row.a != null && row.b != null).length;
  return el("div", {},
    el("p", {}, `A is ${names[0]}; B is ${names[1]}. ${both} layers are in both, ${rows.filter((r) => r.b == null).length} in A alone, ${rows.filter((r) => r.a == null).length} in B alone.`),
    el("table", { class: "totals", "aria-label": "Totals" },
      el("thead", {}, el("tr", {}, ["", "A", "B", "B/A"].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, TOTALS.map(([title, of, text]) => totalRow(title, of(A), of(B), text)))),
    el("div", { class: "columns" }, [A, B].map((R, n) => el("section", {}, el("h2", {}, "AB"[n] + ": what limits it"), list(R.limits)))),
    el("h2", {}, "Layer by layer"),
    table(COLUMNS(A, B), rows, { tab: "compare", label: "Layers of both", sort: 2,
      row: (row) => (state.R === A ? (row.a == null ? [null, ""] : ["layer", row.a]) : (row.b == null ? [null, ""] : ["layer", row.b])) }));
}

const label = (R, letter) => `${R.about.model || letter} (${R.about.target}, graphc ${R.about.graphc || "?"})`;

const largest = (numbers) => Math.max(0, ...numbers);
const TOTALS = [
  ["a run", (R) => R.about.measured?.run, seconds],
  ["measured steps", (R) => (measured(R) ? total(R) : null), seconds],
  ["at least, by the roofline", (R) => sum(R.steps.map((s) => s.least)), seconds],
  ["operations", (R) => sum(R.steps.map((s) => s.flops)), quantity],
  ["bytes moved", (R) => sum(R.steps.map((s) => s.bytes)), bytes],
  ["arena", (R) => largest(R.arenas.map((a) => a.bytes)), bytes],
  ["constants", (R) => sum(R.arenas.map((a) => a.constants)), bytes],
  ["layers", (R) => R.layers.length, null],
  ["groups", (R) => R.groups.length, null],
  ["steps", (R) => R.steps.length, null],
];

/** A row of the totals; counts (without a `text`) are neither better nor worse. */
function totalRow(title, a, b, text) {
  const change = text && a && b ? b / a : null;
  text = text || plain;
  const kind = change == null || Math.abs(change - 1) < 0.02 ? "" : change < 1 ? "better" : "worse";
  return el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, a == null ? "" : text(a)), el("td", {}, b == null ? "" : text(b)),
    el("td", { class: kind }, change == null ? "" : "×" + digits(change)));
}

/** Rows {a, b} of layers: of equal operators, by name, by the tensor that they give, or by name but
 * for what quantisers add to it. */
function matched(A, B) {
  const keys = [(x) => [x.name], (x) => x.results, (x) => [x.name.replace(/(\.\d+|_quant|_quantized)$/, "")]];
  const rows = A.layers.map((_, a) => ({ a, b: null })), taken = new Set();
  for (const of of keys) {
    const found = new Map();
    B.layers.forEach((x, n) => { if (!taken.has(n)) for (const key of of(x)) found.set(x.operator + " " + key, n); });
    for (const row of rows) {
      if (row.b != null) continue;
      const layer = A.layers[row.a];
      const b = of(layer).map((key) => found.get(layer.operator + " " + key)).find((n) => n != null && !taken.has(n));
      if (b != null) { row.b = b; taken.add(b); }
    }
  }
  B.layers.forEach((_, b) => { if (!taken.has(b)) rows.push({ a: null, b }); });
  return rows;
}

function COLUMNS(A, B) {
  const one = (row) => (row.a != null ? A.layers[row.a] : B.layers[row.b]);
  const time = (R, n) => (n == null ? null : layerTime(R, R.layers[n]));
  return [
    { title: "layer", left: true, of: (row) => one(row).name },
    { title: "operator", left: true, of: (row) => one(row).operator },
    { title: "time in A", of: (row) => time(A, row.a), text: seconds },
    { title: "time in B", of: (row) => time(B, row.b), text: seconds },
    { title: "B/A", of: (row) => (time(A, row.a) && time(B, row.b) != null ? time(B, row.b) / time(A, row.a) : null), text: (v) => (v == null ? "" : "×" + digits(v)) },
    { title: "kernels in A", left: true, of: (row) => strategies(A, row.a) },
    { title: "kernels in B", left: true, of: (row) => strategies(B, row.b) },
  ];
}
const strategies = (R, n) => (n == null ? "—" : [...new Set(R.layers[n].steps.map((s) => R.steps[s].strategy || R.steps[s].kind))].join(", ") || "none");
