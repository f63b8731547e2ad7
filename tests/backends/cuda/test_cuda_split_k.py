"""Few outputs of many products: partial sums, added up in a fixed order."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import cuda_of, graph_of, inputs_of, needs_compiler

from graphc.backends.cuda import emit
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.simulator.profile import profile
from graphc.driver import program_for
from graphc.ir.interp import interpret

GRAPHS = {
    "square": """graph @g(%x: f32[20,2048]) -> ? {
  const %w : f32[2048,24] = random(seed=1)
  const %b : f32[24] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}""",
    "one row": """graph @g(%x: f32[1,6000]) -> ? {
  const %w : f32[6000,30] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}""",
    "convolution": """graph @g(%x: f32[1,128,4,4]) -> ? {
  const %w : f32[16,128,3,3] = random(seed=1)
  %a = Conv(%x, %w) {pads=[1,1,1,1]}
  %y = Relu(%a)
  return %y
}""",
    "batch": """graph @g(%x: f32[2,12,1024], %w: f32[2,1024,12]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}""",
    "images": """graph @g(%x: f32[2,12,91,69]) -> ? {
  const %w : f32[37,12,1,1] = random(seed=1)
  %c = Conv(%x, %w)
  %r = Relu(%c)
  %y = GlobalAveragePool(%r)
  return %y
}""",
    "patches": """graph @g(%x: f32[1,32,32,32]) -> ? {
  const %w : f32[32,32,8,8] = random(seed=1)
  %n = Transpose(%x) {perm=[0,3,1,2]}
  %y = Conv(%n, %w) {strides=[8,8]}
  return %y
}""",
    "prime depth": """graph @g(%x: f32[12,4099]) -> ? {
  const %w : f32[4099,24] = random(seed=1)
  const %b : f32[24] = random(seed=2)
  %a = MatMul(%x, %w)
  %y = Add(%a, %b)
  return %y
}""",
    "columns": """graph @g(%x: f16[5000,45]) -> ? {
  const %a : i64[1] = [0]
  %y = ReduceMean(%x, %a)
  return %y
}""",
}


def is_split(text: str) -> bool:
    steps = emit(program_for(graph_of(text), "cuda")).steps
    return any(step.function.startswith("total") for step in steps)


@needs_compiler
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_partial_sums_add_up(name, precision):
    source = emit(program_for(graph_of(GRAPHS[name]), "cuda", precision=precision))
    functions = [step.function.split("_")[0] for step in source.steps]
    assert "total" in functions
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(GRAPHS[name]), inputs)
    error = np.abs(found - wanted).max() / np.ptp(wanted)
    assert error < (1e-5 if precision == "f32" else 2e-3)


@needs_compiler
def test_parts_do_not_share_what_is_contiguous():
    """Parts are rows of the windows, not some of the channels."""
    source = cuda_of(GRAPHS["patches"])
    first = profile(source, inputs_of(source.program))[0]
    assert first.steps[0].function.startswith("tiles")
    assert first.total.coalescing == 1 and first.wasted == 0


def test_large_grids_and_short_sums_are_not_split():
    assert is_split(GRAPHS["square"])
    assert not is_split(GRAPHS["square"].replace("20,2048", "4000,2048"))
    assert not is_split(GRAPHS["square"].replace("2048", "320"))
    assert not is_split(GRAPHS["one row"].replace("6000", "1000"))
    assert not is_split(GRAPHS["columns"].replace("5000", "500"))


COLUMNS = """graph @g(%x: f32[3,300,45]) -> ? {
  const %a : i64[1] = [1]
  %m = ReduceMax(%x, %a) {keepdims=0}
  %y = Exp(%m)
  return %y
}"""


@needs_compiler
def test_warps_share_columns():
    """Lanes belong to columns, some of which do not exist; a missing barrier is caught."""
    source = cuda_of(COLUMNS)
    (step,) = source.steps
    assert (step.function, step.grid, step.block) == ("rows_0", 17, 512)
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0, 1, 2))(inputs)
    np.testing.assert_allclose(found, np.exp(inputs[0].max(1)), 1e-5)
    broken = replace(source, text=source.text.replace("__syncthreads();", ""))
    with pytest.raises(SimulationError, match="no barrier between|unwritten element"):
        simulate(broken)(inputs)


@needs_compiler
def test_long_sums_are_split():
    source = cuda_of("""graph @g(%x: f32[1048576]) -> ? {
  %y = ReduceSum(%x) {keepdims=0}
  return %y
}""")
    assert len(source.steps) == 2
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    np.testing.assert_allclose(found, inputs[0].sum(dtype=np.float64), 1e-4)
