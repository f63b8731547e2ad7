"""Facts read off bodies: they hold for the operators they were once listed for, and an operator of
the reader's own gets the rewrites of its like."""

from __future__ import annotations

import numpy as np
import pytest

from graphc import driver
from graphc.ir import opdef
from graphc.ir.build import Builder, new_graph
from graphc.ir.dtypes import f32
from graphc.ir.expr import maximum, minimum, reduce, select, tanh
from graphc.ir.graph import Graph, Op
from graphc.ir.interp import interpret, run_op
from graphc.ir.machine import Machine
from graphc.ir.opdef import Any_, Float, axes
from graphc.ir.ops.helpers import wide
from graphc.ir.types import TensorType
from graphc.passes import Context, run_pipeline
from graphc.passes.analysis import facts, parts
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
RISING = {
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Exp", "Erf", "Elu", "Selu", "HardSigmoid", "Round",
    "Floor", "Ceil", "Celu", "Sign", "TanhShrink", "Relu6", "Clip",
}  # fmt: skip
"""ThresholdedRelu makes 0 of NaN."""


def _scaled(x, factor: float) -> tuple[int, ...]:
    return *x.shape[:2], *(int(n * factor) for n in x.shape[2:])


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

    @opdef.op("Leaky", domain="my.ops")
    def leaky(i, x: Float):
        """x above 0, a tenth of it below."""
        return select(x[i] < 0, x[i] * 0.1, x[i])

    @opdef.op(
        "Doubled", domain="my.ops", infer=lambda x: (*x.shape[:2], *(2 * n for n in x.shape[2:]))
    )
    def doubled(i, x: Float):
        """Every row and column twice."""
        return x[(*i[:2], *(n // 2 for n in i[2:]))]

    @opdef.op(
        "Halved", domain="my.ops", infer=lambda x: (*x.shape[:2], *(n // 2 for n in x.shape[2:]))
    )
    def halved(i, x: Float):
        """Means of squares of 2 by 2."""
        taps = axes(2, 2)
        return reduce("sum", x[(*i[:2], *(n * 2 + k for n, k in zip(i[2:], taps)))], taps) / 4

    @opdef.op("Rank", domain="my.ops", infer=lambda x: x.shape)
    def rank(i, x: Float):
        """Elements less how many rows there are."""
        return x[i] - x.shape[1]

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


@pytest.mark.suite("all")
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


# ---------------------------------------------------------------- order and sums


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", [*UNARY, "TanhShrink", "Relu6", "Opposite", "Leaky"])
def test_functions_that_never_fall(name):
    """As known, and as probed at numbers, infinities and NaN."""
    op = made(name, (1,))
    falling = name in ("Neg", "Opposite")
    assert facts.is_monotone(op) == (name in RISING | {"Leaky"})
    assert facts.is_monotone(op, falling=True) == falling
    if facts.is_monotone(op, falling=falling):
        ends = np.array([-np.inf, -3e38, 3e38, np.inf])
        places = np.sort(np.concatenate([ends, *(np.linspace(-s, s, 999) for s in (2, 30, 1e4))]))
        results = run_op(made(name, places.shape), [places.astype(np.float32)])[0]
        rounding = 1e-6 * np.maximum(1, np.abs(places[1:-2]))
        above, below = (results[2:-1], results[1:-2])[:: -1 if falling else 1]
        assert (above >= below - rounding).all() and not np.isnan(results).any()
        assert np.isnan(run_op(op, [np.float32([np.nan])])[0]).all()


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("name", "constant", "rising", "falling"),
    [
        ("Mul", 2, True, False), ("Mul", -2, False, True), ("Mul", 0, False, False),
        ("Div", 4, True, False), ("Sub", 3, True, False), ("Add", np.inf, False, False),
        ("Max", 1, True, False), ("PRelu", 0.5, True, False), ("PRelu", -1, False, False),
    ],
)  # fmt: skip
def test_functions_of_an_element_and_a_number(name, constant, rising, falling):
    op = with_constants(name, np.float32(constant))
    assert facts.is_monotone(op, 0) == rising and facts.is_monotone(op, 0, True) == falling


def test_order_that_rests_on_the_range_of_the_operand():
    graph = new_graph("g", x=TensorType(f32, (4,)))
    b = Builder(graph)
    x = graph.params[0]
    roots = [b.Sqrt(x), b.Sqrt(b.Abs(x)), b.Log(b.Sigmoid(x)), b.Reciprocal(b.Add(b.Exp(x), 1.0))]
    assert [facts.is_monotone(v.producer) for v in roots] == [False, True, True, False]
    assert facts.is_monotone(roots[3].producer, falling=True)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("name", "arrays", "limits", "factor"),
    [
        ("Relu", (), (0, np.inf), None), ("Relu6", (), (0, 6), None), ("Tanh", (), None, None),
        ("Clip", (np.float32(-1), np.float32(2)), (-1, 2), None), ("LeakyRelu", (), None, 0.01),
        ("Clip", (None, np.float32(2)), (-np.inf, 2), None), ("Leaky", (), None, 0.1),
        ("Max", (np.float32(3),), (3, np.inf), None), ("ThresholdedRelu", (), None, None),
    ],
)  # fmt: skip
def test_limits_and_factors_below_zero(name, arrays, limits, factor):
    op = with_constants(name, *arrays)
    assert facts.limits(op) == limits
    assert facts.negative_factor(op) == (None if factor is None else pytest.approx(factor))


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "operands"),
    [
        ("MatMul", [(2, 3), (3, 4)], {}, {0, 1}), ("Gemm", [(2, 3), (3, 4)], {}, {0, 1}),
        ("Gemm", [(2, 3), (3, 4), (4,)], {}, set()), ("Mul", [(2, 3), (3,)], {}, {0, 1}),
        ("Conv", [(1, 2, 5, 5), (3, 2, 3, 3)], {"pads": (1, 1, 1, 1)}, {0, 1}),
        ("AveragePool", [(1, 2, 4, 4)], {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}, {0}),
        ("Neg", [(2,)], {}, {0}), ("Transpose", [(2, 3)], {}, {0}),
       
        ("Sub", [(2,), (2,)], {}, set()),
        ("ReduceSum", [(2, 3)], {}, {0}), ("ReduceMean", [(2, 3)], {}, {0}),
        ("Div", [(2,), (2,)], {}, {0}), ("ReduceMax", [(2, 3)], {}, set()),
        ("Relu", [(2,)], {}, set()), ("ReduceL2", [(2, 3)], {}, set()),
        ("Doubled", [(1, 2, 2, 2)], {}, {0}), ("Halved", [(1, 2, 4, 4)], {}, {0}),
        ("TanhShrink", [(2,)], {}, set()), ("Rank", [(2, 3)], {}, set()),
    ],
)  # fmt: skip
def test_operators_that_are_linear(name, shapes, attrs, operands):
    """As known, and as probed: f(2 x - 3 y) is 2 f(x) - 3 f(y)."""
    op = made(name, *shapes, **attrs)
    assert {n for n in range(len(shapes)) if facts.is_linear_in(op, n)} == operands
    rng = np.random.default_rng(0)
    arrays, other = ([rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(2))
    for n in range(len(shapes)):
        at = [[*arrays[:n], x, *arrays[n + 1 :]] for x in (arrays[n], other[n])]
        both = [*arrays[:n], 2 * arrays[n] - 3 * other[n], *arrays[n + 1 :]]
        x, y, sum_of = (run_op(op, operands)[0] for operands in (*at, both))
        assert np.allclose(sum_of, 2 * x - 3 * y, atol=1e-4) == (n in operands)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "axes"),
    [
        ("Softmax", [(4, 6)], {}, [0]), ("LayerNormalization", [(4, 6, 8), (8,)], {}, [0, 1]),
        ("MatMul", [(2, 4, 6), (6, 8)], {}, [0, 1, 2]), ("Transpose", [(4, 6)], {}, [0, 1]),
        ("Gemm", [(6, 4), (6, 8)], {"transA": 1}, [0, 1]), ("Mirror", [(4, 6)], {}, [0]),
        ("Conv", [(4, 2, 6, 6), (8, 2, 3, 3)], {}, [0, 1]), ("CumSum", [(4, 6)], {}, None),
        ("TanhShrink", [(4, 6)], {}, [0, 1]), ("Rank", [(4, 6)], {}, [0, 1]),
        ("Halved", [(4, 2, 6, 6)], {}, [0, 1]), ("Concat", [(4, 6), (2, 6)], {"axis": 0}, [1]),
    ],
)  # fmt: skip
def test_parts_of_results_are_made_of_parts_of_operands(name, shapes, attrs, axes):
    if axes is None:  # it is no expression per element
        assert parts.dims_along(with_constants(name, 0), 1) is None
        return
    op = made(name, *shapes, **attrs)
    rank = op.output.tensor.rank
    along = {a: parts.dims_along(op, a) for a in range(rank)}
    assert [a for a in range(rank) if along[a] is not None] == axes
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    for a in axes:
        half = op.output.tensor.dims[a] // 2
        cut = [
            x if d is None else np.ascontiguousarray(x.take(range(half), d))
            for x, d in zip(arrays, along[a])
        ]
        part = made(name, *(x.shape for x in cut), **attrs)
        alike = parts.computes_alike(op, part)
        assert alike == ((name, a) != ("Rank", 1))
        wanted = run_op(op, arrays)[0].take(range(half), a)
        assert np.allclose(run_op(part, cut)[0], wanted, atol=1e-5) == alike


def with_constants(name: str, *arrays, **attrs) -> Op:
    """An op on an image and constants (None: left out)."""
    graph = new_graph("g", x=TensorType(f32, (1, 4, 6, 6)))
    operands = [None if x is None else np.asarray(x) for x in arrays]
    domain = "my.ops" if ("my.ops", name) in opdef.REGISTRY else ""
    value = Builder(graph).op(name, graph.params[0], *operands, domain=domain, **attrs)
    graph.set_results([value])
    return value.producer


@pytest.mark.suite("all")
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


@pytest.mark.suite("all")
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


@pytest.mark.suite("all")
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


def _before_a_maximum_of_rows(b, x, f):
    return [b.ReduceMax(f(x), np.array([3])), b.ReduceMin(f(b.Neg(x)), np.array([2, 3]))]


def _between_product_and_maximum(b, x, f):
    y = f(b.MatMul(x, np.eye(4, dtype=np.float32)))
    return [b.MaxPool(y, kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))]


VECTORS = frozenset({"unaligned_vectors"})
SIMPLE = "canonicalise, cse, dce"
GROUPED = "canonicalise, rewrite{group=lowering}, decompose, fold, layout, fuse"
FEWER = "canonicalise, rewrite{group=lowering}, dce"
CASES = [
    (_transposes, SIMPLE, ["f"]), (_transposed_parts, SIMPLE, ["Neg", "f", "Concat"]),
    (_nothing_moved, SIMPLE, None), (_duplicates, SIMPLE, ["f", "Add"]), (_unused, SIMPLE, ["Neg"]),
    (_few_rows, GROUPED, None), (_behind_a_product, GROUPED, None),
    (_between_convolutions, GROUPED, None), (_behind_a_softmax, GROUPED, None),
    (_before_a_maximum, GROUPED, None), (_before_a_maximum, FEWER, ["MaxPool", "f"]),
    (_before_a_maximum_of_rows, FEWER, ["ReduceMax", "f", "Neg", "ReduceMin", "f"]),
    (_between_product_and_maximum, FEWER, ["MatMul", "MaxPool", "f"]),
]  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize(("build", "pipeline", "left"), CASES)
def test_an_own_operator_is_rewritten_as_tanh(build, pipeline, left):
    own = rewritten(build, "TanhShrink", "my.ops", pipeline)
    assert own == rewritten(build, "Tanh", "", pipeline)
    assert left is None or own == left


@pytest.mark.parametrize(("name", "left"), [("Relu6", ["f"]), ("Opposite", [])])
def test_own_operators_that_are_applied_twice(name, left):
    assert rewritten(lambda b, x, f: [f(f(x))], name, "my.ops", SIMPLE) == left


@pytest.mark.suite("all")
@pytest.mark.parametrize(("name", "bias"), [("Doubled", True), ("Halved", True), ("Halved", False)])
def test_products_change_places_with_own_linear_operators(name, bias):
    """As with Resize and AveragePool: there are fewer to multiply."""
    w = np.random.default_rng(2).normal(size=(12, 16, 1, 1)).astype(np.float32)
    b0 = np.arange(12, dtype=np.float32) if bias else None

    def build(b, x, f):
        maps = b.Reshape(x, np.array([2, 16, 3, 1] if name == "Doubled" else [1, 16, 3, 2]))
        if name == "Doubled":
            return [b.Conv(f(maps), w, b0)]
        return [f(b.Conv(maps, w, b0))]

    left = rewritten(build, name, "my.ops", FEWER)
    assert left == ["Reshape", *(["Conv", "f", "Add"] if name == "Doubled" else ["f", "Conv"])]


def test_own_activations_go_into_integers():
    """Limits and slopes below zero become those of the integers, as Clip's and LeakyRelu's do."""
    scale, zero = np.float32(0.1), np.int8(3)
    codes = np.random.default_rng(3).integers(-9, 9, (4, 4)).astype(np.int8)

    def build(b, x, f):
        x, w = (
            b.DequantizeLinear(q, scale, zero) for q in (b.QuantizeLinear(x, scale, zero), codes)
        )
        y = b.QuantizeLinear(f(b.MatMul(x, w)), scale, np.int8(-100))
        return [b.DequantizeLinear(y, scale, np.int8(-100))]

    for own in ("Relu6", "Leaky"):
        names = rewritten(build, own, "my.ops", "integers, fold, dce")
        assert "f" not in names and "Requantize" in names


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
