"""Programs for tests: from the text of a graph or of kernels to CUDA C, with inputs."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.nvcc import architectures, find_nvcc
from graphc.backends.cuda.prediction.sass import find_nvdisasm
from graphc.backends.cuda.simulator.profile import profile
from graphc.driver import program_for
from graphc.ir.graph import Graph
from graphc.ir.program import Program
from graphc.ir.text.constant_parser import random_array
from graphc.ir.text.parser import parse_graph
from graphc.passes.specialise import specialise

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
needs_nvdisasm = pytest.mark.skipif(find_nvdisasm() is None, reason="needs nvdisasm")

BRANCHES = """graph @branches(%x: f32[20,37]) -> (?, ?, ?) {
  const %a : f32[37,30] = random(seed=1)
  const %b : f32[37,30] = random(seed=2)
  const %c : f32[30,9] = random(seed=3)
  %l = MatMul(%x, %a)
  %s = Softmax(%l)
  %r = MatMul(%x, %b)
  %n = MatMul(%r, %c)
  %m = MatMul(%s, %c)
  %y = Sub(%m, %n)
  return %y, %l, %r
}"""
"""A graph whose branches may run at once."""


def graph_of(text: str) -> Graph:
    """A typed static graph."""
    return specialise(parse_graph(text))


def cuda_of(text: str) -> CudaSource:
    """The CUDA C of a graph."""
    return emit(program_for(graph_of(text), "cuda"))


def attention_of(dtype: str, heads: int, rows: int, keys: int, size: int, options: str = "") -> str:
    """A graph of one Attention of `heads` query and 2 key heads."""
    return f"""graph @g(%q: {dtype}[1,{heads},{rows},{size}], %k: {dtype}[1,2,{keys},{size}],
    %v: {dtype}[1,2,{keys},{size}]) -> ? {{
  %y = Attention(%q, %k, %v) {{{options}}}
  return %y
}}"""


def inputs_of(program: Program) -> list[np.ndarray]:
    """Random inputs."""
    return [random_array(t.static_shape, t.dtype, n) for n, (_, t) in enumerate(program.inputs)]


def bank_conflicts(program: Program, kind: str) -> dict[str, float]:
    """Wavefronts of a block of a kernel of this kind beyond the fewest, for each shared array."""
    conflicts: Counter[str] = Counter()
    for launch in profile(emit(program), inputs_of(program), blocks=1):
        if launch.steps[0].function.startswith(kind):
            for site, x in launch.sites.items():
                if x.wavefronts:
                    conflicts[site.array] += x.wavefronts - x.least_wavefronts
    return dict(conflicts)


@lru_cache
def chosen_architectures() -> tuple[str, ...]:
    """Those of sm_75, sm_80 and sm_90 that nvcc knows; none without nvcc."""
    known = architectures()
    return tuple(arch for arch in ("sm_75", "sm_80", "sm_90") if arch in known)
