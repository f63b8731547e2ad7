"""Facts read off bodies: they hold for the operators they were once listed for, and an operator of
the reader's own gets the rewrites of its like."""

from __future__ import annotations

import numpy as np
import pytest

from graphc import driver
from graphc.ir import opdef
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.expr import maximum, minimum, tanh
from graphc.ir.graph import Graph, Op
from graphc.ir.interp import interpret
from graphc.ir.machine import Machine
from graphc.ir.opdef import Any_, Float
from graphc.ir.ops.helpers import wide
from graphc.ir.types import TensorType
from graphc.passes import Context, run_pipeline
from graphc.passes.analysis import facts
from graphc.passes.analysis.ranges import range_of
from graphc.passes.manager.context import AnyTarget

UNARY = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Neg", "Erf", "Gelu",
    "Elu", "Selu", "HardSigmoid", "HardSwish", "Swish", "Softplus", "Mish", "Clip", "Reciprocal",
    "Round", "Floor", "Ceil", "IsNaN", "ThresholdedRelu", "Celu", "Softsign", "Sign",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "PRelu", "Equal", "Less", "Greater")
IDEMPOTENT = {"Relu", "Abs", "Ceil", "Floor", "Round", "Sign"}
BOUNDED = {"Sign", "IsNaN", "Sigmoid", "Tanh", "Erf", "HardSigmoid", "Softsign", "Sin", "Cos"}
NONNEGATIVE = {"Exp", "Abs", "Sigmoid", "IsNaN", "ThresholdedRelu"}


@pytest.fixture(autouse=True)
def own_operators():
    known = dict(opdef.REGISTRY)

    @opdef.op("TanhShrink", domain="my.ops")
    def tanh_shrink(i, x: Float):
        """x - tanh(x)."""
        v = wide(x[i])
        return (v - tanh(v)).cast(x.dtype)

    @opdef.op("Relu6", domain="my.ops")
    def relu6(i, x: Float):
        """x, kept within 0..6."""
        return minimum(maximum(x[i], 0), 6)

    @opdef.op("Opposite", domain="my.ops")
    def opposite(i, x: Float):
        """-x."""
        return -x[i]

    @opdef.op("Ramp", domain="my.ops")
    def ramp(i, x: Float):
        """x plus where it lies in the last dimension."""
        return x[i] + i[-1].cast(x.dtype)

    @opdef.op("FloatMirror", domain="my.ops", infer=lambda x: x.shape)
    def float_mirror(i, x: Float):
        """As Mirror, of floats alone."""
        return x[(*i[:-1], x.shape[-1] - 1 - i[-1])]

    @opdef.op("Mirror", domain="my.ops", infer=lambda x: x.shape)
    def mirror(i, x: Any_):
        """x read backwards along the last dimension."""
        return x[(*i[:-1], x.shape[-1] - 1 - i[-1])]

    yield
    opdef.REGISTRY.clear()
    opdef.REGISTRY.update(known)


def made(name: str, *shapes: tuple[int, ...], **attrs) -> Op:
    """An op on inputs of these shapes."""
    graph = new_graph("g", **{f"x{n}": TensorType(f32, s) for n, s in enumerate(shapes)})
    domain = "my.ops" if ("my.ops", name) in opdef.REGISTRY else ""
    value = Builder(graph).op(name, *graph.params, domain=domain, **attrs)
    graph.set_results([value])
    return value.producer


@pytest.mark.parametrize("name", [*UNARY, *BINARY, "TanhShrink"])
def test_pointwise_operators(name):
    op = made(name, *[(2, 3), (3,)][: 1 + (name in BINARY)])
    assert facts.is_pointwise(op)
    assert name == "Clip" or facts.is_idempotent(op) == (name in IDEMPOTENT)
    assert facts.is_involution(op) == (name == "Neg")
    if name not in BINARY:
        assert range_of(op.output).is_finite == (name in BOUNDED)
        assert range_of(op.output).is_nonnegative == (name in NONNEGATIVE)


def test_what_depends_on_its_place_is_not_pointwise():
    assert not facts.is_pointwise(made("Ramp", (2, 3)))
    assert not facts.is_pointwise(made("Mirror", (2, 3)))
    assert not facts.is_pointwise(made("Softmax", (2, 3)))


def test_an_own_operator_that_leaves_its_results_alone():
    assert facts.is_idempotent(made("Relu6", (4,)))
    assert facts.is_involution(made("Opposite", (4,)))
    assert range_of(made("Relu6", (4,)).output).is_finite


def with_constants(name: str, *arrays, **attrs) -> Op:
    """An op on an image and constants (None: left out)."""
    graph = new_graph("g", x=TensorType(f32, (1, 4, 6, 6)))
    operands = [None if x is None else np.asarray(x) for x in arrays]
    value = Builder(graph).op(name, graph.params[0], *operands, **attrs)
    graph.set_results([value])
    return value.producer


@pytest.mark.parametrize(
    ("name", "arrays", "attrs"),
    [
        ("DepthToSpace", (), {"blocksize": 2}), ("SpaceToDepth", (), {"blocksize": 2}),
        ("Expand", ([2, 4, 6, 6],), {}), ("Tile", ([1, 1, 2, 1],), {}), ("Flatten", (), {}),
        ("Gather", ([1, 0],), {}), ("GatherElements", (np.zeros((1, 2, 6, 6), int),), {}),
        ("GatherND", (np.array([[0, 1]]),), {}), ("Reshape", ([4, 36],), {}),
        ("Resize", (None, None, [1, 4, 12, 12]), {"mode": "nearest"}),
        ("ReverseSequence", ([2] * 4,), {"batch_axis": 1, "time_axis": 0}),
        ("Slice", ([1], [3], [2]), {}), ("Squeeze", ([0],), {}), ("Unsqueeze", ([0],), {}),
        ("Transpose", (), {"perm": (0, 2, 3, 1)}),
    ],
)  # fmt: skip
def test_movements(name, arrays, attrs):
    op = with_constants(name, *arrays, **attrs)
    assert facts.only_moves(op) and facts.choice(op).operands == (0,)


@pytest.mark.parametrize(
    ("name", "arrays", "attrs"),
    [
        ("MaxPool", (), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}), ("GlobalMaxPool", (), {}),
        ("ReduceMax", ([1],), {}), ("ReduceMin", ([1],), {}),
    ],
)  # fmt: skip
def test_extremes_are_chosen(name, arrays, attrs):
    known = facts.choice(with_constants(name, *arrays, **attrs))
    assert known.extreme and known.is_of_elements and known.operands == (0,)


def test_choices_among_several_operands():
    shape = (2, 3)
    for name, attrs in (("Concat", {"axis": 0}), ("Max", {}), ("Min", {})):
        known = facts.choice(made(name, shape, shape, **attrs))
        assert known.operands == (0, 1) and known.is_of_elements
    assert not facts.choice(with_constants("Pad", [0, 0, 1, 1, 0, 0, 1, 1])).is_of_elements
    assert not facts.choice(with_constants("Trilu")).is_of_elements


@pytest.mark.parametrize("name", [*UNARY, "Add", "PRelu", "AveragePool", "ReduceSum", "Softmax"])
def test_what_computes_chooses_nothing(name):
    attrs = {"kernel_shape": (2, 2)} if name == "AveragePool" else {}
    shapes = [(1, 4, 6, 6)] * (1 + (name in BINARY))
    assert name == "Clip" or facts.choice(made(name, *shapes, **attrs)) is None


# ---------------------------------------------------------------- what follows from them


def graph_of(build, name: str, domain: str) -> Graph:
    """What is built with an operator of one operand, typed."""
    graph = new_graph("g", x=TensorType(f32, (2, 3, 4, 4)))
    b = Builder(graph)
    graph.set_results(build(b, graph.params[0], lambda x: b.op(name, x, domain=domain)))
    graph.phase = "typed"
    return graph


def rewritten(build, name: str, domain: str, pipeline: str) -> list[str]:
    """The names of the ops that a pipeline leaves of what is built, with "f" for the operator;
    both graphs compute the same."""
    graph = graph_of(build, name, domain)
    feeds = [np.random.default_rng(1).normal(size=(2, 3, 4, 4)).astype(np.float32)]
    before = interpret(graph, feeds)
    run_pipeline(graph, pipeline, Context(AnyTarget(Machine(instructions=VECTORS))))
    for one, other in zip(before, interpret(graph, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return ["f" if op.name == name else op.name for op in graph.walk() if op.name != "Constant"]


def _transposes(b, x, f):
    return [b.Transpose(f(b.Transpose(x, perm=(0, 2, 3, 1))), perm=(0, 3, 1, 2))]


def _transposed_parts(b, x, f):
    one, other = (b.Transpose(v, perm=(0, 2, 3, 1)) for v in (x, b.Neg(x)))
    return [b.Transpose(b.Concat(f(one), other, axis=3), perm=(0, 3, 1, 2))]


def _nothing_moved(b, x, f):
    return [b.Reshape(f(b.Reshape(x, np.array([6, 16]))), np.array([2, 3, 4, 4]))]


def _duplicates(b, x, f):
    return [b.Add(f(x), f(x))]


def _unused(b, x, f):
    f(x)
    return [b.Neg(x)]


def _few_rows(b, x, f):
    rows = b.Reshape(x, np.array([1, 24, 4]))
    product = f(b.MatMul(rows, np.ones((4, 5), np.float32)))
    return [b.Slice(product, np.array([3]), np.array([4]), np.array([1]))]


def _behind_a_product(b, x, f):
    return [f(b.MatMul(x, np.ones((4, 5), np.float32)))]


def _between_convolutions(b, x, f):
    w = np.ones((3, 3, 3, 3), np.float32) / 9
    return [b.Conv(f(b.Conv(x, w, pads=(1, 1, 1, 1))), w, pads=(1, 1, 1, 1))]


def _behind_a_softmax(b, x, f):
    return [f(b.Softmax(f(x)))]


def _before_a_maximum(b, x, f):
    return [b.MaxPool(f(x), kernel_shape=(2, 2), strides=(2, 2))]


VECTORS = frozenset({"unaligned_vectors"})
SIMPLE = "canonicalise, cse, dce"
GROUPED = "canonicalise, rewrite{group=lowering}, decompose, fold, layout, fuse"
CASES = [
    (_transposes, SIMPLE, ["f"]), (_transposed_parts, SIMPLE, ["Neg", "f", "Concat"]),
    (_nothing_moved, SIMPLE, None), (_duplicates, SIMPLE, ["f", "Add"]), (_unused, SIMPLE, ["Neg"]),
    (_few_rows, GROUPED, None), (_behind_a_product, GROUPED, None),
    (_between_convolutions, GROUPED, None), (_behind_a_softmax, GROUPED, None),
    (_before_a_maximum, GROUPED, None),
]  # fmt: skip


@pytest.mark.parametrize(("build", "pipeline", "left"), CASES)
def test_an_own_operator_is_rewritten_as_tanh(build, pipeline, left):
    own = rewritten(build, "TanhShrink", "my.ops", pipeline)
    assert own == rewritten(build, "Tanh", "", pipeline)
    assert left is None or own == left


@pytest.mark.parametrize(("name", "left"), [("Relu6", ["f"]), ("Opposite", [])])
def test_own_operators_that_are_applied_twice(name, left):
    assert rewritten(lambda b, x, f: [f(f(x))], name, "my.ops", SIMPLE) == left


def test_own_movements_let_quantisation_pass():
    """Transposes and own movements alike are done on bytes."""
    scale, zero = np.float32(0.1), np.int8(3)

    def build(move):
        def with_bytes(b, x, f):
            codes = b.QuantizeLinear(x, scale, zero)
            again = b.QuantizeLinear(move(b, b.DequantizeLinear(codes, scale, zero)), scale, zero)
            return [b.DequantizeLinear(again, scale, zero)]

        return with_bytes

    own = build(lambda b, x: b.op("Mirror", x, domain="my.ops"))
    onnx = build(lambda b, x: b.Transpose(x, perm=(1, 0, 2, 3)))
    floats = build(lambda b, x: b.op("FloatMirror", x, domain="my.ops"))
    names = [rewritten(m, "Tanh", "", "integers, fold, dce") for m in (own, onnx, floats)]
    assert names[2].count("QuantizeLinear") == 2  # it does not take bytes
    assert names[0] == ["QuantizeLinear", "Mirror", "DequantizeLinear"]
    assert names[1] == ["QuantizeLinear", "Transpose", "DequantizeLinear"]


def test_an_own_operator_becomes_a_table():
    scale, zero = np.float32(0.1), np.int8(3)

    def build(b, x, f):
        codes = b.QuantizeLinear(x, scale, zero)
        again = b.QuantizeLinear(f(b.DequantizeLinear(codes, scale, zero)), scale, zero)
        return [b.DequantizeLinear(again, scale, zero)]

    own = rewritten(build, "TanhShrink", "my.ops", "integers, fold, dce")
    assert own == ["QuantizeLinear", "Lookup", "DequantizeLinear"]


@pytest.mark.parametrize("target", ["cpu", "c", "cuda"])
@pytest.mark.parametrize("build", [_between_convolutions, _behind_a_product, _behind_a_softmax])
def test_kernels_of_an_own_operator_are_those_of_tanh(build, target):
    own, known = (
        driver.program_for(graph_of(build, name, domain), target)
        for name, domain in (("TanhShrink", "my.ops"), ("Tanh", ""))
    )
    assert len(own.steps) == len(known.steps)
