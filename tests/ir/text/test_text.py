"""Text: whatever prints parses back to the same thing, and errors say where."""

import ml_dtypes
import numpy as np
import pytest

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.expr import Call, Const, Index, Load, Ref, Sym, call, cast, reduce, select
from graphc.ir.graph import Graph, Op, Region, Value, clone_graph, constant_op, same_array
from graphc.ir.kernel import KernelBuilder
from graphc.ir.opdef import FUSED, lookup
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.text.constant_parser import random_array
from graphc.ir.text.expr_parser import Scope, parse_expr
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.text.parser import parse, parse_graph
from graphc.ir.text.printer import (
    graph_constants,
    print_graph,
    print_kernel,
    print_program,
    program_constants,
)
from graphc.ir.text.program_parser import parse_program
from graphc.ir.text.type_parser import parse_type
from graphc.ir.types import Layout, OptionalType, SequenceType, TensorType

pytestmark = pytest.mark.suite("all")

NUMERIC = [d for d in dtypes.BY_NAME.values() if d.is_number]
I, J = Index("i", 8), Index("j", Sym("N", 1, 8))
X = Load("0", (I, J), dtypes.f32)
N8 = Load("n", (I,), dtypes.i64)


def reparse(graph: Graph) -> Graph:
    text = print_graph(graph)
    again = parse_graph(text, graph_constants(graph))
    assert print_graph(again) == text
    assert again == graph
    assert again.phase == graph.phase and again.symbols.items() >= graph.symbols.items()
    return again


def constant_graph(*arrays) -> Graph:
    graph = Graph("constants")
    graph.set_results([graph.append(constant_op(a)).output for a in arrays])
    return graph


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    "expr",
    [
        X * 2.0 - X / (X + 1.0),
        (I * 2 + 1) // 3 % 4 - -1 * I,
        call("neg", X * X) + -X,
        call("neg", call("neg", X)),
        Call(scalar_ops.TABLE["neg"], (Const(1.0),), dtypes.f32),
        Call(scalar_ops.TABLE["mul"], (Const(-1, dtypes.i64), Const(2, dtypes.i64)), dtypes.i64),
        select((X < 0.0) & ~(X.eq(1.0) | X.ne(X)), Const(float("nan"), dtypes.f32), X),
        select(I < N8, cast(N8, dtypes.i8, saturate=True), Const(-128, dtypes.i8)),
        reduce("max", X * X, [I]) + reduce("sum", reduce("min", X, [J]), [I]),
        call("max", call("min", X, 1.0), float("-inf")),
        call("fma", X, X, 0.1) ** 2.0,
        (N8 << 2) & (N8 >> 1) ^ (N8 | ~N8),
        (N8 - (N8 - N8)) - N8,
        N8 // (N8 // N8),
        cast(X, dtypes.bf16) * Const(0.1, dtypes.bf16),
        Ref("a b", dtypes.f32) + Ref("max", dtypes.f32) + Ref("x.1", dtypes.f32),
        Sym("batch size") * Sym("true") + 1,
        Const('quo"te\n\u00e9', dtypes.string),
        Load("odd name", (), dtypes.f64) / 3.0,
    ],
)
def test_expressions_read_back(expr):
    assert parse_expr(str(expr), Scope.of(expr)) is expr


@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_literals_keep_their_value_and_type(dtype):
    values = [0, 1, 3, float(ml_dtypes.finfo(dtype.np).max) if dtype.is_float else dtype.max]
    values += [0.1, -0.0, 1e-7, 1 / 3] if dtype.is_float else [dtype.min]
    for value in values:
        expr = Const(value, dtype)
        assert parse_expr(str(expr)) is expr


def test_a_bare_literal_takes_the_type_of_its_neighbour():
    half = Load("h", (), dtypes.f16)
    assert parse_expr("h[] * 2 + 0.5", {}, {"h": dtypes.f16}) is half * 2.0 + 0.5
    assert parse_expr("2") is Const(2, dtypes.i64)
    assert parse_expr("2.0") is Const(2.0, dtypes.f32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x +", "1:4: expected an expression, found the end"),
        ("1 + y", "1:5: unknown name `y`"),
        ("b[0]", "1:1: unknown buffer `b`"),
        ("sin(1.0, 2.0)", "1:1: sin takes 1 arguments, found 2"),
        ("x + 1.5", "1:3: add takes equal types, found [i64, f32]"),
        ("foo(x)", "1:1: unknown function `foo`"),
        ("x x", "1:3: expected the end of the text, found `x`"),
        ("cast<int>(x)", "1:6: expected an element type, found `int`"),
        ("x + \x01", "1:5: unexpected"),
        ("1.5:i32", "1:1: expected an integer literal"),
    ],
)
def test_errors_in_expressions(text, message):
    with pytest.raises(ModelError) as error:
        parse_expr(text, {"x": Index("x", 4)})
    assert message in str(error.value)


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    "type",
    [
        TensorType(dtypes.f32, ()),
        TensorType(dtypes.f32, None),
        TensorType(dtypes.i4, (2, Sym("N", 1, 8) * 2 + 1)),
        TensorType(dtypes.string, (Sym("odd name"), 3)),
        TensorType(dtypes.f32, (1, 2, 3, 4), Layout((0, 2, 3, 1))),
        TensorType(dtypes.f32, (1, 2, 3), Layout((2, 1, 0))),
        SequenceType(SequenceType(TensorType(dtypes.f32, None))),
        OptionalType(SequenceType(TensorType(dtypes.boolean, (2,)))),
    ],
    ids=str,
)
def test_types_read_back(type):
    symbols = {"N": Sym("N", 1, 8), "odd name": Sym("odd name")}
    assert parse_type(str(type), symbols) == type


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[2]", "1:1: expected an element type"),
        ("f32[M]", "1:5: unknown name `M`"),
        ("f32[-2]", "1:1: negative dimension"),
        ("f32[2]@NCWH", "1:7: unknown layout @NCWH"),
        ("seq<f32[2]", "1:11: expected `>`, found the end"),
    ],
)
def test_errors_in_types(text, message):
    with pytest.raises(ModelError) as error:
        parse_type(text)
    assert message in str(error.value)


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("dtype", dtypes.BY_NAME.values(), ids=str)
def test_constants_of_every_dtype(dtype):
    if dtype is dtypes.string:
        values = np.array(["", 'a"b\\\n', "\u00e9\u4e2d", "\udcff", b"\xff\x00"], object)
    elif dtype.kind == "complex":
        values = np.array([1 + 2j, complex("nan-0j"), 1e-30j], dtype.np)
    elif dtype.is_float:
        step = 7 if dtype.bits <= 8 else 5003
        raw = np.arange(0, 1 << min(dtype.bits, 16), step, dtype=np.uint64)
        bits = raw << np.uint64(max(0, dtype.bits - 16))  # NaNs and infinities included
        values = bits.astype(f"u{dtype.size}").view(dtype.np)
    elif dtype is dtypes.boolean:
        values = np.array([True, False])
    else:
        values = np.array([dtype.min, 0, dtype.max], object).astype(dtype.np)
    parts = [values[k : k + 30] for k in range(0, len(values), 30)]
    graph = constant_graph(*parts, values[:1].reshape(()), values[:0].reshape(0, 3))
    again = reparse(graph)
    for old, new in zip(graph.results, again.results):
        assert same_array(old.constant, new.constant)


def test_large_constants_are_named_by_their_contents():
    big = np.arange(100, dtype=np.float32).reshape(10, 10)
    words = np.array([f"w{n}" for n in range(50)], object)
    graph = constant_graph(big, big.copy(), words, np.full((8, 8), -0.0, np.float32), big.T)
    text = print_graph(graph)
    assert "splat(-0.0)" in text
    assert len(graph_constants(graph)) == 3
    reparse(graph)
    with pytest.raises(ModelError, match=r"2:\d+: no constant sha256:\w+ was given"):
        parse_graph(text)


def test_elided_constants():
    graph = constant_graph(np.arange(100.0), np.arange(2))
    text = print_graph(graph, elide=True)
    assert "f64[100] = ..." in text and "[0, 1]" in text
    elided: list[Op] = []
    parse_graph(text, elided=elided)
    assert [op.output.name for op in elided] == ["c"]
    with pytest.raises(ModelError, match="expected a literal of type f64"):
        parse_graph(text)


def test_constants_written_by_hand():
    graph = parse_graph("""
        graph @g() -> (f32[2,3], i8[4], f32[2], bool[], f16[2,2]) {
          const %a : f32[2,3] = random(seed=1)
          const %b : i8[4] = splat(-3)
          const %c : f32[2] = zeros
          const %d : bool[] = true
          const %e : f16[2,2] = [[1, -inf], [nan, 1e-7]]
          return %a, %b, %c, %d, %e
        }""")
    a, b, c, d, e = (v.constant for v in graph.results)
    assert same_array(a, random_array((2, 3), dtypes.f32, 1))
    assert b.tolist() == [-3] * 4 and c.tolist() == [0, 0] and d.item() is True
    assert e[0, 1] == -np.inf and np.isnan(e[1, 0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("const %c : f32[2] = [1.0, 2.0, 3.0]", "contents of shape [3] do not fit f32[2]"),
        ("const %c : f32[2,2] = [[1.0, 2.0], [3.0]]", "a row has 1 elements, others 2"),
        ("const %c : i8[1] = [128]", "128 is not in the range of i8"),
        ("const %c : i8[1] = [1.5]", "expected an integer, found `1.5`"),
        ("const %c : f32[N] = zeros", "a constant cannot have type f32[N]"),
        ("%y = Relu(%z)", "unknown value %z"),
        ("%y = Relu(%x) {a=1, a=2} : f32[2]", "attribute a is given twice"),
        ("%x = Relu(%x)", "%x is defined twice"),
        ("%y = NoSuchOp(%x)", "operator NoSuchOp is not defined"),
        ("%y = Relu(%x) : f32[2], f32[2]", "1 results, but 2 types"),
        ("%y = Relu %x", "expected `(`, found `%x`"),
        ("%y = Relu(%x) {a=}", "expected an attribute's value, found `}`"),
    ],
)
def test_errors_in_graphs(line, message):
    text = f"graph @g(%x: f32[N]) -> f32[N] where N: 1..4 {{\n  {line}\n  return %x\n}}"
    with pytest.raises(ModelError) as error:
        parse_graph(text)
    assert str(error.value).startswith("2:") and message in str(error.value)


def test_declared_results_must_match():
    with pytest.raises(ModelError, match=r"1:25: results are declared .*f32\[3\].*f32\[2\]"):
        parse_graph("graph @g(%x: f32[2]) -> f32[3] { return %x }")


# ---------------------------------------------------------------- graphs

STEM = """\
graph @stem(%x: f32[N,3,224,224]) -> f32[N,64,112,112] where N: 1..8 {
  const %w : f32[64,3,7,7] = random(seed=1)
  %c = Conv(%x, %w) {pads=[3, 3, 3, 3], strides=[2, 2]} : f32[N,64,112,112]  loc("conv1")
  %y = Relu(%c) : f32[N,64,112,112]  loc("relu1")
  return %y
}
"""


def test_the_text_of_a_graph():
    graph = parse_graph(STEM)
    text = print_graph(graph)
    (key,) = graph_constants(graph)
    assert text == STEM.replace("random(seed=1)", f"dense<{key}>")
    assert graph.symbols == {"N": Sym("N", 1, 8)}
    assert graph.output_names == ["y"]
    reparse(graph)


def test_phase_names_comments_and_layouts():
    graph = parse("""
        // A comment on a line of its own.
        graph @"odd name"(%"a b": f32[1,2,3,4]@NHWC, %a/b.0)   # no type
            -> (f32[1,2,3,4]@NHWC, ?) phase laid_out {
          return %"a b", %a/b.0 as "out:0"
        }""")
    assert graph.phase == "laid_out"
    assert [v.name for v in graph.params] == ["a b", "a/b.0"]
    assert graph.output_names == ["a b", "out:0"]
    assert graph.params[0].type.layout == Layout((0, 2, 3, 1))
    reparse(graph)


def test_omitted_operands_untyped_and_unranked_values():
    graph = parse_graph("""graph @g(%x: f32[*], %s: seq<f32[*]>) -> (?, opt<f32[2]>) {
      %y = Clip(%x, _, %x)
      %a, %b = Split(%y) {num_outputs=2} : ?, opt<f32[2]>
      return %a, %b
    }""")
    clip, split = graph.ops
    assert clip.inputs[1] is None and clip.output.type is None
    assert split.outputs[1].type == OptionalType(TensorType(dtypes.f32, (2,)))
    reparse(graph)


def test_attributes_of_every_kind():
    attrs = {
        "i": -3, "f": 0.01, "g": float(np.float32(0.01)), "h": float("inf"), "n": -0.0,
        "s": 'a"\n', "raw": b"\xff", "t": True, "none": None, "nested": ((1, 2), (), ("x",)),
        "dtype": dtypes.bf16, "type": TensorType(dtypes.f32, (2,)), "dim": Sym("N", 1, 4) * 2,
        "array": np.arange(3), "layout": Layout((0, 2, 1)), "map": {"a": 1},
    }  # fmt: skip
    graph = new_graph("g", x=TensorType(dtypes.f32, (Sym("N", 1, 4),)))
    op = graph.append(Op(lookup("Relu"), graph.params, attrs))
    graph.set_results(op.outputs)
    (again,) = reparse(graph).ops
    for name, value in attrs.items():
        found = again.attrs[name]
        assert type(found) is type(value)
        assert same_array(found, value) if name == "array" else found == value
    assert "0.01:f32" in print_graph(graph) and "f=0.01," in print_graph(graph)


def test_names_are_unique_and_stable():
    graph = new_graph("g", x=TensorType(dtypes.f32, (2,)))
    (value,) = graph.params
    for name in ("x", "", "x", "relu", "x.1", ""):
        op = graph.append(Op(lookup("Relu"), [value]))
        op.output.type, op.output.name = value.type, name
        value = op.output
    graph.set_results([value])
    names = [v.name for v in reparse(graph).values()]
    assert names == ["x", "x.1", "relu.1", "x.2", "relu", "x.1.1", "relu.2"]


def test_regions():
    outer = new_graph("g", c=TensorType(dtypes.boolean, ()), x=TensorType(dtypes.f32, (2,)))
    regions = []
    for name in ("Relu", "Tanh"):
        region = Region([])
        inner = region.add_param(outer.params[1].type, "x")
        region.set_results([Builder(region).op(name, inner)])
        regions.append(region)
    op = outer.append(Op(lookup("If"), outer.params, regions=regions, loc=("if 0",)))
    op.output.type = outer.params[1].type
    fused = Region()
    fused.set_results([fused.add_param(op.output.type, "")])
    last = outer.append(Op(FUSED, op.outputs, {"name": "copy"}, regions=[fused]))
    last.output.type = op.output.type
    outer.set_results(last.outputs)
    text = print_graph(outer)
    assert '%if = If(%c, %x) : f32[2]  loc("if 0") {\n    ^(%x: f32[2])' in text
    assert "\n  } else {\n" in text and "= fused @copy(%if) : f32[2] {" in text
    again = reparse(outer)
    assert [len(o.regions) for o in again.ops] == [2, 1]
    assert again.ops[0].regions[0].owner is again.ops[0]


def test_graphs_compare_by_text_and_contents():
    graph = parse_graph(STEM)
    other = clone_graph(graph)
    assert graph == other
    other.ops[0].attrs["value"] = other.ops[0].attrs["value"] + 1
    assert graph != other


def test_broken_graphs_print():
    graph = new_graph("g", x=TensorType(dtypes.f32, (2,)))
    graph.set_results([Value(None, name="lost")])
    assert "%<outside lost>" in print_graph(graph)


# ---------------------------------------------------------------- kernels and programs

KERNEL = """\
kernel @softmax(in x: f32[8,N], inout "odd name": i8[], out y: f32[8,N]) where N: 1..64 {
  "softmax of \\"probs\\""
  stack total: f32[]
  reg acc: f32[6,32]
  shared tile: f16[16,16]
  parallel i0 < 8 {
    let scale: f32 = 1.0 / cast<f32>(N)
    total[] = -inf:f32
    for k < N {
      total[] = max(total[], x[i0, k] * scale)
    }
    vector v < 16 {
      acc[0, v] = 0.5
      unroll u < 4 {
        acc[u, v] = exp(acc[u, v] - total[])
      }
    }
    vector v < min(N, 8) width 8 {
      y[i0, v] = select(x[i0, v] > 0.0 && v < N - 1, acc[0, v], -1.0)
    }
    if "odd name"[] == 0:i8 {
      barrier
    } else {
      intrin mma(i0 * 2, scale)
    }
    while total[] < 0.0 {
      total[] = total[] + 1.0
    }
    block b < 2 {
      thread t < 32 {
        y[b, t] = nan:f32
      }
    }
  }
}
"""


def test_the_text_of_a_kernel():
    kernel = parse_kernel(KERNEL)
    assert print_kernel(kernel) == KERNEL
    assert parse(KERNEL) == kernel
    assert kernel.comment == 'softmax of "probs"'
    assert kernel.params[1].name == "odd name"


def test_built_kernels_read_back():
    k = KernelBuilder()
    x = k.alloc(dtypes.f32, (4, 4))
    total = k.var(dtypes.i64, 0)
    with k.loop(4, "vector") as i:
        t = k.let(x[i, i] * 2.0)
        with k.when(t > 0.0):
            k.store(total, (), total[()] + 1)
        with k.otherwise():
            k.store(x, (i, 0), t)
    from graphc.ir.kernel import Kernel

    kernel = Kernel("k", (), k.body())
    assert parse_kernel(str(kernel)) == kernel


def test_long_headers_break():
    params = ", ".join(f"in buffer{n}: f32[128,128]" for n in range(6))
    text = print_kernel(parse_kernel(f"kernel @k({params}) {{ }}"))
    assert text.startswith("kernel @k(\n  in buffer0: f32[128,128],\n")
    assert print_kernel(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[0] = i", "unknown name `i`"),
        ("y[0] = 1:i8", "expected an expression of type f32, found i8"),
        ("z[0] = 1.0", "unknown buffer `z`"),
        ("foo", "expected a statement, found `foo`"),
        ("for i { }", "expected `<`, found `{`"),
        ("if 1.0 { }", "expected an expression of type bool, found f32"),
        ("y[0.5] = 1.0", "an index must be i64, found f32"),
    ],
)
def test_errors_in_kernels(line, message):
    with pytest.raises(ModelError) as error:
        parse_kernel(f"kernel @k(out y: f32[4]) {{\n  {line}\n}}")
    assert str(error.value).startswith("2:") and message in str(error.value)


PROGRAM = """\
program @m {
  input x : f32[1,64] at arena + 128 : f32[64]
  output "out:0" : f32[1,64] scale 1.5e-05 zero -128 at arena + 0 : f32[64]
  arena 512 bound 256
  const 0 : f32[2] = [1.0, nan]
  const 1 : i8[100] = splat(1)
  run @scale(input 0 : f32[64], const 0 : f32[2], arena + 256 : f32[64]) flops 64 macs 32  loc("a")
  run @scale(arena + 0 : f32[64], const 1 + 8 : f32[2], output 0 : f32[64])

  kernel @scale(in x: f32[64], in s: f32[2], out y: f32[64]) {
    parallel i < 64 {
      y[i] = x[i] * s[0]
    }
  }
}
"""


def test_the_text_of_a_program():
    program = parse_program(PROGRAM)
    assert print_program(program) == PROGRAM
    assert program.steps[1].slots[1].offset == 8
    assert program.quantisation == {("output", 0): (1.5e-05, -128)}
    assert list(program.resident) == [("input", 0), ("output", 0)]
    program.constants.append(np.arange(100))
    text = print_program(program)
    assert print_program(parse(text, program_constants(program))) == text
