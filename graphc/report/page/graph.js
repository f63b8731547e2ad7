// The two graphs: nodes of the model, and groups of the compiled graph, each coloured by what is
// overlaid. Nodes whose names share a path stand for one another while they are collapsed.

const BOX = { w: 156, h: 40, letters: 18 };
const AIM = 80; // nodes that a graph shows at first, where paths let it
const HEAT = 9; // shades

/** A graph of items {path, label, sub, kind, number, reads, inputs, layers, steps}. */
function graphView(title, kind, items) {
  const view = { title, kind, items, depth: 0, opened: new Set(), zoom: 1 };
  view.deepest = Math.max(0, ...items.map((item) => item.path.length));
  const collapses = visible(view).length < items.length; // here the depth is 0
  view.depth = view.deepest;
  while (view.depth > 0 && visible(view).length > AIM) view.depth--;
  view.canvas = el("div", { class: "canvas", tabindex: "0", role: "group", "aria-label": title,
    onkeydown: (event) => walk(view, event) });
  const button = (text, label, act) => el("button", { title: label, "aria-label": label, onclick: act }, text);
  const deeper = (by) => () => {
    view.depth = Math.min(view.deepest, Math.max(0, view.depth + by));
    view.opened.clear();
    render(view);
  };
  view.root = el("section", { class: "graph" },
    el("h3", {}, title, " ", view.count = el("small"),
      el("span", { class: "tools" },
        collapses && [button("fewer nodes", "collapse by path", deeper(-1)),
          button("more nodes", "expand by path", deeper(1))],
        button("−", "smaller", () => zoom(view, view.zoom / 1.25)),
        button("+", "larger", () => zoom(view, view.zoom * 1.25)),
        button("fit", "fit the width", () => fit(view)))),
    view.canvas);
  view.canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(view, view.zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }, { passive: false });
  render(view);
  return view;
}

/** The parts of a name that is a path. A layer is the folder of its groups, its own path that of a layer. */
const pathOf = (name) => name.split("/").filter(Boolean);

/** What is drawn: an item, or all items of a folder. */
function visible(view) {
  const found = new Map();
  view.items.forEach((item, n) => {
    let cut = Math.min(item.path.length, view.depth);
    while (cut < item.path.length && view.opened.has(item.path.slice(0, cut + 1).join("/"))) cut++;
    const hidden = cut < item.path.length;
    const key = hidden ? "folder " + item.path.slice(0, cut + 1).join("/") : "item " + n;
    if (!found.has(key)) found.set(key, { key, members: [], folder: hidden && item.path.slice(0, cut + 1).join("/") });
    found.get(key).members.push(n);
  });
  for (const node of found.values()) if (node.members.length === 1) node.folder = null;
  return [...found.values()];
}

function render(view) {
  const nodes = visible(view);
  const home = new Map();
  nodes.forEach((node, n) => node.members.forEach((m) => home.set(m, n)));
  const edges = new Map();
  const join = (a, b) => { if (a !== b) edges.set(a + ">" + b, [a, b]); };
  const inputs = new Map();
  view.items.forEach((item, n) => {
    for (const m of item.reads) if (home.has(m)) join(home.get(m), home.get(n));
    for (const name of item.inputs) {
      if (!inputs.has(name)) inputs.set(name, nodes.push({ key: "input", input: name, members: [] }) - 1);
      join(inputs.get(name), home.get(n));
    }
  });
  const pairs = [...edges.values()];
  const plan = layered(nodes.map(() => ({ w: BOX.w, h: BOX.h })), pairs);
  view.nodes = nodes;
  view.size = [plan.width, plan.height];
  view.svg = draw("svg", { viewBox: `0 0 ${plan.width} ${plan.height}` });
  view.edges = plan.lines.map((line, n) => {
    const path = draw("path", { d: curve(line), class: "edge" });
    view.svg.append(path);
    return { path, ends: pairs[n] };
  });
  nodes.forEach((node, n) => {
    node.at = plan.places[n];
    node.g = box(view, node);
    view.svg.append(node.g);
  });
  view.canvas.replaceChildren(view.svg);
  view.count.textContent = `${view.items.length} nodes` + (nodes.some((n) => n.folder) ? ", some collapsed" : "");
  zoom(view, view.zoom);
  paint(view);
  mark(view, state.chosen, false);
}

function box(view, node) {
  const [x, y] = node.at, item = view.items[node.members[0]];
  const label = node.input ? "input" : node.folder ? `▸ ${node.members.length} nodes` : item.label;
  const sub = node.input || node.folder || item.sub;
  const what = node.input ? "input" : node.folder ? "folder" : "item";
  const act = () => {
    if (node.folder) { view.opened.add(node.folder); render(view); }
    else if (!node.input) select(view.kind, item.number);
  };
  return draw("g", { class: "node " + what, transform: `translate(${x - BOX.w / 2} ${y - BOX.h / 2})`,
    role: node.input ? false : "button", "aria-label": `${label} ${sub}`, onclick: act,
    "data-kind": node.input || node.folder ? false : view.kind, "data-number": node.input || node.folder ? false : item.number },
    draw("title", {}, `${label}\n${sub}`),
    draw("rect", { width: BOX.w, height: BOX.h, rx: node.input ? 18 : 5 }),
    draw("text", { x: BOX.w / 2, y: 16, class: "label" }, begin(label, BOX.letters)),
    draw("text", { x: BOX.w / 2, y: 31, class: "sub" }, short(sub, BOX.letters + 5)));
}

// ---------------------------------------------------------------- colours

function paint(view) {
  const R = state.R, name = state.overlay;
  const all = (node, key) => [...new Set(node.members.flatMap((m) => view.items[m][key]))];
  const values = view.nodes.map((node) => (node.members.length ? overlaid(R, name, all(node, "layers"), all(node, "steps")) : null));
  const most = Math.max(...values.filter((v) => typeof v === "number"), 0);
  view.nodes.forEach((node, n) => {
    const value = values[n], classes = [...node.g.classList].filter((c) => !/^(heat|bound)-/.test(c));
    if (typeof value === "string" && value) classes.push("bound-" + value);
    if (typeof value === "number" && value > 0 && most) classes.push("heat-" + Math.ceil((HEAT * value) / most));
    node.g.setAttribute("class", classes.join(" "));
    const shown = value ? `\n${OVERLAYS[name].title}: ${OVERLAYS[name].text(value)}` : "";
    const title = node.g.querySelector("title");
    title.textContent = title.textContent.split("\n").slice(0, 2).join("\n") + shown;
  });
}

// ---------------------------------------------------------------- selection

function mark(view, chosen, moved = true) {
  const own = related(state.R, chosen)[view.kind === "layer" ? "layers" : "groups"];
  let first = null;
  view.nodes.forEach((node) => {
    const numbers = node.members.map((m) => view.items[m].number);
    const isChosen = chosen && chosen.kind === view.kind && numbers.includes(chosen.number);
    const isRelated = numbers.some((n) => own.has(n));
    node.g.classList.toggle("chosen", Boolean(isChosen));
    node.g.classList.toggle("related", isRelated && !isChosen);
    if (isChosen || (isRelated && !first)) first = node;
  });
  for (const { path, ends } of view.edges) path.classList.toggle("lit", first != null && ends.some((n) => view.nodes[n] === first));
  if (first && moved) reveal(view, first);
}

function reveal(view, node) {
  const [x, y] = node.at.map((v) => v * view.zoom), canvas = view.canvas;
  const inside = x - canvas.scrollLeft > BOX.w / 2 && x - canvas.scrollLeft < canvas.clientWidth - BOX.w / 2 &&
    y - canvas.scrollTop > BOX.h && y - canvas.scrollTop < canvas.clientHeight - BOX.h;
  if (!inside) canvas.scrollTo(x - canvas.clientWidth / 2, y - canvas.clientHeight / 2);
}

function zoom(view, value) {
  view.zoom = Math.min(2.5, Math.max(0.15, value));
  view.svg.setAttribute("width", view.size[0] * view.zoom);
  view.svg.setAttribute("height", view.size[1] * view.zoom);
}
const fit = (view) => zoom(view, Math.min(1, (view.canvas.clientWidth - 16) / view.size[0]));

/** Arrow keys go along the edges, and to the neighbours in order. */
function walk(view, event) {
  const chosen = state.chosen, items = view.items;
  const here = chosen && chosen.kind === view.kind ? items.findIndex((i) => i.number === chosen.number)
    : items.findIndex((i) => related(state.R, chosen)[view.kind === "layer" ? "layers" : "groups"].has(i.number));
  let next = null;
  if (event.key === "ArrowDown") next = items.findIndex((item) => item.reads.includes(here));
  else if (event.key === "ArrowUp") next = items[here]?.reads[0];
  else if (event.key === "ArrowLeft") next = here - 1;
  else if (event.key === "ArrowRight") next = here + 1;
  else return;
  event.preventDefault();
  if (here < 0) next = 0;
  if (next != null && items[next]) select(view.kind, items[next].number);
}

// ---------------------------------------------------------------- the tab

function graphTab(R) {
  const layers = R.layers.map((x, n) => ({ path: pathOf(x.name).slice(0, -1), label: x.operator, sub: x.name,
    number: n, reads: x.reads, inputs: x.inputs, layers: [n], steps: x.steps }));
  const groups = R.groups.map((x, n) => ({ path: pathOf(x.loc[0] || ""), label: x.operator,
    sub: x.loc.length ? x.loc[0] + (x.loc.length > 1 ? ` +${x.loc.length - 1}` : "") : x.result,
    number: n, reads: x.reads, inputs: x.inputs, layers: x.layers, steps: x.steps }));
  const views = [graphView("The model, as imported", "layer", layers), graphView("As compiled, fused", "group", groups)];
  onSelectIn("graph", (chosen) => views.forEach((view) => mark(view, chosen)));
  const legend = el("span", { class: "legend" });
  const repaint = () => { views.forEach(paint); showLegend(R, legend); };
  const choice = el("select", { id: "overlay", onchange: (event) => { state.overlay = event.target.value; repaint(); } },
    usable(R).map(([name, overlay]) => el("option", { value: name, selected: name === state.overlay }, overlay.title)));
  showLegend(R, legend);
  requestAnimationFrame(() => views.forEach((view) => { if (view.size[0] * 0.6 > view.canvas.clientWidth) zoom(view, 0.6); else fit(view); mark(view, state.chosen); }));
  return el("div", { class: "graphs-tab" },
    el("p", { class: "toolbar" }, el("label", { for: "overlay" }, "Colours show "), choice, " ", legend),
    el("div", { class: "graphs" }, views.map((view) => view.root)));
}

function showLegend(R, legend) {
  if (state.overlay === "none") legend.replaceChildren();
  else if (state.overlay === "bound") {
    const names = [...new Set(R.steps.map((s) => s.bound).filter(Boolean))];
    legend.replaceChildren(...names.map((name) => el("span", { class: "chip bound-" + name }, name)));
  } else {
    const scale = Array.from({ length: HEAT }, (_, n) => el("i", { class: "shade heat-" + (n + 1) }));
    legend.replaceChildren("little ", ...scale, " much");
  }
}
