// The overview, the arena over time, and the roofline.

const PLOT = { w: 1000, h: 460, left: 76, right: 20, top: 14, bottom: 40 };
const inner = { w: PLOT.w - PLOT.left - PLOT.right, h: PLOT.h - PLOT.top - PLOT.bottom };

const frame = (label, ...children) => draw("svg", { viewBox: `0 0 ${PLOT.w} ${PLOT.h}`, class: "plot", role: "img", "aria-label": label },
  draw("rect", { x: PLOT.left, y: PLOT.top, width: inner.w, height: inner.h, class: "area" }), ...children);
const tickX = (x, text) => [draw("line", { x1: x, x2: x, y1: PLOT.top, y2: PLOT.top + inner.h, class: "grid" }),
  draw("text", { x, y: PLOT.top + inner.h + 16, class: "tick" }, text)];
const tickY = (y, text) => [draw("line", { y1: y, y2: y, x1: PLOT.left, x2: PLOT.left + inner.w, class: "grid" }),
  draw("text", { x: PLOT.left - 6, y: y + 4, class: "tick end" }, text)];
const axes = (x, y) => [draw("text", { x: PLOT.left + inner.w / 2, y: PLOT.h - 6, class: "tick" }, x),
  draw("text", { transform: `translate(13 ${PLOT.top + inner.h / 2}) rotate(-90)`, class: "tick" }, y)];

/** Marks of a plot select steps, and follow what is selected. */
function marks(tab, svg) {
  const follow = () => {
    const own = related(state.R, state.chosen).steps;
    for (const mark of svg.querySelectorAll("[data-steps]")) {
      mark.classList.toggle("chosen", mark.dataset.steps.split(" ").some((n) => own.has(Number(n))));
    }
  };
  onSelectIn(tab, follow);
  follow();
  return svg;
}

// ---------------------------------------------------------------- overview

function overviewTab(R) {
  const about = R.about, run = about.measured, whole = total(R);
  const card = (title, value, more) => el("div", { class: "card" }, el("h3", {}, title), el("b", {}, value), el("small", {}, more));
  const arena = Math.max(0, ...R.arenas.map((a) => a.bytes));
  const least = sum(R.steps.map((s) => s.least));
  const how = [about.times, least ? `the roofline allows ${seconds(least)}` : ""].filter(Boolean).join("; ");
  const cards = [
    run ? card("A run", seconds(run.run), `median of ${run.rounds}; 90% under ${seconds(run.latencies.p90)}`) : null,
    card(measured(R) ? "Compiled steps" : "At least", whole ? seconds(whole) : "unknown",
      measured(R) ? how : "by the roofline; nothing was measured"),
    card("Operations", quantity(sum(R.steps.map((s) => s.flops))), `${bytes(sum(R.steps.map((s) => s.bytes)))} moved`),
    card("Arena", bytes(arena), `at least ${bytes(Math.max(0, ...R.arenas.map((a) => a.lower_bound)))}`),
    card("Constants", bytes(sum(R.arenas.map((a) => a.constants))), "weights, packed"),
    card("Layers", R.layers.length, `in ${R.groups.length} groups, ${R.steps.length} steps, ${R.kernels.length} kernels`),
  ];
  const tensors = (list) => list.map(([name, type]) => el("li", {}, el("code", {}, short(name, 50)), " ", type));
  return el("div", { class: "overview" },
    el("div", { class: "cards" }, cards),
    about.stopped && el("p", { class: "warning" }, "The run ended early, so parts are not shown: ", about.stopped),
    el("div", { class: "columns" },
      el("section", {}, el("h2", {}, "What limits this model"), el("ul", {}, R.limits.map((text) => el("li", {}, text))), shares(R)),
      el("section", {}, el("h2", {}, "The cheapest remedies"),
        R.remedies.length ? el("ol", { class: "remedies" }, R.remedies.map((x) => el("li", {}, el("b", {}, x.title),
          el("small", {}, ` saves at most ${percent(x.gain)} of the ${x.of}`), el("br"), x.text)))
          : el("p", {}, "None is known that would save more than a fiftieth."))),
    el("section", {}, el("h2", {}, whole ? "Where the time goes" : "Where the operations are"), longestSteps(R)),
    el("section", { class: "columns" },
      el("div", {}, el("h2", {}, "Inputs"), el("ul", {}, tensors(about.interface.inputs))),
      el("div", {}, el("h2", {}, "Outputs"), el("ul", {}, tensors(about.interface.outputs))),
      el("div", {}, el("h2", {}, "Machine"), el("p", {}, machine(about.peaks)))));
}

const machine = (peaks) => (peaks ? `${peaks.name || "this machine"}: ${quantity(peaks.flops)}FLOP/s, memory ${quantity(peaks.bandwidth)}B/s, cache ${quantity(peaks.cache_bandwidth)}B/s` : "its peaks are not known: give them with --machine GFLOPS,GB/S");

/** A bar of the time, by what bounds it. */
function shares(R) {
  const whole = total(R), names = [...new Set(R.steps.map((s) => s.bound).filter(Boolean))];
  if (!whole || !names.length) return null;
  const parts = names.map((name) => [name, sum(R.steps.filter((s) => s.bound === name).map((s) => timeOf(R, s))) / whole]);
  let at = 0;
  const bar = draw("svg", { viewBox: "0 0 1000 26", class: "shares", role: "img", "aria-label": "time by bound", preserveAspectRatio: "none" },
    parts.map(([name, part]) => { const rect = draw("rect", { x: at, width: 1000 * part, height: 26, class: "bound-" + name }); at += 1000 * part; return rect; }));
  return el("div", {}, bar, el("p", { class: "legend" }, parts.map(([name, part]) => el("span", { class: "chip bound-" + name }, `${name} ${percent(part)}`))));
}

function longestSteps(R) {
  const weights = R.steps.map((s) => weightOf(R, s)), whole = sum(weights), most = Math.max(0, ...weights);
  const steps = R.steps.map((_, n) => n).sort((a, b) => weights[b] - weights[a] || a - b).slice(0, 12);
  const told = (s, n) => [total(R) ? seconds(timeOf(R, s)) : quantity(s.flops) + " operations", percent(whole ? weights[n] / whole : 0), s.bound].filter(Boolean);
  return el("ul", { class: "bars" }, steps.map((n) => el("li", {},
    el("button", { class: "bar", onclick: () => select("step", n), "data-kind": "step", "data-number": n },
      el("span", { class: "name" }, short(layerNames(R, R.steps[n].layers, R.steps[n].loc) || stepTitle(R.steps[n]), 44)),
      el("meter", { min: 0, max: 1, value: most ? weights[n] / most : 0, "aria-hidden": "true" }),
      el("span", { class: "value" }, told(R.steps[n], n).join(" · "))))));
}

// ---------------------------------------------------------------- memory

function memoryTab(R) {
  return el("div", {}, R.arenas.map((arena, n) => el("section", {},
    el("h2", {}, R.arenas.length > 1 ? `Arena of part ${n + 1}` : "The arena over time"),
    el("p", {}, `${bytes(arena.bytes)}; no plan needs less than ${bytes(arena.lower_bound)} (dashed). A box is a tensor: as wide as it lives, as high as it is large. Below, live bytes at each step.`),
    arena.live.length ? [marks("memory", arenaPlot(R, arena, n)), marks("memory", livePlot(R, arena, n))] : el("p", {}, "It is empty."))));
}

const callsOf = (R, program) => new Map(R.steps.map((s, n) => [s.program === program && s.call != null ? s.call : null, n]));

function arenaPlot(R, arena, program) {
  const steps = arena.live.length, top = Math.max(arena.bytes, 1), at = callsOf(R, program);
  const x = (step) => PLOT.left + (inner.w * step) / steps, y = (offset) => PLOT.top + inner.h * (1 - offset / top);
  const boxes = [...arena.tensors].sort((a, b) => a[2] - b[2] || a[0] - b[0]).map(([offset, size, first, last, loc], n) => {
    const wide = x(last + 1) - x(first), high = y(offset) - y(offset + size), letters = Math.floor((wide - 8) / 7.2);
    const name = loc[0] || `step ${first}`;
    return draw("g", { class: `tensor hue-${n % 8}`, "data-steps": at.get(first) ?? "", onclick: () => at.has(first) && select("step", at.get(first)) },
      draw("title", {}, `${loc.join(", ") || name}: ${bytes(size)} at ${offset}, steps ${first} to ${last}`),
      draw("rect", { x: x(first), y: y(offset + size), width: wide, height: high }),
      high > 13 && letters > 6 && draw("text", { x: x(first) + 4, y: y(offset + size / 2) + 4 }, begin(`${name} ${bytes(size)}`, letters)));
  });
  const every = Math.max(1, Math.ceil(steps / 20));
  return frame("arena over time", Array.from({ length: 5 }, (_, n) => tickY(y((top * n) / 4), bytes(Math.round((top * n) / 4)))),
    Array.from({ length: Math.ceil(steps / every) }, (_, n) => tickX(x(n * every), n * every)), boxes,
    draw("line", { x1: PLOT.left, x2: PLOT.left + inner.w, y1: y(arena.lower_bound), y2: y(arena.lower_bound), class: "limit" }), axes("step", "offset"));
}

function livePlot(R, arena, program) {
  const steps = arena.live.length, most = Math.max(1, ...arena.live), at = callsOf(R, program), high = 90;
  return draw("svg", { viewBox: `0 0 ${PLOT.w} ${high + 10}`, class: "plot", role: "img", "aria-label": "live bytes" },
    draw("text", { x: PLOT.left - 6, y: 14, class: "tick end" }, bytes(most)),
    arena.live.map((value, n) => draw("rect", { class: "live", x: PLOT.left + (inner.w * n) / steps, width: Math.max(inner.w / steps - 0.5, 0.5),
      y: high - (high * value) / most, height: (high * value) / most, "data-steps": at.get(n) ?? "", onclick: () => at.has(n) && select("step", at.get(n)) },
      draw("title", {}, `step ${n}: ${bytes(value)} live`))));
}

// ---------------------------------------------------------------- roofline

function rooflineTab(R) {
  const peaks = R.about.peaks, steps = R.steps.map((s, n) => [s, n]).filter(([s]) => s.flops > 0 && s.bytes > 0);
  if (!peaks || !steps.length) return el("p", {}, peaks ? "No step computes anything." : "The peaks of the machine are not known: give them with --machine GFLOPS,GB/S.");
  const reached = (s) => s.flops / (timeOf(R, s) || s.least || 1);
  const intensity = steps.map(([s]) => s.flops / s.bytes), rates = steps.map(([s]) => reached(s));
  const top = Math.max(peaks.flops, ...steps.map(([s]) => s.peak || 0)), corner = top / peaks.bandwidth;
  const [x0, x1] = [Math.min(0.05, ...intensity) / 1.5, Math.max(4 * corner, ...intensity) * 1.5];
  const [y0, y1] = [Math.max(Math.min(top / 1e3, ...rates) / 1.5, top / 1e6), Math.max(top, ...rates) * 2];
  const scale = (low, high, from, size) => (v) => from + (size * Math.log(Math.min(Math.max(v, low), high) / low)) / Math.log(high / low);
  const x = scale(x0, x1, PLOT.left, inner.w), y = scale(y0, y1, PLOT.top + inner.h, -inner.h);
  const powers = (low, high) => { const found = []; for (let p = Math.ceil(Math.log10(low)); 10 ** p <= high; p++) found.push(10 ** p); return found; };
  const roof = (flops, bandwidth, kind, name) => [
    draw("path", { class: "roof " + kind, d: `M${x(x0)} ${y(x0 * bandwidth)}L${x(flops / bandwidth)} ${y(flops)}L${x(x1)} ${y(flops)}` }),
    draw("text", { x: kind === "cache" ? x(x0 * 1.4) : PLOT.left + inner.w - 8, y: kind === "cache" ? y(x0 * 1.4 * bandwidth) + 18 : y(flops) - 6, class: kind === "cache" ? "roof-name" : "roof-name end" }, name)];
  const most = Math.max(...steps.map(([s]) => timeOf(R, s) || 0), 1e-12);
  const dots = steps.map(([s, n]) => draw("circle", { cx: x(s.flops / s.bytes), cy: y(reached(s)), r: 4 + 12 * Math.sqrt((timeOf(R, s) || 0) / most),
    class: "dot bound-" + s.bound, "data-steps": n, "data-kind": "step", "data-number": n, onclick: () => select("step", n) },
    draw("title", {}, `${stepTitle(s)}: ${layerNames(R, s.layers, s.loc)}\n${digits(s.flops / s.bytes)} FLOP/byte, ${quantity(reached(s))}FLOP/s, ${seconds(timeOf(R, s))}`)));
  const special = top > peaks.flops ? roof(top, peaks.bandwidth, "special", `special instructions ${quantity(top)}FLOP/s`) : [];
  return el("div", {}, el("h2", {}, "Roofline"),
    el("p", {}, machine(peaks), measured(R) ? ". Dots are steps at their measured rates, as large as the time they take." : ". Nothing was measured: dots are on the roof."),
    el("p", { class: "legend" }, [...new Set(steps.map(([s]) => s.bound))].map((name) => el("span", { class: "chip bound-" + name }, name))),
    marks("roofline", frame("roofline", powers(x0, x1).map((v) => tickX(x(v), digits(v))), powers(y0, y1).map((v) => tickY(y(v), quantity(v))),
      special, roof(peaks.flops, peaks.bandwidth, "memory", `${quantity(peaks.flops)}FLOP/s`), roof(peaks.flops, peaks.cache_bandwidth, "cache", "cache"), dots,
      axes("operations per byte", "operations per second"))));
}
