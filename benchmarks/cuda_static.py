"""Kernels of CUDA for 12 shapes, of graphc and of others, compared without a GPU.

    python benchmarks/triton_kernels.py FOLDER       (where Triton is installed)
    nvcc ... benchmarks/cutlass_gemms.cu             (says how)
    python benchmarks/cuda_static.py [--foreign FOLDER] [--cutlass gemms_sm_80.cubin ...]
        [--arch sm_80,sm_90a] [--only TEXT] [--all]

What Triton made lies in FOLDER: cubins, PTX and .json files, as triton_kernels.py writes them. All
are measured alike: registers, spills, shared memory and instructions for each product of matrix
cores are read off the machine code; two blocks run in the PTX machine, and the model of `inspect
--machine-code` predicts the time. Of several configurations the fastest one is listed. Of CUTLASS's
kernels machine code is read alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphc.analysis.text import duration, table
from graphc.backends.cuda import emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.prediction.model import Code, Launched, Prediction, code_of, predicted
from graphc.backends.cuda.prediction.report import inspected
from graphc.backends.cuda.prediction.sample import BUDGET, Sample, counted, of_grid
from graphc.backends.cuda.prediction.sass import disassembled
from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels
from graphc.backends.cuda.ptx.kernels import Buffer, device_memory
from graphc.driver import program_for
from graphc.ir.text.parser import parse_graph
from graphc.passes.specialise import specialise

OURS = "graphc"


def _graph(params: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"graph @g({params}) -> ? {{\n{body}\n  return %y\n}}"


def _feed_forward(rows: int) -> str:
    return _graph(
        f"%x: f16[{rows},768]",
        "const %w : f16[768,3072] = random(seed=1)", "const %b : f16[3072] = random(seed=2)",
        "%m = MatMul(%x, %w)", "%a = Add(%m, %b)", "%y = Gelu(%a)",
    )  # fmt: skip


def _attention(options: str) -> str:
    params = ", ".join(f"%{name}: f16[1,15,4096,64]" for name in "qkv")
    return _graph(params, f"%y = Attention(%q, %k, %v) {{{options}}}")


SQUARE = "4096,4096"
SHAPES = {
    "gemm": (_graph(f"%x: f16[{SQUARE}], %w: f16[{SQUARE}]", "%y = MatMul(%x, %w)"), "f32"),
    "ffn 128": (_feed_forward(128), "f32"),
    "ffn 4096": (_feed_forward(4096), "f32"),
    "gemm tf32": (_graph(f"%x: f32[{SQUARE}], %w: f32[{SQUARE}]", "%y = MatMul(%x, %w)"), "tf32"),
    "gemm int8": (
        _graph(f"%x: i8[{SQUARE}]", f"const %w : i8[{SQUARE}] = random(seed=1)",
               "%y = MatMulInteger(%x, %w)"), "f32"),
    "attention": (_attention(""), "f32"),
    "attention causal": (_attention("is_causal=1"), "f32"),
    "convolution": (
        _graph("%x: f16[32,14,14,256]", "const %w : f16[256,256,3,3] = random(seed=1)",
               "%a = Transpose(%x) {perm=[0,3,1,2]}", "%c = Conv(%a, %w) {pads=[1,1,1,1]}",
               "%y = Transpose(%c) {perm=[0,2,3,1]}"), "f32"),
    "layer norm": (
        _graph("%x: f32[4096,1024]", "const %s : f32[1024] = random(seed=1)",
               "const %b : f32[1024] = random(seed=2)", "%y = LayerNormalization(%x, %s, %b)"),
        "f32"),
    "softmax": (_graph("%x: f32[4096,1024]", "%y = Softmax(%x)"), "f32"),
    "gelu": (_graph(f"%x: f16[{SQUARE}]", "%y = Gelu(%x)"), "f32"),
    "add": (_graph(f"%x: f16[{SQUARE}], %z: f16[{SQUARE}]", "%y = Add(%x, %z)"), "f32"),
}  # fmt: skip
"""Graphs, and the types in which they multiply."""


@dataclass(frozen=True)
class Measured:
    """The hottest kernel of a shape, and the time of all its launches, or why there is none."""

    shape: str
    arch: str
    whose: str
    how: str
    code: Code
    prediction: Prediction | None
    seconds: float
    why: str = ""


def own(shape: str, arch: str) -> Measured:
    """What graphc makes of a shape."""
    text, precision = SHAPES[shape]
    graph = specialise(parse_graph(text))
    kernels = inspected(emit(program_for(graph, "cuda", precision=precision, arch=arch)), arch)
    hottest = max(kernels, key=lambda kernel: kernel.seconds)
    launches = sum(len(kernel.steps) for kernel in kernels)
    name = hottest.steps[0].function.rpartition("_")[0]
    return Measured(
        shape, arch, OURS, name + (f" of {launches} launches" if launches > 1 else ""),
        hottest.code, hottest.prediction, sum(k.seconds for k in kernels), hottest.why,
    )  # fmt: skip


def foreign(folder: Path, shape: str, arch: str) -> Iterator[Measured]:
    """What lies in a folder for a shape."""
    stem = f"{shape.replace(' ', '_')}_{arch.removeprefix('sm_').rstrip('a')}"
    for path in sorted(folder.glob(f"{stem}_[0-9]*.json")):
        told = json.loads(path.read_text())
        whose = f"Triton {told['triton']}"
        sass = disassembled(path.with_suffix(".cubin").read_bytes())[told["name"]]
        code = code_of(sass, told["shared"])
        try:
            sample = of_grid(told["grid"], machine(arch), _runner(path.with_suffix(".ptx"), told))
        except (PtxError, PtxFault) as error:
            yield Measured(shape, arch, whose, told["how"], code, None, np.inf, str(error))
            continue
        size = sum(told["buffers"])
        launched = Launched(told["grid"], told["threads"], told["shared"], size, 0)
        prediction = predicted(sass, sample, launched, machine(arch))
        yield Measured(shape, arch, whose, told["how"], code, prediction, prediction.seconds)


def _runner(ptx: Path, told: dict[str, Any]) -> Callable[[int], Sample]:
    """Runs a block of a kernel by its number, on zeros."""
    kernels = PtxKernels(ptx.read_text(), BUDGET, counting=True)
    name, threads = told["name"], told["threads"]
    buffers = [_zeros(size) for size in told["buffers"]]
    scratch = len(kernels.code_of(name).parameters) - len(buffers)
    given = [*buffers, *(_zeros(16) for _ in range(scratch))]

    def run(block: int) -> Sample:
        kernels.launch(name, told["grid"], threads, given, shared=told["shared"], blocks=[block])
        return counted(kernels, name, threads)

    return run


def of_cutlass(cubin: Path, shape: str, arch: str) -> Iterator[Measured]:
    """The kernel of cutlass_gemms.cu or cutlass_hopper.cu for a shape: its machine code alone,
    without what a launch asks for."""
    for sass in disassembled(cubin.read_bytes()).values() if arch in cubin.stem else ():
        products = {i.opcode for i in sass.instructions if re.match(r"[HI]G?MMA", i.opcode)}
        whole, tf32 = any(p[0] == "I" for p in products), any("TF32" in p for p in products)
        if shape == ("gemm int8" if whole else "gemm tf32" if tf32 else "gemm"):
            yield Measured(shape, arch, "CUTLASS", "", code_of(sass, 0), None, np.inf, "not run")


def _zeros(size: int) -> Buffer:
    data = np.zeros(size, np.uint8)
    return Buffer(device_memory(data, np.ones(size, np.uint8)), 0, size, True)


def row(one: Measured, best: float) -> tuple[str, ...]:
    """A line of the table; `best`: the time of graphc."""
    code, told = one.code, one.prediction
    return (
        one.shape, one.arch, one.whose, one.how, str(code.registers), str(code.spills),
        f"{code.shared / 1024:.0f}", "" if code.per_product is None else f"{code.per_product:.2f}",
        "" if told is None or told.wide_loads is None else f"{100 * told.wide_loads:.0f}%",
        "" if told is None else duration(one.seconds), "" if told is None else told.bound,
        one.why[:60] if told is None else f"{one.seconds / best:.2f}",
    )  # fmt: skip


HEAD = ("shape", "arch", "of", "how", "registers", "spills", "KiB", "per product", "wide loads",
        "time", "bound", "times graphc's")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--foreign", type=Path, nargs="*", default=[])
    parser.add_argument("--cutlass", type=Path, nargs="*", default=[], help="NAME_sm_80.cubin ...")
    parser.add_argument("--arch", default="sm_80,sm_90a")
    parser.add_argument("--only", default="", help="shapes that hold this text")
    parser.add_argument("--all", action="store_true", help="all configurations, not the fastest")
    given = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for shape in SHAPES:
        for arch in given.arch.split(",") if given.only in shape else ():
            ours = own(shape, arch)
            made = [ours]
            for folder in given.foreign:
                others = sorted(foreign(folder, shape, arch), key=lambda one: one.seconds)
                made += others if given.all else others[:1]
            for cubin in given.cutlass:
                made += of_cutlass(cubin, shape, arch)
            for one in made:
                rows.append(row(one, ours.seconds))
                print(" | ".join(rows[-1]), flush=True)
    print(table([HEAD, *rows], left=4))
    return 0


if __name__ == "__main__":
    sys.exit(main())
