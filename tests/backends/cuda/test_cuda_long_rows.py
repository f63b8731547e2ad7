"""Few rows of very many elements: reductions in parts, and kernels for what is left of rows."""

import numpy as np
import pytest
from cuda_programs import cuda_of, graph_of, inputs_of, needs_compiler

from graphc.backends.cuda import emit
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for
from graphc.ir.interp import interpret

BODIES = {
    "softmax": "%y = Softmax(%x) {axis=-1}",
    "log_softmax": "%y = LogSoftmax(%x) {axis=-1}",
    "layer_norm": "const %s : TYPE[LENGTH] = random(seed=1)\n  %y = LayerNormalization(%x, %s)",
    "rms_norm": "const %s : TYPE[LENGTH] = random(seed=1)\n  %y = RMSNormalization(%x, %s)",
    "unit": "%y = LpNormalization(%x) {axis=-1, p=2}",
    "logarithm": "const %a : i64[1] = [1]\n  %y = ReduceLogSumExp(%x, %a)",
    "norm": "const %a : i64[1] = [1]\n  %y = ReduceL2(%x, %a)",
    "position": "%y = ArgMax(%x) {axis=-1}",
}
TOLERANCE = {"f32": 1e-5, "f16": 4e-3}


def rows(operator: str, dtype: str, count: int, length: int) -> str:
    body = BODIES[operator].replace("TYPE", dtype).replace("LENGTH", str(length))
    return f"graph @g(%x: {dtype}[{count},{length}]) -> ? {{\n  {body}\n  return %y\n}}"


def kinds(text: str, arch: str = "sm_90") -> list[str]:
    source = emit(program_for(graph_of(text), "cuda", arch=arch))
    return [step.function.split("_")[0] for step in source.steps]


def check(text: str, tolerance: float, inputs: list[np.ndarray] | None = None) -> None:
    """The simulator does what the interpreter does, in kernels that fill a GPU."""
    source = cuda_of(text)
    grids = [step.grid for step in source.steps if not step.function.startswith("total")]
    assert len(source.steps) > 1 and min(grids) > 60
    inputs = inputs or inputs_of(source.program)
    (found,), (wanted,) = simulate(source)(inputs), interpret(graph_of(text), inputs)
    finite = wanted[np.isfinite(wanted)].astype(np.float64)
    scale = np.abs(finite).max(initial=0.0)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance * scale
    )


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("count, length", [(1, 262144), (2, 140001)])
@pytest.mark.parametrize("operator", BODIES)
def test_long_rows_are_cut(operator, count, length, dtype):
    check(rows(operator, dtype, count, length), TOLERANCE[dtype])


@needs_compiler
@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operator", ["softmax", "logarithm", "position"])
def test_what_is_no_number(operator, fill):
    x = np.random.default_rng(0).standard_normal((2, 140001)).astype(np.float32)
    x[0, [777, 99999, 140000]] = fill
    if fill < 0:
        x[1] = fill
    check(rows(operator, "f32", 2, 140001), 1e-5, [x])


SHAPES = {
    "columns": """graph @g(%x: f32[65537,33]) -> ? {
  %y = Softmax(%x) {axis=0}
  return %y
}""",
    "channels": """graph @g(%x: f32[7,4,149,151], %s: f32[4], %v: f32[4]) -> ? {
  %y = BatchNormalization(%x, %s, %s, %s, %v) {training_mode=1}
  return %y
}""",
    "apart": """graph @g(%x: f32[31,3,5003]) -> ? {
  const %a : i64[2] = [0, 2]
  %y = ReduceMean(%x, %a)
  return %y
}""",
    "all": """graph @g(%x: i32[3,17,13,499]) -> ? {
  %y = ReduceSum(%x)
  return %y
}""",
}


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_several_dimensions(name):
    check(SHAPES[name], 1e-5)


@needs_compiler
def test_independent_reductions_share_a_pass():
    text = """graph @g(%x: f32[1,262144]) -> ? {
  const %a : i64[1] = [1]
  %e = Mul(%x, %x)
  %m = ReduceMax(%e, %a)
  %n = ReduceMin(%e, %a)
  %r = Sub(%m, %n)
  %y = Div(%e, %r)
  return %y
}"""
    assert kinds(text) == ["rows", "total", "nest"]
    check(text, 1e-5)


@pytest.mark.suite
@pytest.mark.parametrize("length", [1 << 28, (1 << 28) - 57, 3 << 20])
@pytest.mark.parametrize("operator", BODIES)
def test_any_length_fills_a_gpu(operator, length):
    source = emit(program_for(graph_of(rows(operator, "f32", 1, length)), "cuda", arch="sm_90"))
    most = max(step.grid for step in source.steps)
    grids = [step.grid for step in source.steps if not step.function.startswith("total")]
    assert most > 100 and min(grids) > 100


@pytest.mark.suite
def test_inputs_are_read_twice():
    for operator in ("softmax", "log_softmax", "layer_norm"):
        assert kinds(rows(operator, "f16", 1, 1 << 28)) == ["rows", "total", "nest"]
    assert kinds(rows("logarithm", "f32", 4, 1 << 24)) == ["rows", "total"]


MOMENTS = {
    "rows": "f32[132,40001]",
    "aligned": "f32[132,65536]",
    "half": "f16[132,65536]",
    "parts": "f32[3,140001]",
}


@needs_compiler
@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("middle", [0, 1e3, 1e4])
def test_means_may_be_large(name, middle):
    """The variance does not cancel; what is left is by how much a mean is rounded."""
    text = f"""graph @g(%x: {MOMENTS[name]}) -> ? {{
  const %s : {MOMENTS[name][:3]}[1] = [1.0]
  %y = LayerNormalization(%x, %s)
  return %y
}}"""
    source = cuda_of(text)
    assert source.text.count("[block") <= 3 + 2 * (name == "parts")
    ((_, type),) = source.program.inputs
    middle = middle / 10 if name == "half" else middle  # digits are few
    x = np.random.default_rng(0).normal(middle, 1, type.static_shape).astype(type.dtype.np)
    x[1, 0] = middle * 2 + 3
    (found,), wide = simulate(source)([x]), x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    rounded = 2e-3 if type.dtype.bits == 16 else 1e-6
    np.testing.assert_allclose(found.astype(np.float64), wanted, rounded, middle * 2e-7 + rounded)


@needs_compiler
def test_what_is_no_number_has_no_variance():
    x = np.ones((132, 40001), np.float32)
    x[0, 0], x[1, 39999], x[2, 7] = np.nan, np.inf, -np.inf
    text = rows("layer_norm", "f32", 132, 40001)
    (found,), (wanted,) = simulate(cuda_of(text))([x]), interpret(graph_of(text), [x])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_many_and_short_rows_are_one_kernel():
    assert len(kinds(rows("softmax", "f32", 8, 1 << 20))) > 1
    assert len(kinds(rows("softmax", "f32", 66, 1 << 20))) > 1
    assert kinds(rows("softmax", "f32", 132, 1 << 20)) == ["rows"]
    assert kinds(rows("softmax", "f32", 1, 1 << 15)) == ["rows"]
    assert kinds(rows("softmax", "f32", 66, 1 << 16)) == ["rows"]
    assert kinds(rows("norm", "f32", 1, 2048)) == ["rows"]
