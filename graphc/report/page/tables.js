// Tables that sort by a click on a heading, filter by words, and follow what is selected.

const ROWS = 600; // that are shown before more are asked for

/** A table of rows; columns are {title, of(row), text(value), left}. `row` tells what a row selects. */
function table(columns, rows, options) {
  const view = { columns, rows, sort: options.sort ?? null, down: true, filter: "", all: false, ...options };
  view.body = el("tbody");
  view.count = el("span", { class: "count", role: "status" });
  view.input = el("input", { type: "search", class: "filter", placeholder: "Filter (press /)", "aria-label": "Filter rows",
    oninput: (event) => { view.filter = event.target.value; refresh(view); },
    onkeydown: (event) => { if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); view.body.querySelector("tr")?.focus(); } } });
  view.heads = columns.map((column, n) => el("th", { scope: "col", class: column.left ? "left" : false },
    el("button", { title: "sort by " + column.title, onclick: () => sortBy(view, n) }, column.title)));
  view.texts = rows.map((row) => columns.map((c) => c.all?.(row) ?? plain(c.of(row))).join(" ").toLowerCase());
  refresh(view);
  onSelectIn(options.tab, () => markRows(view));
  return el("div", { class: "table" },
    el("p", { class: "toolbar" }, view.input, " ", view.count),
    el("div", { class: "scroll" }, el("table", { "aria-label": options.label }, el("thead", {}, el("tr", {}, view.heads)), view.body)));
}

function sortBy(view, column) {
  view.down = view.sort === column ? !view.down : !view.columns[column].left;
  view.sort = column;
  refresh(view);
}

function refresh(view) {
  const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  let numbers = view.rows.map((_, n) => n).filter((n) => words.every((word) => view.texts[n].includes(word)));
  if (view.sort != null) {
    const of = view.columns[view.sort].of, sign = view.down ? -1 : 1;
    const values = view.rows.map(of);
    numbers.sort((a, b) => sign * compareValues(values[a], values[b]) || a - b);
  }
  view.count.textContent = `${numbers.length} of ${view.rows.length}`;
  const shown = view.all ? numbers : numbers.slice(0, ROWS);
  view.body.replaceChildren(...shown.map((n) => rowOf(view, view.rows[n])));
  if (shown.length < numbers.length) {
    view.body.append(el("tr", {}, el("td", { colspan: view.columns.length, class: "left" },
      el("button", { onclick: () => { view.all = true; refresh(view); } }, `show ${numbers.length - shown.length} more`))));
  }
  view.heads.forEach((head, n) => head.setAttribute("aria-sort", n !== view.sort ? "none" : view.down ? "descending" : "ascending"));
  markRows(view);
}

function compareValues(a, b) {
  if (a == null || b == null) return (a != null) - (b != null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function rowOf(view, row) {
  const [kind, number] = view.row(row);
  const act = () => { if (kind != null) select(kind, number); };
  const cells = view.columns.map((column) => {
    const value = column.of(row), text = (column.text || plain)(value);
    const bar = column.share ? el("meter", { min: 0, max: 1, value: Math.min(1, column.share(row)), "aria-hidden": "true" }) : null;
    return el("td", { class: column.left ? "left" : false, title: column.left ? value : false }, bar, column.left ? short(text, 60) : text);
  });
  return el("tr", { tabindex: "0", "data-kind": kind, "data-number": number, onclick: act,
    onkeydown: (event) => rowKey(event, act) }, cells);
}

function rowKey(event, act) {
  const row = event.currentTarget;
  const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling, j: row.nextElementSibling, k: row.previousElementSibling }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
  else if (next) { event.preventDefault(); next.focus(); next.click(); }
}

function markRows(view) {
  const own = related(state.R, state.chosen);
  const sets = { layer: own.layers, group: own.groups, step: own.steps };
  for (const row of view.body.children) {
    const kind = row.dataset.kind, number = Number(row.dataset.number);
    row.classList.toggle("chosen", Boolean(state.chosen) && kind === state.chosen.kind && number === state.chosen.number);
    row.classList.toggle("related", Boolean(sets[kind]?.has(number)) && !row.classList.contains("chosen"));
  }
}

// ---------------------------------------------------------------- the tabs

const layerTime = (R, layer) => sum(layer.steps.map((n) => timeOf(R, R.steps[n])));

function layersTab(R) {
  const most = Math.max(...R.layers.map((x) => layerTime(R, x)), 1e-12);
  const columns = [
    { title: "layer", left: true, of: (x) => x.name, all: (x) => [x.name, x.operator, x.fate, ...x.results].join(" ") },
    { title: "operator", left: true, of: (x) => x.operator },
    { title: "result", left: true, of: (x) => x.types.filter(Boolean).join(", ") },
    { title: "operations", of: (x) => x.flops, text: quantity },
    { title: measured(R) ? "time of its kernels" : "least time", of: (x) => layerTime(R, x), text: seconds, share: (x) => layerTime(R, x) / most },
    { title: "kernels", left: true, of: (x) => [...new Set(x.steps.map((n) => stepTitle(R.steps[n])))].join(", ") },
  ];
  if (R.layers.some((x) => x.accuracy)) {
    columns.push({ title: "off by (of range)", of: (x) => x.accuracy?.relative });
    columns.push({ title: "SQNR dB", of: (x) => x.accuracy?.sqnr });
  }
  columns.push({ title: "what became of it", left: true, of: (x) => x.fate });
  return table(columns, R.layers.map((x, number) => ({ ...x, number })), { tab: "layers", label: "Layers", row: (x) => ["layer", x.number] });
}

function kernelsTab(R) {
  const whole = total(R), most = Math.max(...R.steps.map((s) => timeOf(R, s) || 0), 1e-12);
  const rate = (s, amount) => (s.seconds ? amount / s.seconds : null);
  const columns = [
    { title: "step", of: (s) => s.number },
    { title: "kernel", left: true, of: stepTitle, all: (s) => [s.name, s.strategy, ...s.loc].join(" ") },
    { title: "layers", left: true, of: (s) => layerNames(R, s.layers, s.loc) },
    { title: "strategy", left: true, of: (s) => s.strategy || "" },
    { title: "calls", of: (s) => s.calls },
    { title: measured(R) ? "time" : "least time", of: (s) => timeOf(R, s), text: seconds, share: (s) => (timeOf(R, s) || 0) / most },
    { title: "share", of: (s) => (whole ? (timeOf(R, s) || 0) / whole : null), text: percent },
    ...(measured(R) ? [
      { title: "at least", of: (s) => s.least, text: seconds },
      { title: "times", of: (s) => (s.least ? s.seconds / s.least : null) },
      { title: "GFLOP/s", of: (s) => (s.flops ? rate(s, s.flops / 1e9) : null) },
      { title: "GB/s", of: (s) => (s.bytes ? rate(s, s.bytes / 1e9) : null) }] : []),
    { title: "bound by", left: true, of: (s) => s.bound },
    { title: "operations", of: (s) => s.flops, text: quantity },
    { title: "bytes", of: (s) => s.bytes, text: bytes },
  ];
  const sort = columns.findIndex((c) => c.share);
  return table(columns, R.steps.map((s, number) => ({ ...s, number })), { tab: "kernels", label: "Kernels", sort, row: (s) => ["step", s.number] });
}
