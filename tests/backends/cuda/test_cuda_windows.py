"""Sliding windows: depthwise and grouped convolutions and pooling, of awkward sizes and types."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import (
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.windows.kernel import lower_windows
from graphc.backends.cuda.strategies.windows.patches import Patch
from graphc.driver import optimise
from graphc.ir.interp import interpret
from graphc.passes.lower import Conventions, lower
from graphc.targets.cuda import Cuda

DEPTHWISE = """graph @g(%x: {t}[2,24,13,11]) -> ? {{
  const %w : {t}[24,1,3,3] = random(seed=1)
  const %b : {t}[24] = random(seed=2)
  const %p : {t}[24,24,1,1] = random(seed=3)
  %m = Conv(%x, %p)
  %n = Relu(%m)
  %c = Conv(%n, %w, %b) {{group=24, pads=[1,1,1,1]}}
  %y = Clip(%c)
  return %y
}}"""
STRIDED = """graph @g(%x: f32[1,10,17,9]) -> ? {
  const %w : f32[10,1,5,3] = random(seed=1)
  const %p : f32[10,10,1,3] = random(seed=3)
  %n = Conv(%x, %p) {pads=[0,1,0,1]}
  %c = Conv(%n, %w) {group=10, pads=[2,0,1,3], strides=[2,3], dilations=[1,2]}
  %y = Mul(%c, %c)
  return %y
}"""
LARGE_WINDOW = """graph @g(%x: f32[1,8,9,15]) -> ? {
  const %w : f32[8,1,7,7] = random(seed=1)
  const %p : f32[8,8,1,3] = random(seed=3)
  %n = Conv(%x, %p) {pads=[0,1,0,1]}
  %y = Conv(%n, %w) {group=8, pads=[3,3,3,3]}
  return %y
}"""
MULTIPLIER = """graph @g(%x: f32[1,6,8,7]) -> ? {
  const %w : f32[18,1,3,3] = random(seed=1)
  const %p : f32[6,6,1,1] = random(seed=3)
  %n = Conv(%x, %p)
  %y = Conv(%n, %w) {group=6, pads=[1,1,1,1]}
  return %y
}"""
GROUPED = """graph @g(%x: f32[2,12,7,9]) -> ? {
  const %w : f32[24,4,3,3] = random(seed=1)
  const %p : f32[12,12,1,1] = random(seed=3)
  %n = Conv(%x, %p)
  %c = Conv(%n, %w) {group=3, pads=[1,1,1,1], strides=[2,1]}
  %y = Add(%c, %c)
  return %y
}"""
SEQUENCE = """graph @g(%x: f32[2,20,31]) -> ? {
  const %w : f32[20,1,4] = random(seed=1)
  const %p : f32[20,20,1] = random(seed=3)
  %n = Conv(%x, %p)
  %y = Conv(%n, %w) {group=20, pads=[3,0]}
  return %y
}"""
VOLUME = """graph @g(%x: f32[1,4,5,6,7]) -> ? {
  const %w : f32[4,1,3,2,3] = random(seed=1)
  const %p : f32[4,4,1,1,3] = random(seed=3)
  %n = Conv(%x, %p) {pads=[0,0,1,0,0,1]}
  %y = Conv(%n, %w) {group=4, pads=[1,1,1,1,0,1]}
  return %y
}"""
GIVEN = """graph @g(%x: f32[1,8,9,7], %w: f32[8,1,3,3]) -> ? {
  %y = Conv(%x, %w) {group=8}
  return %y
}"""
BYTES = """graph @g(%x: i8[1,16,9,7]) -> ? {
  const %w : i8[16,1,3,3] = random(seed=1)
  const %p : i8[16,16,1,1] = random(seed=3)
  const %z : i8[] = 5
  %m = ConvInteger(%x, %p)
  %n = Cast(%m) {to=3}
  %y = ConvInteger(%n, %w, %z) {group=16, pads=[1,1,1,1]}
  return %y
}"""
LARGEST = """graph @g(%x: f32[2,12,15,13]) -> ? {
  const %w : f32[12,12,1,3] = random(seed=1)
  %c = Conv(%x, %w) {pads=[0,1,0,1]}
  %y = MaxPool(%c) {kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}
  return %y
}"""
MEAN = """graph @g(%x: f32[1,12,11,9]) -> ? {
  const %w : f32[12,12,1,3] = random(seed=1)
  %c = Conv(%x, %w) {pads=[0,1,0,1]}
  %y = AveragePool(%c) {kernel_shape=[2,3], strides=[2,1], pads=[1,1,0,1]}
  return %y
}"""
GRAPHS = {
    "depthwise": DEPTHWISE.format(t="f32"), "halves": DEPTHWISE.format(t="f16"),
    "bf16": DEPTHWISE.format(t="bf16"), "doubles": DEPTHWISE.format(t="f64"),
    "strided": STRIDED, "large_window": LARGE_WINDOW, "multiplier": MULTIPLIER,
    "grouped": GROUPED, "sequence": SEQUENCE, "volume": VOLUME,
    "bytes": BYTES, "largest": LARGEST, "mean": MEAN,
}  # fmt: skip
TOLERANCE = {"halves": 2e-3, "bf16": 2e-2}


def check(source: CudaSource, text: str, tolerance: float = 1e-5) -> None:
    inputs = inputs_of(source.program)
    for found, wanted in zip(simulate(source, (0, 1))(inputs), interpret(graph_of(text), inputs)):
        wanted = wanted.astype(np.float64)
        spread = tolerance * np.ptp(wanted)
        np.testing.assert_allclose(found.astype(np.float64), wanted, tolerance, spread)


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_windows_agree_with_the_interpreter(name):
    source = cuda_of(GRAPHS[name])
    assert any(step.function.startswith("window") for step in source.steps)
    check(source, GRAPHS[name], TOLERANCE.get(name, 1e-5))


def in_patches(text: str, patch: Patch) -> CudaSource:
    """A graph whose windows are computed in such patches."""
    graph = optimise(graph_of(text), target=Cuda())
    first = [lambda c: lower_windows(c, machine(), patch)]
    return emit(lower(graph, [*first, *strategies()], wanted=Conventions(alignment=16)))


@needs_compiler
@pytest.mark.parametrize(
    "patch",
    [Patch(1, 1, 4, 1), Patch(1, 7, 4, 1), Patch(2, 4, 8, 0), Patch(4, 2, 1, 0), Patch(7, 8, 2, 0)],
    ids=lambda p: f"{p.rows}x{p.columns}x{p.channels}",
)
@pytest.mark.parametrize("name", ["depthwise", "largest"])
def test_every_patch(name, patch):
    if name == "largest":
        patch = replace(patch, channels=min(patch.channels, 4))
    check(in_patches(GRAPHS[name], patch), GRAPHS[name])


def test_patches_grow_with_the_problem():
    """Registers are filled where there are many outputs; else there are many threads."""

    def outputs_of_a_thread(shape: str) -> float:
        source = cuda_of(DEPTHWISE.format(t="f32").replace("2,24,13,11", shape))
        (step,) = (s for s in source.steps if s.function.startswith("window"))
        return step.slots[-1].elements / (step.grid * step.block)

    assert outputs_of_a_thread("2,24,13,11") < 2
    assert outputs_of_a_thread("32,24,112,112") > 8


def test_weights_that_are_given_are_read_in_place():
    source = cuda_of(GIVEN)
    assert not source.program.constants


def test_ordinary_convolutions_are_no_windows():
    text = GRAPHS["depthwise"].replace("24,1,3,3", "24,24,3,3").replace("group=24, ", "")
    assert not any(s.function.startswith("window") for s in cuda_of(text).steps)


@needs_compiler
def test_weights_given_at_run_time():
    check(cuda_of(GIVEN), GIVEN)


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [(r" >= 0", " >= -1"), (r" \+ 3 < 11", " + 3 < 12"), (r"store_vector\(out0.*", "")],
    ids=["halo", "last patch", "unwritten"],
)
def test_faults_are_caught(right, wrong):
    source = in_patches(GRAPHS["depthwise"], Patch(1, 8, 4, 1))
    head, mark, text = source.text.partition(") window_")
    changed = re.sub(right, wrong, text, count=1 if not wrong else 0)
    assert changed != text
    inputs = inputs_of(source.program)
    with pytest.raises(SimulationError):
        simulate(replace(source, text=head + mark + changed), (0,))(inputs)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_windows(arch):
    for name in ("depthwise", "halves", "bf16", "bytes", "grouped", "largest"):
        assert compile_cuda(cuda_of(GRAPHS[name]).text, arch, strict=True)
