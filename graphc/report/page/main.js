// The page: it unpacks the data, shows a tab at a time, and answers keys.

const TABS = [
  ["overview", "Overview", () => overviewTab(state.R)],
  ["graph", "Graph", () => graphTab(state.R)],
  ["layers", "Layers", () => layersTab(state.R)],
  ["kernels", "Kernels", () => kernelsTab(state.R)],
  ["memory", "Memory", () => memoryTab(state.R)],
  ["roofline", "Roofline", () => rooflineTab(state.R)],
  ["compare", "Compare", () => compareTab(state.all.report, state.all.against)],
];
const KEYS = [["1 – 7", "tabs"], ["/", "filter the table"], ["↑ ↓ or k j", "the next row; in a graph, along its edges"], ["← →", "in a graph, the next node"],
  ["Enter", "select a row"], ["Esc", "leave the filter; select nothing"], ["b", "the other report, where there are two"], ["w", "wider details"], ["t", "light, dark, or as the system has it"], ["?", "this help"]];
const THEMES = ["auto", "light", "dark"];
const built = new Map();
const following = new Map();

/** What a tab does when something is selected, for as long as it is shown as built. */
function onSelectIn(tab, listener) {
  if (!following.has(tab)) following.set(tab, []);
  following.get(tab).push(listener);
}
onSelect((chosen) => {
  showDetail(chosen);
  for (const listener of following.get(state.tab) || []) listener(chosen);
});

const tabs = () => TABS.filter(([name]) => name !== "compare" || state.all.against);

function showTab(name) {
  state.tab = name;
  if (!built.has(name)) built.set(name, TABS.find(([tab]) => tab === name)[2]());
  byId("view").replaceChildren(built.get(name));
  for (const button of document.querySelectorAll("#tabs button")) button.setAttribute("aria-selected", button.dataset.tab === name);
  for (const listener of following.get(name) || []) listener(state.chosen);
}

function showReport(which) {
  state.which = which;
  state.R = state.all[which];
  if (!usable(state.R).some(([name]) => name === state.overlay)) state.overlay = usable(state.R)[0][0];
  built.clear();
  following.clear();
  header();
  select(null);
  showTab(state.tab);
}

function header() {
  const about = state.R.about, both = state.all.against;
  const where = [about.target, about.processor, about.threads && count(about.threads, "thread"),
    ...Object.entries(about.open_dims || {}).map(([name, size]) => `${name} = ${size}`), `graphc ${about.graphc}`].filter(Boolean);
  byId("header").replaceChildren(
    el("h1", {}, about.model, el("small", {}, where.join(" · "))),
    both ? el("span", { class: "switch", role: "group", "aria-label": "report" }, ["report", "against"].map((name, n) =>
      el("button", { "aria-pressed": String(name === state.which), onclick: () => showReport(name) }, "AB"[n] + ": " + short(state.all[name].about.model, 18)))) : "",
    el("nav", { id: "tabs", role: "tablist" }, tabs().map(([name, title]) =>
      el("button", { role: "tab", "data-tab": name, "aria-selected": String(name === state.tab), onclick: () => showTab(name) }, title))),
    el("button", { id: "theme", title: "light, dark, or as the system has it (t)", onclick: () => theme(true) }),
    el("button", { title: "keys (?)", "aria-label": "help", onclick: help }, "?"));
  theme(false);
}

function theme(next) {
  const now = document.documentElement.dataset.theme || "auto";
  const chosen = next ? THEMES[(THEMES.indexOf(now) + 1) % THEMES.length] : now;
  document.documentElement.dataset.theme = chosen;
  byId("theme").textContent = chosen;
}

function help() {
  const dialog = byId("help");
  dialog.replaceChildren(el("h2", {}, "Keys"), el("dl", {}, KEYS.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    el("button", { onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

function key(event) {
  const typing = event.target.matches("input, select");
  if (event.key === "Escape") { if (typing) event.target.blur(); else select(null); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const tab = tabs()[Number(event.key) - 1];
  const table = () => byId("view").querySelector("tbody tr");
  if (tab) showTab(tab[0]);
  else if (event.key === "/") focusFilter(event);
  else if (event.key === "t") theme(true);
  else if (event.key === "w") widen();
  else if (event.key === "b" && state.all.against) showReport(state.which === "report" ? "against" : "report");
  else if (event.key === "?") help();
  else if ("jk".includes(event.key) && !event.defaultPrevented && table()) { table().focus(); table().click(); }
}

function focusFilter(event) {
  if (!byId("view").querySelector(".filter")) showTab("layers");
  event.preventDefault();
  byId("view").querySelector(".filter").focus();
}

async function unpack() {
  const packed = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

unpack().then((data) => {
  state.all = data;
  showReport("report");
  document.addEventListener("keydown", key);
  document.documentElement.dataset.ready = "true";
}).catch((error) => byId("view").replaceChildren(el("p", { class: "warning" }, "This page cannot be shown: " + error)));
