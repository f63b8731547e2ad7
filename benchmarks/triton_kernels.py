"""Triton's kernels for the shapes of cuda_static.py, compiled without a GPU.

    pip install triton numpy          (in an environment of its own; graphc is not needed)
    python benchmarks/triton_kernels.py FOLDER [--arch 80,90] [--only TEXT]

Kernels are written as Triton's tutorials write theirs, for sizes that tiles divide. FOLDER gets for
each shape, architecture and configuration its cubin, its PTX, and a .json with what a launch is:
the name, blocks, threads, bytes of shared memory, and arguments (bytes of a buffer, or a number).
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP = 32
HEADS = 15


@triton.jit
def product(
    a, b, bias, c,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    SUM: tl.constexpr, GELU: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    """c = a b, or gelu(a b + bias): tiles of M x N, groups of rows of tiles for the cache."""
    number = tl.program_id(0)
    across: tl.constexpr = COLUMNS // N
    first = number // (GROUP * across) * GROUP
    height = tl.minimum(ROWS // M - first, GROUP)
    row = (first + number % height) * M + tl.arange(0, M)
    column = number % (GROUP * across) // height * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    left = a + row[:, None] * DEPTH + depth[None, :]
    right = b + depth[:, None] * COLUMNS + column[None, :]
    total = tl.zeros((M, N), dtype=SUM)
    for _ in range(DEPTH // K):
        x, y = tl.load(left), tl.load(right)
        total = tl.dot(x, y, total, input_precision="tf32" if TF32 else "ieee", out_dtype=SUM)
        left += K
        right += K * COLUMNS
    if GELU:
        total += tl.load(bias + column)[None, :].to(tl.float32)
        total = 0.5 * total * (1 + tl.erf(total * 0.7071067811865476))
    tl.store(c + row[:, None] * COLUMNS + column[None, :], total.to(c.dtype.element_ty))


@triton.jit
def attend(
    x, k, v, row, column, depth, place, largest, total, sums, MASKED: tl.constexpr
):  # fmt: skip
    """What rows have seen, and further keys; `place`: of the first element of each key."""
    scale: tl.constexpr = 1.4426950408889634 / 8
    s = tl.dot(x, tl.load(k + place[None, :] + depth[:, None]))
    if MASKED:
        s = tl.where(row[:, None] >= column[None, :], s, float("-inf"))
    most = tl.maximum(largest, tl.max(s, 1) * scale)
    p = tl.math.exp2(s * scale - most[:, None])
    back = tl.math.exp2(largest - most)
    total = total * back + tl.sum(p, 1)
    sums = sums * back[:, None]
    sums = tl.dot(p.to(tl.float16), tl.load(v + place[:, None] + depth[None, :]), sums)
    return most, total, sums


@triton.jit
def attention(
    q, k, v, o, LENGTH: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Flash attention of a head and M rows: full tiles, then, if causal, those at the diagonal."""
    first = tl.program_id(0) % (LENGTH // M) * M
    head = tl.program_id(0) // (LENGTH // M) * LENGTH * D
    row, depth, key = first + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    x = tl.load(q + head + row[:, None] * D + depth[None, :])
    largest = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    end = first if CAUSAL else LENGTH
    for start in range(0, end, N):
        column = start + key
        largest, total, sums = attend(
            x, k, v, row, column, depth, head + column * D, largest, total, sums, False
        )
    if CAUSAL:
        for start in range(first, first + M, N):
            column = start + key
            largest, total, sums = attend(
                x, k, v, row, column, depth, head + column * D, largest, total, sums, True
            )
    sums = sums / total[:, None]
    tl.store(o + head + row[:, None] * D + depth[None, :], sums.to(tl.float16))


@triton.jit
def convolution(
    x, w, y, SIDE: tl.constexpr, C: tl.constexpr, COUNT: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """3 x 3, padded by 1, NHWC times [9 C, COUNT]: an implicit GEMM."""
    across: tl.constexpr = COUNT // N
    row = tl.program_id(0) // across * M + tl.arange(0, M)
    column = tl.program_id(0) % across * N + tl.arange(0, N)
    image, at = row // (SIDE * SIDE), row % (SIDE * SIDE)
    i, j, depth = at // SIDE, at % SIDE, tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(9 * C // K):
        tap, c = step // (C // K), step % (C // K) * K
        p, q = i + tap // 3 - 1, j + tap % 3 - 1
        inside = (p >= 0) & (p < SIDE) & (q >= 0) & (q < SIDE)
        place = ((image * SIDE + p) * SIDE + q) * C + c
        left = tl.load(x + place[:, None] + depth[None, :], mask=inside[:, None], other=0.0)
        right = tl.load(w + (step * K + depth)[:, None] * COUNT + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(y + row[:, None] * COUNT + column[None, :], total.to(tl.float16))


@triton.jit
def softmax(x, y, LENGTH: tl.constexpr):
    place = tl.program_id(0) * LENGTH + tl.arange(0, LENGTH)
    value = tl.load(x + place)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + place, value / tl.sum(value, 0))


@triton.jit
def layer_norm(x, scale, bias, y, LENGTH: tl.constexpr):
    column = tl.arange(0, LENGTH)
    place = tl.program_id(0) * LENGTH + column
    value = tl.load(x + place)
    value -= tl.sum(value, 0) / LENGTH
    value *= tl.rsqrt(tl.sum(value * value, 0) / LENGTH + 1e-5)
    tl.store(y + place, value * tl.load(scale + column) + tl.load(bias + column))


@triton.jit
def gelu(x, y, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place).to(tl.float32)
    value = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    tl.store(y + place, value.to(tl.float16))


@triton.jit
def add(x, z, y, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place) + tl.load(z + place))


BYTES = {"fp16": 2, "fp32": 4, "i8": 1, "i32": 4}


def products(rows, columns, depth, type, out, activation=False):
    """A launch of a product for each tile that is usual: M, N, K, warps, stages."""
    sum = tl.int32 if type == "i8" else tl.float32
    wide = {"fp32": 32, "i8": 128}.get(type, 64)
    tiles = [(128, 256, wide, 8, 3), (128, 128, wide, 8, 3), (128, 128, wide // 2, 4, 4),
             (64, 128, wide, 4, 4), (64, 64, wide, 4, 4), (32, 64, wide, 4, 5)]  # fmt: skip
    for m, n, k, warps, stages in tiles:
        size = stages * k * (m + n) * BYTES[type]
        if rows % m or columns % n or size > 160 << 10:
            continue
        constants = {
            "ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "M": m, "N": n, "K": k, "GROUP": 8,
            "SUM": sum, "GELU": activation, "TF32": type == "fp32",
        }  # fmt: skip
        buffers = {"a": (type, rows * depth), "b": (type, depth * columns),
                   "bias": ("fp32", columns), "c": (out, rows * columns)}  # fmt: skip
        grid = rows // m * (columns // n)
        yield f"{m}x{n}x{k}, {warps} warps, {stages} stages", product, constants, buffers, grid, {
            "num_warps": warps, "num_stages": stages}  # fmt: skip


def attentions(causal):
    for m, n, warps, stages in ((128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3)):
        constants = {"LENGTH": 4096, "D": 64, "M": m, "N": n, "CAUSAL": causal}
        buffers = {name: ("fp16", HEADS * 4096 * 64) for name in "qkvo"}
        grid = 4096 // m * HEADS
        yield f"{m}x{n}, {warps} warps, {stages} stages", attention, constants, buffers, grid, {
            "num_warps": warps, "num_stages": stages}  # fmt: skip


def convolutions():
    for m, n, warps, stages in ((128, 128, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3)):
        constants = {"SIDE": 14, "C": 256, "COUNT": 256, "M": m, "N": n, "K": 64}
        rows = 32 * 14 * 14
        buffers = {"x": ("fp16", rows * 256), "w": ("fp16", 9 * 256 * 256),
                   "y": ("fp16", rows * 256)}  # fmt: skip
        yield f"{m}x{n}x64, {warps} warps, {stages} stages", convolution, constants, buffers, (
            rows // m * (256 // n)), {"num_warps": warps, "num_stages": stages}  # fmt: skip


def rows(kernel, count, length, warps, *names):
    buffers = {"x": ("fp32", count * length), **{n: ("fp32", length) for n in names},
               "y": ("fp32", count * length)}  # fmt: skip
    yield f"{warps} warps", kernel, {"LENGTH": length}, buffers, count, {"num_warps": warps}


def elements(kernel, *names):
    count = 4096 * 4096
    buffers = {name: ("fp16", count) for name in names}
    yield "blocks of 2048", kernel, {"BLOCK": 2048}, buffers, count // 2048, {"num_warps": 8}


SHAPES = {
    "gemm": lambda: products(4096, 4096, 4096, "fp16", "fp16"),
    "ffn 128": lambda: products(128, 3072, 768, "fp16", "fp16", True),
    "ffn 4096": lambda: products(4096, 3072, 768, "fp16", "fp16", True),
    "gemm tf32": lambda: products(4096, 4096, 4096, "fp32", "fp32"),
    "gemm int8": lambda: products(4096, 4096, 4096, "i8", "i32"),
    "attention": lambda: attentions(False),
    "attention causal": lambda: attentions(True),
    "convolution": convolutions,
    "layer norm": lambda: rows(layer_norm, 4096, 1024, 4, "scale", "bias"),
    "softmax": lambda: rows(softmax, 4096, 1024, 4),
    "gelu": lambda: elements(gelu, "x", "y"),
    "add": lambda: elements(add, "x", "z", "y"),
}


def compiled(kernel, constants, buffers, options, arch):
    """A kernel for an architecture; pointers are multiples of 16."""
    signature = {name: f"*{type}" for name, (type, _) in buffers.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    order = {name: n for n, name in enumerate(kernel.arg_names)}
    hints = {(order[name],): [["tt.divisibility", 16]] for name in buffers}
    source = ASTSource(kernel, signature, {(order[n],): v for n, v in constants.items()}, hints)
    return triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="80,90")
    parser.add_argument("--only", default="", help="shapes that hold this text")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for shape, launches in SHAPES.items():
        for arch in map(int, given.arch.split(",")) if given.only in shape else ():
            for number, (how, kernel, constants, buffers, grid, options) in enumerate(launches()):
                path = given.folder / f"{shape.replace(' ', '_')}_{arch}_{number}"
                if path.with_suffix(".json").exists():
                    continue
                try:
                    made = compiled(kernel, constants, buffers, options, arch)
                except Exception:
                    print(f"{path.name}: {traceback.format_exc()[-300:]}", flush=True)
                    continue
                path.with_suffix(".cubin").write_bytes(made.asm["cubin"])
                path.with_suffix(".ptx").write_text(made.asm["ptx"])
                told = {
                    "shape": shape, "how": how, "name": made.metadata.name, "grid": grid,
                    "threads": WARP * options["num_warps"], "shared": made.metadata.shared,
                    "buffers": [BYTES[type] * count for type, count in buffers.values()],
                    "triton": triton.__version__,
                }  # fmt: skip
                path.with_suffix(".json").write_text(json.dumps(told))
                print(path.name, how, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
