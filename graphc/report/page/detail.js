// What is selected, from the node of the model to the emitted code: each part a click away.

function showDetail(chosen) {
  const R = state.R, panel = byId("detail");
  document.body.classList.toggle("has-detail", Boolean(chosen));
  if (!chosen) return panel.replaceChildren();
  const parts = { layer: layerDetail, group: groupDetail, step: stepDetail }[chosen.kind](R, chosen.number);
  panel.replaceChildren(el("div", { class: "bar" },
    el("button", { title: "wider or narrower (w)", "aria-label": "wider", onclick: widen }, "⇔"),
    el("button", { title: "close (Esc)", "aria-label": "close", onclick: () => select(null) }, "✕")), ...parts.filter(Boolean));
  panel.scrollTop = 0;
  const code = chosen.code && panel.querySelector(".code");
  if (code) { code.open = true; code.scrollIntoView(); }
}
const widen = () => document.body.classList.toggle("wide");

const section = (title, ...children) => (children.flat(Infinity).some((c) => c) ? el("section", {}, el("h3", {}, title), children) : null);
const list = (texts) => (texts.length ? el("ul", {}, texts.map((text) => el("li", {}, text))) : null);
const facts = (pairs) => el("dl", {}, pairs.filter(([, value]) => value !== "" && value != null).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
const link = (kind, number, text, more) => el("button", { class: "link", "data-kind": kind, "data-number": number, onclick: () => select(kind, number, more) }, text);
const links = (kind, numbers, text) => (numbers.length ? el("ul", { class: "links" }, numbers.map((n) => el("li", {}, link(kind, n, text(n))))) : null);

// ---------------------------------------------------------------- a node of the model

function layerDetail(R, number) {
  const layer = R.layers[number];
  return [
    el("h2", {}, layer.operator, el("small", {}, layer.name)),
    el("p", { class: "fate" }, layer.fate[0]?.toUpperCase() + layer.fate.slice(1) + "."),
    kernelLinks(R, layer.steps, layer.steps.length ? "Kernels and their code" : null) || nearest(R, number),
    section("Rewritten by", list(layer.rewrites)),
    section("Fused groups", links("group", layer.groups, (n) => `${R.groups[n].operator} (${count(R.groups[n].layers.length, "layer")})`)),
    facts([["gives", layer.results.map((name, n) => `${name} ${layer.types[n] || ""}`).join(", ")], ["inside", layer.inside],
      ["operations", quantity(layer.flops)], ["bytes", bytes(layer.bytes)], ...accuracy(layer.accuracy)]),
    section("Layout", list(layer.layouts)), section("Notes", list(layer.notes)),
    section("Reads", links("layer", layer.reads, (n) => `${R.layers[n].operator} ${R.layers[n].name}`), list(layer.inputs)),
    section("Rewrites that did not apply", list(layer.declined.map(([rule, why]) => `${rule}: ${why}`))),
  ];
}

const accuracy = (found) => (found ? [["off by (of range)", plain(found.relative)], ["largest difference", plain(found.max_abs)],
  ["SQNR", found.sqnr == null ? "" : digits(found.sqnr) + " dB"], ["cosine", plain(found.cosine)]] : []);

/** A layer without a kernel: the kernels that come next after it. */
function nearest(R, number) {
  const readers = R.layers.map(() => []);
  R.layers.forEach((layer, n) => layer.reads.forEach((m) => readers[m].push(n)));
  let row = [number];
  for (const seen = new Set(row); row.length;) {
    const next = [...new Set(row.flatMap((n) => readers[n]))].filter((n) => !seen.has(n));
    const steps = [...new Set(next.flatMap((n) => R.layers[n].steps))];
    if (steps.length) return kernelLinks(R, steps.slice(0, 12), "It has no kernel; these read what became of it");
    next.forEach((n) => seen.add(n));
    row = next;
  }
  return kernelLinks(R, [...new Set(R.layers[number].reads.flatMap((n) => R.layers[n].steps))].slice(-12), "It has no kernel, and nothing reads it; it reads");
}

/** Links to the code of steps, the one that takes longest first. */
const kernelLinks = (R, steps, title) => (steps.length ? section(title, el("ul", { class: "links kernels" }, [...steps].sort((a, b) => weightOf(R, R.steps[b]) - weightOf(R, R.steps[a]) || a - b).map((n) => {
  const step = R.steps[n];
  return el("li", {}, link("step", n, stepTitle(step), { code: true }), " ", seconds(timeOf(R, step)), step.bound ? `, bound by ${step.bound}` : "");
}))) : null);

// ---------------------------------------------------------------- a group

function groupDetail(R, number) {
  const group = R.groups[number];
  return [
    el("h2", {}, group.operator, el("small", {}, `gives ${group.result} ${group.types.join(", ")}`)),
    el("p", { class: "fate" }, group.holds.length === 1 ? "One operator." : `${group.holds.length} operators in one kernel.`),
    kernelLinks(R, group.steps, "Kernels and their code") || el("p", {}, "A view: it has no kernel."),
    section("Layers of the model", links("layer", group.layers, (n) => `${R.layers[n].operator} ${R.layers[n].name}`)),
    section("Holds", list(group.holds)),
    section("It is not larger, because", list(group.neighbours.map(([side, name, why]) => `it ${side} ${name}: ${why}`))),
  ];
}

// ---------------------------------------------------------------- a step and its kernel

function stepDetail(R, number) {
  const step = R.steps[number], kernel = step.kernel == null ? null : R.kernels[step.kernel];
  const groups = R.groups.map((g, n) => (g.steps.includes(number) ? n : -1)).filter((n) => n >= 0);
  return [
    el("h2", {}, stepTitle(step), el("small", {}, `step ${number}`)),
    facts([["time", seconds(step.seconds)], ["at least", seconds(step.least)],
      ["times the least", step.seconds && step.least ? "×" + digits(step.seconds / step.least) : ""], ["bound by", step.bound],
      ["calls", step.calls === 1 ? "" : plain(step.calls)], ["operations", quantity(step.flops)],
      ["reads, writes", step.read == null ? bytes(step.bytes) : `${bytes(step.read)}, ${bytes(step.written)}`],
      ["per byte", step.bytes ? digits(step.flops / step.bytes) : ""]]),
    section("Layers of the model", links("layer", step.layers, (n) => `${R.layers[n].operator} ${R.layers[n].name}`)),
    section("Fused group", links("group", groups, (n) => R.groups[n].operator)),
    kernel && section("Strategy", el("p", {}, `${step.strategy}: ${step.about || ""}`),
      list((step.declined || []).map(([name, why]) => `not ${name}: ${why}`))),
    kernel && section("Schedule", list(kernel.schedule)),
    kernel && codeOf(R, kernel, step.kernel),
  ];
}

const FORMS = { c: "C", cuda: "CUDA", llvm: "LLVM", asm: "assembly", kernel: "kernel IR" };

/** The code of a kernel, in one form at a time. */
function codeOf(R, kernel, number) {
  const forms = Object.keys(FORMS).filter((form) => kernel.code[form]);
  const text = el("pre", { tabindex: "0" }), lines = el("small");
  const sharing = R.steps.filter((s) => s.kernel === number).length;
  const show = (form) => {
    state.form = form;
    text.textContent = cleanCode(kernel.code[form]);
    lines.textContent = count(kernel.code[form].trimEnd().split("\n").length, "line") + (sharing > 1 ? `, shared by ${sharing} steps` : "");
    for (const button of tabs.children) button.setAttribute("aria-selected", button.dataset.form === form);
  };
  const tabs = el("div", { class: "forms", role: "tablist" }, forms.map((form) =>
    el("button", { role: "tab", "data-form": form, onclick: () => show(form) }, FORMS[form])));
  show(forms.includes(state.form) ? state.form : forms[0]);
  return el("details", { class: "code", open: true }, el("summary", {}, "Code ", lines), tabs, text);
}
