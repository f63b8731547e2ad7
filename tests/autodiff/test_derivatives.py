"""The table of derivatives against differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.autodiff.derivatives import PARTIALS, partial
from graphc.autodiff.tangent import tangent
from graphc.errors import UnsupportedError
from graphc.ir.dtypes import f32, f64
from graphc.ir.expr import Call, Expr, Load, cast, reduce, select
from graphc.ir.interp import evaluate
from graphc.ir.opdef import axes
from graphc.ir.ops.generic import with_plain_names
from graphc.ir.scalar.ops import TABLE

STEP = 1e-6
BITS = {"shl", "shr", "shr_rounded", "shr_to_even", "shr_to_odd", "mul_high", "band", "bor", "bxor",
        "bnot", "bitcast"}  # fmt: skip
RANGES = {
    "log": (0.2, 3), "sqrt": (0.2, 3), "acosh": (1.1, 4), "asin": (-0.9, 0.9),
    "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "pow": (0.2, 3), "tan": (-1.2, 1.2),
}  # fmt: skip
ONLY_F32 = {"cut_tf32", "round_tf32", "add_half_tf32"}


def operand(number: int) -> Load:
    return Load(str(number), (), f64)


def value(expr: Expr, *numbers: float) -> float:
    arrays = {str(n): np.asarray(x, np.float64) for n, x in enumerate(numbers)}
    return float(evaluate(expr, (), arrays))


def test_every_operation_on_floats_has_a_row():
    floats = {
        op.name for op in TABLE.values() if op.rule in ("same", "cast") or op.name in ONLY_F32
    }
    assert floats - BITS - set(PARTIALS) == set()
    assert all(row is None or len(row) == TABLE[name].arity for name, row in PARTIALS.items())


@pytest.mark.parametrize("name", sorted(PARTIALS.keys() - ONLY_F32 - {"cast", "cast_sat"}))
def test_differences(name):
    arity = TABLE[name].arity
    node = Call(TABLE[name], tuple(operand(n) for n in range(arity)), f64)
    low, high = RANGES.get(name, (-2.5, 2.5))
    points = np.random.default_rng(0).uniform(low, high, (8, arity))
    if name == "clamp":
        points[:, 1:].sort(axis=1)  # a lower and an upper limit
    for point in points:
        for n in range(arity):
            row = partial(node, n, operand(arity))
            found = 0.0 if row is None else value(row, *point, 1.0)
            step = np.eye(arity)[n] * STEP
            slope = (value(node, *(point + step)) - value(node, *(point - step))) / (2 * STEP)
            assert found == pytest.approx(slope, rel=1e-6, abs=1e-7), (point, n)


def test_operations_on_bits_are_refused():
    node = Call(TABLE["bitcast"], (operand(0),), f64)
    with pytest.raises(UnsupportedError, match="bitcast"):
        partial(node, 0, operand(1))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("row", [[1.5, -2.0, 0.5], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0]])
def test_tangents_of_reductions(op, row):
    (k,) = axes(3)
    body = reduce(op, Load("0", (k,), f64), (k,))
    along = tangent(body, lambda load: Load("1", load.index, f64))
    x, t = np.array(row), np.array([0.3, -1.0, 2.0])
    found = float(evaluate(with_plain_names(along, ()), (), {"0": x, "1": t}))
    step = 1e-7
    ahead, behind = (float(evaluate(body, (), {"0": x + s * t})) for s in (step, -step))
    reached = x == (x.max() if op == "max" else x.min())
    if op in ("max", "min") and reached.sum() > 1:
        assert found == pytest.approx(t[reached].mean())  # half each, as PyTorch's amax
    else:
        assert found == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-6)


def test_what_is_not_chosen_does_not_count():
    x = operand(0)
    safe = select(x > 0, Call(TABLE["log"], (x,), f64), 0)
    along = tangent(safe, lambda load: Load("1", (), f64))
    assert value(along, 0.0, 1.0) == 0.0


def test_tangents_of_conversions_have_the_new_type():
    wide = cast(Load("0", (), f32), f64) * 2
    assert tangent(wide, lambda load: Load("1", (), f32)).dtype is f64
    narrow = cast(operand(0) * 2, f32)
    assert tangent(narrow, lambda load: Load("1", (), f64)).dtype is f32
