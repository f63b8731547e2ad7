"""What hot kernels of the zoo may take of a GPU, kept in kernel_budgets.json.

    python tests/backends/cuda/kernel_budgets.py [--update]

Lists what kernels take where that is not what the file says; --update writes it into the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cuda_programs import attention_of, graph_of

from graphc.backends.cuda import emit
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.prediction.model import code_of
from graphc.backends.cuda.prediction.sass import disassembled
from graphc.driver import program_for

FILE = Path(__file__).with_suffix(".json")
ARCHS = ("sm_80", "sm_90a")


def _product(rows: int, columns: int, depth: int, type: str = "f16") -> str:
    return f"""graph @g(%x: {type}[{rows},{depth}], %w: {type}[{depth},{columns}]) -> ? {{
  %y = MatMul(%x, %w)
  return %y
}}"""


def _convolution(channels: int, size: int, kernel: int, type: str = "f32") -> str:
    pad = kernel // 2
    return f"""graph @g(%x: {type}[1,{channels},{size},{size}]) -> ? {{
  const %w : {type}[{channels},{channels},{kernel},{kernel}] = random(seed=1)
  const %b : {type}[{channels}] = random(seed=2)
  %c = Conv(%x, %w, %b) {{pads=[{pad},{pad},{pad},{pad}]}}
  %y = Relu(%c)
  return %y
}}"""


NORMALISED = """graph @g(%x: f32[128,768], %r: f32[128,768]) -> ? {
  const %s : f32[768] = random(seed=1)
  const %b : f32[768] = random(seed=2)
  %a = Add(%x, %r)
  %y = LayerNormalization(%a, %s, %b)
  return %y
}"""
SOFTMAX = """graph @g(%x: f32[1024,1024]) -> ? {
  %y = Softmax(%x)
  return %y
}"""
GRAPHS = {
    "square product": (_product(4096, 4096, 4096), "f32"),
    "bert feed-forward": (_product(128, 3072, 768), "f32"),
    "bert projection, tf32": (_product(128, 768, 768, "f32"), "tf32"),
    "resnet convolution": (_convolution(256, 14, 3), "f16"),
    "resnet convolution, f32": (_convolution(256, 14, 3), "f32"),
    "bert attention": (attention_of("f16", 12, 128, 128, 64).replace("[1,2,", "[1,12,"), "f32"),
    "long attention": (attention_of("f16", 16, 4096, 4096, 64), "f32"),
    "causal attention": (attention_of("f16", 16, 4096, 4096, 64, "is_causal=1"), "f32"),
    "layer norm": (NORMALISED, "f32"),
    "softmax": (SOFTMAX, "f32"),
}


def taken(name: str, arch: str) -> dict[str, dict[str, Any]]:
    """What each kernel of a graph takes: registers, spills and instructions for each product."""
    text, precision = GRAPHS[name]
    source = emit(program_for(graph_of(text), "cuda", precision=precision, arch=arch))
    kernels = disassembled(machine_code(source.text, arch))
    resources = {}
    for step in source.steps:
        code = code_of(kernels[step.function], step.shared)
        per_product = code.per_product and round(code.per_product, 2)
        resources[step.function] = {
            "registers": code.registers, "spills": code.spills, "shared": code.shared,
            "per_product": per_product,
        }  # fmt: skip
    return resources


def budgets() -> dict[str, dict[str, dict[str, Any]]]:
    """By graph and architecture, then by kernel."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--update", action="store_true", help="write what is taken into the file")
    update = parser.parse_args().update
    kept, made = budgets(), {}
    for name in GRAPHS:
        for arch in ARCHS:
            key = f"{name}, {arch}"
            made[key] = taken(name, arch)
            if made[key] != kept.get(key):
                print(f"{key}: {made[key]}, in the file {kept.get(key)}", flush=True)
    if update:
        FILE.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
