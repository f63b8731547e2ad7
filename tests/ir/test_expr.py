"""Expressions: interning, folding, scalar semantics, substitution and traversal."""

from __future__ import annotations

import gc
import math
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from graphc.ir import dtypes
from graphc.ir import expr as expr_module
from graphc.ir.dtypes import boolean, f16, f32, f64, i8, i32, i64, u8, u64
from graphc.ir.expr import (
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Sym,
    as_expr,
    bitcast,
    call,
    called,
    cast,
    cost,
    free_indices,
    loads,
    maximum,
    minimum,
    reduce,
    select,
    substitute,
    transform,
    walk,
)
from graphc.ir.interp import evaluate
from graphc.ir.scalar.ops import TABLE, apply

pytestmark = pytest.mark.suite("all")

I, J, K = Index("i0", 4), Index("i1", 3), Index("k", 5)  # noqa: E741
X = Load("x", (I, J), f32)


# ---------------------------------------------------------------- structure


def test_equal_structure_is_the_same_object():
    assert (I + J * 2) is (Index("i0", 4) + Index("i1", 3) * 2)
    assert Load("x", (I, J), f32) is X
    assert Reduce("sum", X, (I,)) is Reduce("sum", X, (I,))
    assert Sym("N", 1, 8) is Sym("N", 1, 8)


def test_threads_that_build_equal_expressions_get_the_same_object():
    def built(_: int) -> list[Expr]:
        start.wait()
        return [Index(f"of_threads{n}", 7) * 3 + n for n in range(300)]

    start = Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(built, range(8))
    assert all(a is b for other in others for a, b in zip(first, other))


def test_operations_that_an_expression_calls():
    rows = Reduce("sum", call("exp", X) * 2.0, (I,))
    assert called(rows) == {"exp", "mul"}
    assert called(maximum(rows, 0.0)) == {"exp", "mul", "max"}
    assert called(X) == called(Const(1, f32)) == frozenset()
    assert called(Load("x", (I % 3, J), f32)) == {"mod"}


def test_different_structure_is_not():
    assert (I + J) is not (J + I)
    assert Const(1, f32) is not Const(1, f64)
    assert Const(0.0, f32) is not Const(-0.0, f32)
    assert Sym("N", 1, 8) is not Sym("N", 1, 9)
    assert Index("i0", 4) is not Index("i0", 5)


def test_nodes_stay_the_same_when_they_are_no_longer_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expr_module, "_HELD", len(expr_module._newest) + 50)
    kept = Index("kept", 7) * 3 + 1
    lost = weakref.ref(Sym("lost_soon"))
    assert lost() is not None  # held, as it is new
    fillers = [Sym(f"filler{i}") for i in range(100)]
    assert Index("kept", 7) * 3 + 1 is kept
    assert fillers == [Sym(f"filler{i}") for i in range(100)]
    gc.collect()
    assert lost() is None


def test_nan_constants_are_interned():
    assert Const(math.nan, f32) is Const(math.nan, f32)


def test_pickling_interns_again():
    for node in (I + J, X, Reduce("max", X, (J,)), Const(1.5, f16), select(X < 0, X, 1.0)):
        assert pickle.loads(pickle.dumps(node)) is node


def test_truth_of_an_expression_is_an_error():
    with pytest.raises(TypeError, match="select"):
        bool(X < 0)


def test_mixed_types_are_refused():
    with pytest.raises(TypeError, match="equal types"):
        X + Load("y", (I,), f64)
    with pytest.raises(TypeError, match="booleans"):
        call("and", X, X)
    with pytest.raises(TypeError, match="boolean"):
        call("select", I, X, X)


# ---------------------------------------------------------------- folding


@pytest.mark.parametrize(
    "folded, expected",
    [
        (Const(7, i64) // 2, Const(3, i64)),
        (Const(-7, i64) // 2, Const(-4, i64)),
        (call("div", Const(-7, i64), 2), Const(-3, i64)),
        (Const(-7, i64) % 4, Const(1, i64)),
        (call("rem", Const(-7, i64), 4), Const(-3, i64)),
        (Const(5, i64) // 0, Const(0, i64)),
        (Const(127, i8) + 1, Const(-128, i8)),
        (Const(200, u8) + 100, Const(44, u8)),
        (minimum(Const(1.0, f32), math.nan), Const(math.nan, f32)),
        (cast(Const(3.99, f32), i32), Const(3, i32)),
        (cast(Const(math.nan, f32), i32), Const(0, i32)),
        (cast(Const(1e20, f32), i64), Const(2**63 - 1, i64)),
        (cast(Const(1e20, f32), u64), Const(2**64 - 1, u64)),
        (cast(Const(1e6, f32), f16).rebuild((Const(1e6, f32),)), Const(math.inf, f16)),
        (cast(Const(1e6, f32), f16, saturate=True), Const(65504.0, f16)),
        (cast(Const(300, i64), u8), Const(44, u8)),
        (cast(Const(0.5, f32), boolean), Const(True, boolean)),
        (bitcast(Const(1.0, f32), i32), Const(0x3F800000, i32)),
        (call("round", Const(2.5, f32)), Const(2.0, f32)),
        (Const(-8, i32) >> 40, Const(-1, i32)),
        (Const(1, i32) << 32, Const(0, i32)),
        (call("ne", Const(math.nan, f32), math.nan), Const(True, boolean)),
    ],
)
def test_constants_fold(folded, expected):
    assert folded is expected


def test_constants_keep_the_digits_that_narrow_floats_lack():
    tenth = as_expr(0.1, f16)
    assert isinstance(tenth, Call) and tenth.args[0] is Const(0.1, f32)
    assert tenth.dtype is f16 and as_expr(0.5, f16) is Const(0.5, f16)


def test_identities_fold():
    assert I + 0 is I and 0 + I is I and I - 0 is I
    assert I * 1 is I and I // 1 is I and I * 0 is Const(0, i64)
    assert I - I is Const(0, i64) and I % 1 is Const(0, i64)
    assert X * 1.0 is X and X / 1.0 is X
    assert select(Const(True, boolean), X, 0.0) is X
    assert select(X < 0, X, X) is X
    assert ~~(X < 0) is (X < 0)
    assert ((X < 0) & True) is (X < 0)
    assert ((X < 0) | True) is Const(True, boolean)


def test_float_zero_is_not_an_identity():
    assert (X + 0.0) is not X  # -0.0 + 0.0 is 0.0
    assert (X * 0.0) is not Const(0.0, f32)  # NaN * 0 is NaN


def test_literals_take_the_type_of_the_other_side():
    assert (X + 1).args[1] is Const(1.0, f32)
    assert (1 - X).args[0] is Const(1.0, f32)
    assert select(X < 0, 0, X).args[1] is Const(0.0, f32)


# ---------------------------------------------------------------- traversal


def test_substitute_replaces_leaves_and_folds():
    assert substitute(I * 3 + J, {I: Const(2, i64), J: Const(1, i64)}) is Const(7, i64)


def test_walk_gives_children_first_and_each_node_once():
    shared = X * 2.0
    nodes = list(walk(shared + shared))
    assert len(nodes) == len(set(nodes))
    assert nodes.index(X) < nodes.index(shared)


def test_transform_replaces_nodes_and_keeps_the_rest():
    def renamed(node):
        return Load("y", node.index, node.dtype) if isinstance(node, Load) else None

    body = transform(X + 1.0, renamed)
    assert body is Load("y", (I, J), f32) + 1.0
    assert transform(body, lambda node: None) is body


def test_free_indices_stop_at_reductions():
    total = reduce("sum", Load("x", (I, K), f32), (K,))
    assert free_indices(total) == {I}
    assert [load.source for load in loads(total)] == ["x"]
    assert cost(total) > cost(X)


def test_axes_of_extent_one_vanish_from_reductions():
    one = Index("k", 1)
    assert reduce("sum", Load("x", (I, one), f32), (one,)) is Load("x", (I, Const(0, i64)), f32)


@pytest.mark.parametrize("name, value", [("sum", 0), ("prod", 1), ("max", -math.inf)])
def test_reduction_over_nothing_is_the_identity(name, value):
    empty = Index("k", 0)
    node = Reduce(name, Load("x", (empty,), f32), (empty,))
    assert node.identity.value == value
    assert evaluate(node, (), {"x": np.zeros(0, np.float32)}) == value


# ---------------------------------------------------------------- evaluation


def test_untaken_branch_may_load_out_of_bounds():
    x = np.arange(3, dtype=np.float32)
    outside = select(I < 3, Load("x", (I,), f32), 9.0)
    assert evaluate(outside, (4,), {"x": x}).tolist() == [0, 1, 2, 9]


def test_min_and_max_spread_nan():
    x = np.array([1, math.nan], np.float32)
    i = Index("i0", 2)
    for extreme in (minimum, maximum):
        result = evaluate(extreme(Load("x", (i,), f32), 0.5), (2,), {"x": x})
        assert np.isnan(result).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [d for d in dtypes.BY_NAME.values() if d.is_number])
def test_every_number_type_adds_and_casts(dtype):
    two = Const(2, dtype) if dtype.max >= 2 else Const(1, dtype)
    assert (two - two).value == 0 or dtype is dtypes.f8e8m0
    assert cast(cast(two, f64), dtype) is two
    assert cast(two, dtypes.string).dtype is dtypes.string


def test_string_casts_follow_onnx_runtime():
    values = np.array([1.0, 0.1, math.nan, -math.inf, 1e20], np.float32)
    text = apply(TABLE["cast"], dtypes.string, values)
    assert text.tolist() == ["1", "0.1", "NaN", "-INF", "1e+20"]
    back = apply(TABLE["cast"], f32, text)
    assert np.array_equal(back, values, equal_nan=True)
    assert apply(TABLE["cast"], i64, np.array(["12", "-3", "2.7"], object)).tolist() == [12, -3, 2]
