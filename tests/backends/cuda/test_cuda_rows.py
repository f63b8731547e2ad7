"""Row reductions: vectors of all types, rows that registers hold and longer ones."""

import math
import re

import numpy as np
import pytest
from cuda_programs import cuda_of, graph_of, inputs_of, needs_compiler

from graphc.backends.cuda import emit
from graphc.backends.cuda.simulator import simulate
from graphc.driver import program_for
from graphc.ir.interp import interpret

OPERATORS = {
    "softmax": "%y = Softmax(%x) {axis=-1}",
    "layer_norm": """const %s : TYPE[LENGTH] = random(seed=1)
  const %b : TYPE[LENGTH] = random(seed=2)
  %y = LayerNormalization(%x, %s, %b)""",
    "rms_norm": "const %s : TYPE[LENGTH] = random(seed=1)\n  %y = RMSNormalization(%x, %s)",
    "sum": "const %a : i64[1] = [1]\n  %y = ReduceSum(%x, %a)",
    "logarithm": "const %a : i64[1] = [1]\n  %y = ReduceLogSumExp(%x, %a)",
    "largest": "const %a : i64[1] = [1]\n  %y = ReduceMax(%x, %a)",
}
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2, "i8": 0.0}


def rows(operator: str, dtype: str, count: int, length: int) -> str:
    body = OPERATORS[operator].replace("TYPE", dtype).replace("LENGTH", str(length))
    return f"graph @g(%x: {dtype}[{count},{length}]) -> ? {{\n  {body}\n  return %y\n}}"


def check(text: str, tolerance: float) -> str:
    """The CUDA C of a graph, which does in the simulator what the interpreter does."""
    graph = graph_of(text)
    source = emit(program_for(graph, "cuda"))
    assert any(step.function.startswith("rows") for step in source.steps)
    inputs = inputs_of(source.program)
    for found, wanted in zip(simulate(source)(inputs), interpret(graph, inputs)):
        scale = np.abs(wanted.astype(np.float64)).max()
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance * scale
        )
    return source.text


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("count, length", [(7, 32), (5, 197), (3, 1000), (2, 4096), (1, 40008)])
@pytest.mark.parametrize("operator", ["softmax", "layer_norm", "rms_norm"])
def test_rows_are_normalised(operator, count, length, dtype):
    check(rows(operator, dtype, count, length), TOLERANCE[dtype])


@needs_compiler
@pytest.mark.parametrize(
    "operator, dtype", [("sum", "f32"), ("sum", "f16"), ("largest", "i8"), ("largest", "bf16")]
)
@pytest.mark.parametrize("count, length", [(9, 48), (3, 1000), (2, 6001), (1, 70000)])
def test_rows_are_reduced(operator, dtype, count, length):
    check(rows(operator, dtype, count, length), TOLERANCE[dtype])


@needs_compiler
@pytest.mark.parametrize("shape, scale", [((2, 4), 0.6), ((3, 9), 0.3), ((1, 40), 0.1)])
def test_elements_of_rows_that_are_reductions_themselves(shape, scale):
    """Weights depend on the place in a row alone; what they weigh, on the row too. Threads of a
    row that have one element each do not share its sum."""
    check(
        f"graph @g(%x: f32[{shape[0]},{shape[1]}]) -> ? {{\n  const %s : f32[1] = [{scale}]\n"
        '  %y = Resize(%x, _, %s) {mode="cubic", antialias=1, axes=[1]}\n  return %y\n}',
        TOLERANCE["f32"],
    )


COLUMN_SUMS = """graph @g(%x: TYPE[LENGTH,COUNT]) -> ? {
  const %a : i64[1] = [0]
  %y = OPERATOR(%x, %a)
  return %y
}"""


@needs_compiler
@pytest.mark.parametrize("operator, dtype, vector",
    [("ReduceSum", "f32", 4), ("ReduceMean", "f16", 8), ("ReduceMax", "i8", 16)])  # fmt: skip
@pytest.mark.parametrize("length, count", [(2048, 520), (16, 65552), (40, 26244), (50, 77)])
def test_columns_are_reduced(operator, dtype, vector, length, count):
    text = COLUMN_SUMS.replace("OPERATOR", operator).replace("TYPE", dtype)
    text = text.replace("LENGTH", str(length)).replace("COUNT", str(count))
    made = check(text, 5 * TOLERANCE[dtype])
    vector = math.gcd(vector, count) if length * count >= 1 << 20 else 1
    (read, *_) = [*re.findall(r"load_vector\(in0.*", made), ""]
    assert read.count("],") == (vector if vector > 1 else 0)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape, axis", [("3,45,7", 1), ("4,66,4096", 1), ("1,300,3500", 1),
    ("300,33", 0), ("2,3,5,4,6", 2)])  # fmt: skip
def test_columns_are_normalised(operator, shape, axis, dtype):
    body = f"%y = {operator}(%x) {{axis={axis}}}"
    text = f"graph @g(%x: {dtype}[{shape}]) -> ? {{\n  {body}\n  return %y\n}}"
    source = cuda_of(text)
    assert [step.function for step in source.steps] == ["rows_0"]
    inputs = inputs_of(source.program)
    (found,), (wanted,) = simulate(source)(inputs), interpret(graph_of(text), inputs)
    scale = max(1, np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, 4 * TOLERANCE[dtype], scale * TOLERANCE[dtype])


@needs_compiler
def test_padding_of_large_windows_is_not_read():
    """Nothing is read ahead where a window has no element."""
    text = """graph @g(%x: f32[1,3,9,33]) -> (?, ?) {
  %y, %n = MaxPool(%x) {kernel_shape=[9,11], pads=[4,5,4,5]}
  return %y, %n
}"""
    check(text, 0.0)


@needs_compiler
def test_masks_and_residuals_are_read_once():
    text = check(
        """graph @g(%x: f16[6,768], %r: f16[6,768]) -> ? {
  const %s : f16[768] = random(seed=1)
  %z = Add(%x, %r)
  %y = LayerNormalization(%z, %s)
  return %y
}""",
        TOLERANCE["f16"],
    )
    assert len(re.findall(r"load_vector\(in0", text)) == 1
    assert len(re.findall(r"load_vector\(in1", text)) == 1


def many(operator: str, dtype: str, length: int) -> str:
    """The kernel of a tensor of 2 ** 28 elements."""
    source = cuda_of(rows(operator, dtype, (1 << 28) // length, length))
    return source.text[source.text.index('extern "C"') :]


@pytest.mark.parametrize("dtype, vector", [("f32", 4), ("f16", 8), ("bf16", 8)])
@pytest.mark.parametrize("length", [256, 1024, 4096, 16384])
@pytest.mark.parametrize("operator", ["softmax", "layer_norm", "rms_norm"])
def test_memory_is_read_once_and_in_vectors(operator, length, dtype, vector):
    text = many(operator, dtype, length)
    (read,) = re.findall(r"load_vector\(in0\[.*", text)
    (written,) = re.findall(r"store_vector\(out0\[.*", text)
    assert read.count("],") == written.count("],") == vector
    assert not re.search(r" in0\[[^]]*\][;,) ]", text.replace(read, ""))


def test_several_short_rows_share_a_warp():
    assert "thread / 16" in many("softmax", "f32", 256)
    assert "thread / 8" in many("softmax", "f16", 256)
    assert "step = 4; step > 0" in many("sum", "f16", 256)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_long_rows_find_largest_element_and_sum_in_one_pass(dtype):
    assert len(re.findall(r"load_vector\(in0\[", many("softmax", dtype, 1 << 17))) == 2
    assert len(re.findall(r"load_vector\(in0\[", many("logarithm", dtype, 1 << 17))) == 1


@needs_compiler
@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape, axis", [((2, 40008), 1), ((2, 3000, 24), 1)])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "ReduceLogSumExp"])
def test_what_is_no_number(operator, shape, axis, fill):
    options = f"{{axis={axis}}}" if "Soft" in operator else ""
    operands = "%x" if "Soft" in operator else "%x, %a"
    text = f"""graph @g(%x: f32[{",".join(map(str, shape))}]) -> ? {{
  const %a : i64[1] = [{axis}]
  %y = {operator}({operands}) {options}
  return %y
}}"""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0].reshape(-1)[[777, 30001, -1]] = fill
    if fill < 0:
        x[0].reshape(-1)[:30001] = x[1] = fill
    (found,), (wanted,) = simulate(cuda_of(text))([x]), interpret(graph_of(text), [x])
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)


def test_long_rows_have_several_vectors_on_their_way():
    text = many("sum", "f16", 1 << 17)
    assert "step4 < 4" in text and "chunk" in text


GROUPS = [("2,6,5,7", 2), ("1,32,64,8", 4), ("2,40,3,3", 4), ("3,12,2,3,4", 3), ("2,64,1,1", 2)]


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, groups", GROUPS)
def test_channels_of_groups_are_one_kernel(shape, groups, dtype):
    """Channels are scaled in the kernel of the groups, also where models reshape between both."""
    channels = shape.split(",")[1]
    head = f"""graph @g(%x: {dtype}[{shape}], %s: {dtype}[{channels}], %z: {dtype}[{shape}]) -> ? {{
"""
    end = "  %w = Swish(%y)\n  %r = Add(%w, %z)\n  return %r\n}"
    whole = f"  %y = GroupNormalization(%x, %s, %s) {{num_groups={groups}}}\n"
    ones = ",".join("1" for _ in shape.split(",")[2:])
    parts = f"""  const %a : i64[3] = [0, {groups}, -1]
  const %o : {dtype}[{groups}] = [{", ".join(["1.0"] * groups)}]
  const %n : {dtype}[{groups}] = [{", ".join(["0.0"] * groups)}]
  const %b : i64[{shape.count(",") + 1}] = [{shape}]
  const %c : i64[{shape.count(",")}] = [{channels},{ones}]
  %d = Reshape(%x, %a)
  %e = InstanceNormalization(%d, %o, %n)
  %f = Reshape(%e, %b)
  %h = Reshape(%s, %c)
  %i = Mul(%f, %h)
  %y = Add(%i, %h)
"""
    for body in (whole, parts):
        text = head + body + end
        assert len(cuda_of(text).steps) == 1
        check(text, 2 * TOLERANCE[dtype])


def test_groups_of_few_rows_are_cut():
    text = """graph @g(%x: f32[1,32,256,256], %s: f32[32]) -> ? {
  %y = GroupNormalization(%x, %s, %s) {num_groups=2}
  return %y
}"""
    assert [step.function.split("_")[0] for step in cuda_of(text).steps] == [
        "rows",
        "total",
        "nest",
    ]


@needs_compiler
@pytest.mark.parametrize(
    "operator, dtype, length",
    [("softmax", "f16", 50257), ("softmax", "f32", 36866), ("logarithm", "bf16", 33003),
     ("largest", "i8", 70003), ("sum", "f16", 40004)])  # fmt: skip
def test_long_rows_that_start_anywhere_are_read_by_words(operator, dtype, length):
    made = check(rows(operator, dtype, 133, length), TOLERANCE[dtype])
    vector = {"f32": 4, "i8": 16}.get(dtype, 8)
    reads = re.findall(r"load_vector\(in0.*", made)
    assert reads and all(read.count("],") == vector for read in reads)


def test_what_lies_otherwise_is_read_by_elements():
    made = cuda_of(rows("rms_norm", "f16", 133, 40001)).text
    (rows_read,) = set(re.findall(r"load_vector\((in\d)", made))
    assert f"{rows_read}[block * 40001" in made, "rows, not the scale"
    assert "store_vector(out" not in made
