"""The verifier: each rule has a graph, kernel or program that breaks it."""

import numpy as np
import pytest

from graphc.errors import InternalError
from graphc.ir import dtypes
from graphc.ir.expr import Const, Index, Load, Ref, reduce
from graphc.ir.graph import Op, Value
from graphc.ir.kernel import Alloc, Buffer, For, If, Intrin, Kernel, Let, Store
from graphc.ir.opdef import lookup
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.text.parser import parse_graph
from graphc.ir.text.program_parser import parse_program
from graphc.ir.types import Layout
from graphc.ir.verify.graphs import verify
from graphc.ir.verify.kernels import verify_kernel
from graphc.ir.verify.programs import verify_program

pytestmark = pytest.mark.suite("all")

GOOD = """
graph @g(%c: bool[], %x: f32[N,4]) -> (f32[N,4], f32[N,4]) where N: 1..8 phase fused {
  const %w : f32[4] = [1.0, 2.0, 3.0, 4.0]
  %a = Add(%x, %w) : f32[N,4]  loc("add1")
  %b = If(%c, %a) : f32[N,4] {
    ^(%a: f32[N,4])
    %r = Relu(%a) : f32[N,4]
    yield %r
  } else {
    ^(%a: f32[N,4])
    yield %a
  }
  %f = fused @relu(%a) : f32[N,4] {
    ^(%p: f32[N,4])
    %r = Relu(%p) : f32[N,4]
    yield %r
  }
  return %b, %f
}
"""


def good():
    graph = parse_graph(GOOD)
    return graph, *graph.ops


def test_a_good_graph():
    verify(good()[0])


def broken(change) -> str:
    graph, *ops = good()
    change(graph, *ops)
    with pytest.raises(InternalError) as error:
        verify(graph)
    return str(error.value)


def test_values_are_used_after_their_definition():
    message = broken(lambda g, w, a, b, f: a.set_input(1, f.output))
    assert message == (
        'Add "add1": operand 1, %f, is used before its definition, in `%a = Add(%x, %f)`'
    )


def test_regions_are_isolated():
    message = broken(lambda g, w, a, b, f: f.regions[0].ops[0].set_input(0, a.output))
    assert "operand 0, %a, is of another region" in message


def test_values_belong_to_the_graph():
    message = broken(lambda g, w, a, b, f: a.set_input(0, Value(a.output.type, None, 0, "lost")))
    assert "operand 0, %lost, is not in the graph" in message


def test_results_are_defined():
    message = broken(lambda g, w, a, b, f: f.regions[0].set_results([a.output]))
    assert "%a, is of another region" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.output.uses.popitem(), "the use list of %a lacks operand 0"),
        (
            lambda a: a.output.uses.update({(a, 0): None}),
            "the use list of %a lists operand 0 of `%a = Add",
        ),
        (lambda a: setattr(a, "region", None), "its region is not the one that holds it"),
        (lambda a: setattr(a.output, "index", 1), "result 0 does not point back at it"),
        (lambda a: a.add_input(a.inputs[0]), "takes at most 2 operands, found 3"),
        (lambda a: a.set_input(1, None), "operand 1 (b) is missing"),
        (lambda a: a.attrs.update(axis=1), "has no attribute 'axis'"),
        (lambda a: a.outputs.append(Value(None, a, 1)), "has 1 results, found 2"),
        (lambda a: setattr(a.output, "type", None), "result 0 has type None, but is f32[N,4]"),
        (
            lambda a: setattr(a.output, "type", a.output.tensor.with_dtype(dtypes.f64)),
            "result 0 has type f64[N,4], but is f32[N,4]",
        ),
        (
            lambda a: a.inputs[0].__setattr__("type", a.inputs[0].tensor.with_shape((3, 5))),
            'Add "add1": shapes [3, 5], [4] do not broadcast',
        ),
    ],
)
def test_ops(change, message):
    assert message in broken(lambda g, w, a, b, f: change(a))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, w, a, b, f: w.attrs.update(value=np.zeros(3, np.float32)), "has type f32[4]"),
        (lambda g, w, a, b, f: w.attrs.update(value=[1]), "a constant holds a numpy array"),
        (lambda g, w, a, b, f: b.regions.pop(), "takes 2 regions, found 1"),
        (lambda g, w, a, b, f: b.regions[0].add_param(None), "has 2 parameters for 1 operands"),
        (lambda g, w, a, b, f: f.regions[0].set_results([]), "has 0 results, needs 1"),
        (lambda g, w, a, b, f: setattr(f.regions[0], "owner", a), "has another owner"),
        (lambda g, w, a, b, f: setattr(g, "phase", "typed"), "phase typed holds no fused ops"),
        (lambda g, w, a, b, f: setattr(g, "phase", "odd"), "unknown phase 'odd'"),
        (lambda g, w, a, b, f: setattr(g.params[1], "index", 0), "parameter 1, %x, is numbered 0"),
        (lambda g, w, a, b, f: g.output_names.pop(), "1 output names for 2 results"),
        (lambda g, w, a, b, f: g.ops.append(a), "is defined twice"),
        (
            lambda g, w, a, b, f: setattr(
                f.regions[0].params[0], "type", a.output.tensor.with_layout(Layout((1, 0)))
            ),
            "parameter 0 of its region has type f32[N,4]@p1_0, not f32[N,4]",
        ),
    ],
)
def test_graphs(change, message):
    assert message in broken(change)


def test_layouts_come_with_their_phase():
    graph = parse_graph("""graph @g(%x: f32[2,3]) -> f32[2,3]@p1_0 phase canonical {
      %y = Relu(%x) : f32[2,3]@p1_0
      return %y
    }""")
    with pytest.raises(InternalError, match="%y has a layout in phase canonical"):
        verify(graph)
    graph.phase = "laid_out"
    verify(graph)


def test_types_may_be_open_while_imported():
    graph = parse_graph("graph @g(%x) -> ? { %y = Relu(%x)  return %y }")
    verify(graph)
    graph.phase = "typed"
    verify(graph)  # nothing can be known of the result of an untyped operand


def test_unregistered_ops_are_named():
    op = Op(lookup("Relu"), [])
    graph = parse_graph("graph @g() -> () { return }")
    graph.append(op)
    with pytest.raises(InternalError, match=r"Relu: operand 0 \(x\) is missing"):
        verify(graph)


# ---------------------------------------------------------------- kernels

PARAMS = (Buffer("x", dtypes.f32, (4, 8), "in"), Buffer("y", dtypes.f32, (4,), "out"))
X, Y = PARAMS
I = Index("i", 4)
ONE = Const(1.0, dtypes.f32)


def test_a_good_kernel():
    verify_kernel(
        parse_kernel("""kernel @good(in x: f32[4,8], out y: f32[4], inout z: f32[16]) {
      parallel i < 4 {
        reg acc: f32[2,8]
        unroll u < 2 {
          vector v < 8 {
            acc[u, v] = x[i, v]
          }
        }
        let t: f32 = acc[0, 3]
        y[i] = select(i > 0, x[i - 1, 0], 0.0) + t
        if i < 3 {
          y[i + 1] = t
        }
        vector v < min(8, i + 1) width 8 {
          z[i * 4 + v] = t
        }
        for j < 4 {
          z[(i * 4 + j) // 4] = t
        }
      }
    }""")
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Store("y", (I,), ONE),), "`i` is not bound here"),
        ((For(I, (Store("y", (Index("i", 5),), ONE),)),), "`i` is not bound here"),
        ((Store("y", (Const(0),), Ref("t", dtypes.f32)),), "`t` is not bound here"),
        ((Store("z", (Const(0),), ONE),), "unknown buffer z"),
        ((Store("x", (Const(0), Const(0)), ONE),), "stores into the input x"),
        ((Store("y", (), ONE),), "0 indices for y of rank 1"),
        ((Store("y", (Const(4),), ONE),), "index `4` of y runs over 4..4, not 0..3"),
        ((Store("y", (Const(0),), Const(1)),), "`1` is i64, not f32"),
        ((Store("y", (Const(0),), X[0]),), "1 indices for x of rank 2"),
        ((For(I, (Store("y", (I + 1,), ONE),)),), "index `i + 1` of y runs over 1..4, not 0..3"),
        ((Store("y", (Const(0),), Load("x", (0, 0), dtypes.f64)),), "`x[0, 0]` is f64, not f32"),
        ((For(I, (For(I, ()),)),), "i is bound again"),
        ((Let(Ref("x", dtypes.f32), ONE),), "x is bound again"),
        ((Let(Ref("t", dtypes.f64), ONE),), "`1.0` is f32, not f64"),
        ((Store("y", (Const(0),), reduce("sum", X[I, 0], [I])),), "a reduction is left"),
        ((If(ONE, ()),), "`1.0` is f32, not bool"),
        ((For(I, (), "spiral"),), "unknown loop kind 'spiral'"),
        ((For(I, (), "vector"),), "a vector loop of width 0"),
        ((For(I, (), "vector", 2),), "4 lanes do not fit into width 2"),
        ((Intrin("f", (I,)),), "`i` is not bound here"),
        ((Alloc(Buffer("r", dtypes.f32, (2,), "local"), "heap"),), "unknown scope 'heap'"),
    ],
)
def test_kernels(body, message):
    with pytest.raises(InternalError) as error:
        verify_kernel(Kernel("k", PARAMS, body))
    assert message in str(error.value) and str(error.value).startswith("kernel @k: ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i < 2 { parallel j < 2 { } }", "a parallel loop is not outermost, in `parallel j"),
        ("vector v < 4 { vector w < 4 { } }", "a vector loop stands inside another"),
        ("vector v < 4 { for j < v { } }", "depends on the lane of a vector loop"),
        ("vector v < 4 { barrier }", "a barrier stands inside a vector loop"),
        ("vector v < 4 { while true { } }", "a while loop stands inside a vector loop"),
        ("vector v < 4 { y[0] = 1.0 }", "every lane of v stores into one element, in `y[0] = 1.0`"),
        ("for i < 2 { unroll u < i { } }", "the extent of an unrolled loop is not constant"),
        ("reg r: f32[4] for i < 4 { r[i] = 1.0 }", "register array r is indexed by `i`"),
        ("thread t < 4 { shared s: f32[4] }", "shared memory is declared inside the threads"),
        ("for i < 2 { let t: f32 = 1.0 let t: f32 = 2.0 }", "t is bound again"),
    ],
)
def test_kernel_structure(body, message):
    kernel = parse_kernel(f"kernel @k(in x: f32[4,8], out y: f32[4]) {{ {body} }}")
    with pytest.raises(InternalError) as error:
        verify_kernel(kernel)
    assert message in str(error.value)


# ---------------------------------------------------------------- programs

PROGRAM = """
program @m {
  input x : f32[4]
  output y : f32[8]
  arena 32
  const 0 : f32[4] = [1.0, 2.0, 3.0, 4.0]
  run @add(input 0 : f32[4], const 0 : f32[4], arena + 0 : f32[4])
  run @add(arena + 0 : f32[4], const 0 : f32[4], arena + 0 : f32[4])
  run @add(arena + 0 : f32[4], input 0 : f32[4], output 0 : f32[4])  loc("last")
  run @add(arena + 0 : f32[4], input 0 : f32[4], output 0 + 16 : f32[4])
  kernel @add(in a: f32[4], in b: f32[4], out c: f32[4]) {
    parallel i < 4 {
      c[i] = a[i] + b[i]
    }
  }
}
"""


def test_a_good_program():
    verify_program(parse_program(PROGRAM))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("run @add(input 0", "run @sub(input 0", "step 0, @sub: no such kernel"),
        (
            "const 0 : f32[4], arena + 0 : f32[4])\n  run",
            "arena + 0 : f32[4])\n  run",
            "2 slots for",
        ),
        ("const 0 : f32[4], arena", "const 1 : f32[4], arena", "there is no const 1"),
        ("const 0 : f32[4], arena", "const 0 : i32[4], arena", "the kernel takes f32"),
        ("const 0 : f32[4], arena", "const 0 : f32[3], arena", "the kernel takes 4 elements"),
        (
            "const 0 : f32[4], arena",
            "const 0 + 4 : f32[4], arena",
            "bytes 4..20 do not lie in 0..16",
        ),
        ("arena + 0 : f32[4])", "arena + 2 : f32[4])", "not a multiple of 4 bytes"),
        ("arena + 0 : f32[4])", "input 0 : f32[4])", "written, but read-only"),
        ("@add(arena + 0", "@add(arena + 16", "step 1, @add: a reads arena + 16 : f32[4] before"),
        ("output 0 : f32[4])", "arena + 8 : f32[4])", "(last): a and c overlap in arena + 0"),
        ("output 0 + 16", "output 0", "output y is not written in full"),
    ],
)
def test_programs(old, new, message):
    assert old in PROGRAM
    with pytest.raises(InternalError) as error:
        verify_program(parse_program(PROGRAM.replace(old, new, 1)))
    assert message in str(error.value) and str(error.value).startswith("program @m: ")


def test_kernels_are_filed_under_their_name():
    program = parse_program(PROGRAM)
    program.kernels["other"] = program.kernels.pop("add")
    with pytest.raises(InternalError, match="@add is filed as 'other'"):
        verify_program(program)
