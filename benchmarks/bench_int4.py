"""MatMulNBits on one thread, against ONNX Runtime: products with random weights of 4 bits.

    python benchmarks/bench_int4.py                          # sizes as in a decoder
    python benchmarks/bench_int4.py --rows 1 64 --shape 1024x4096 --block 32 --bits 4 --level 0 4

Both run by turns in one process, on the same values; times are CPU time, the least of several
rounds, so other work on the machine matters little. `GB/s` are of codes and scales. `difference`
is the largest between the two, relative to the largest result.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphc

ROUNDS, SECONDS = 7, 0.15
SHAPES = ("1024x4096", "4096x1024", "1024x1536", "1024x32000")


def product(
    depth: int, columns: int, block: int, bits: int, level: int, zeros: bool, seed: int = 0
) -> tuple[ModelProto, int]:
    """A model of one product, y = x W, of any number of rows; and the bytes of W."""
    rng = np.random.default_rng(seed)
    blocks, per_byte = -(-depth // block), 8 // bits
    weights = [
        rng.integers(0, 256, (columns, blocks, block // per_byte)).astype(np.uint8),
        rng.uniform(0.01, 0.1, columns * blocks).astype(np.float32),
    ]
    if zeros:
        weights.append(rng.integers(0, 256, columns * -(-blocks // per_byte)).astype(np.uint8))
    names = ["codes", "scales", "zeros"][: len(weights)]
    node = helper.make_node(
        "MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=depth, N=columns,
        block_size=block, bits=bits, accuracy_level=level,
    )  # fmt: skip
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])]
        for name, width in (("x", depth), ("y", columns))
    ]
    constants = [numpy_helper.from_array(w, name) for w, name in zip(weights, names)]
    graph = helper.make_graph([node], "product", *infos, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model, sum(w.nbytes for w in weights)


def seconds(runs: Sequence[Callable[[], object]]) -> list[float]:
    """CPU seconds of each, the least of several rounds in which all take turns."""
    counts, best = [], [float("inf")] * len(runs)
    for run in runs:
        run()
        start = time.process_time()
        run()
        counts.append(max(1, int(SECONDS / max(time.process_time() - start, 1e-6))))
    for _ in range(ROUNDS):
        for n, (run, count) in enumerate(zip(runs, counts)):
            start = time.process_time()
            for _ in range(count):
                run()
            best[n] = min(best[n], (time.process_time() - start) / count)
    return best


def compare(proto: ModelProto, size: int, rows: int, depth: int) -> str:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    model = graphc.compile(proto, threads=1)
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    (ours,), (theirs,) = model.run({"x": x}), session.run(None, {"x": x})
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    own, other = seconds([lambda: model.run({"x": x}), lambda: session.run(None, {"x": x})])
    return (
        f"{own * 1e6:9.0f} us {size / own / 1e9:6.1f} GB/s  ONNX Runtime {other * 1e6:9.0f} us "
        f"{size / other / 1e9:6.1f} GB/s  ratio {other / own:5.2f}  difference {difference:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", nargs="+", default=SHAPES, help="depth x columns")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--block", nargs="+", type=int, default=[32])
    parser.add_argument("--bits", nargs="+", type=int, default=[4])
    parser.add_argument("--level", nargs="+", type=int, default=[0, 4])
    parser.add_argument("--zeros", action="store_true", help="with zero points")
    args = parser.parse_args()
    for shape, rows, block, bits, level in itertools.product(
        args.shape, args.rows, args.block, args.bits, args.level
    ):
        depth, columns = map(int, shape.split("x"))
        proto, size = product(depth, columns, block, bits, level, args.zeros)
        told = f"{shape:>11} rows {rows:4} block {block:4} bits {bits} level {level}"
        print(told, compare(proto, size, rows, depth), flush=True)


if __name__ == "__main__":
    main()
