/* A model as a WebAssembly module of graphc against onnxruntime-web, in Node.js, by turns.

   npm install onnxruntime-web                       (in the folder that --peer names)
   graphc compile model.onnx --triple wasm32 -o web/model.wasm
   node benchmarks/bench_wasm.mjs model.onnx web --peer FOLDER [--rounds 7] [--runs 3]

   Both run on one thread with 128-bit vectors. A round times some runs of each by the CPU time of
   the process; the table has medians. Outputs are compared over the range of onnxruntime-web's. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    peer: { type: "string", default: "." },
    rounds: { type: "string", default: "7" },
    runs: { type: "string", default: "3" },
  },
});
const [onnx, folder] = positionals;
if (!onnx || !folder) {
  console.error("usage: node bench_wasm.mjs model.onnx FOLDER_OF_PACKAGE [--peer FOLDER]");
  process.exit(2);
}
const ort = createRequire(resolve(values.peer, "x.js"))("onnxruntime-web");
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(onnx), {
  executionProviders: ["wasm"],
});
const package_ = await import(resolve(folder, "index.js"));
const model = await package_.load();

const NAMES = { f32: "float32", i64: "int64" };

/* Numbers that are the same in every process: a linear congruential generator. */
let state = 12345;
const random = () => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) / 2 ** 32;

const arrays = package_.inputs.map(({ type, shape }) => {
  const count = shape.reduce((all, size) => all * size, 1);
  if (type === "i64") return BigInt64Array.from({ length: count }, () => 1n);  // an index, a mask
  return Float32Array.from({ length: count }, () => random() * 2 - 1);
});
const feeds = Object.fromEntries(
  package_.inputs.map(({ name, type, shape }, n) => [name, new ort.Tensor(NAMES[type], arrays[n], shape)]),
);

const expected = Object.values(await session.run(feeds))[0].data;
const [answer] = model.run(...arrays);
let range = 0, error = 0;
for (let n = 0; n < expected.length; n++) {
  range = Math.max(range, Math.abs(expected[n]));
  error = Math.max(error, Math.abs(expected[n] - answer[n]));
}

async function clock(run) {
  const start = process.cpuUsage();
  for (let n = 0; n < Number(values.runs); n++) await run();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000 / Number(values.runs);
}
const ours = [], theirs = [];
for (let n = 0; n < Number(values.rounds); n++) {
  ours.push(await clock(() => model.run(...arrays)));
  theirs.push(await clock(() => session.run(feeds)));
}
const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];
console.log(`graphc ${median(ours).toFixed(2)} ms, onnxruntime-web ${median(theirs).toFixed(2)} ms, ` +
  `ratio ${(median(theirs) / median(ours)).toFixed(2)}, error ${(error / range).toExponential(1)} of the range`);
