"""Index maps turned round, against all indices tried one by one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from graphc.autodiff.transpose import Unsolvable, solve
from graphc.ir.dtypes import f64, i64
from graphc.ir.expr import Const, Expr, Index, Load, as_expr, free_indices, maximum, substitute
from graphc.ir.simplify import simplify


def number(expr: Expr, at: dict) -> int:
    result = simplify(substitute(expr, {i: Const(v, i64) for i, v in at.items()}))
    assert isinstance(result, Const), result
    return int(result.value)


def check(element, shape, variables) -> None:
    """Every index that reads an element is found, and no other."""
    position = [Index(f"j{d}", extent) for d, extent in enumerate(shape)]
    solution = solve(element, position, variables)
    rest = [v for v in variables if v not in solution.known]
    wanted = set()
    for values in itertools.product(*(range(v.count) for v in variables)):
        at = dict(zip(variables, values))
        where = tuple(number(e, at) for e in element)
        if all(0 <= w < extent for w, extent in zip(where, shape)):
            wanted.add((where, values))
    found = set()
    for where in np.ndindex(*shape):
        here = dict(zip(position, where))
        for values in itertools.product(*(range(v.count) for v in rest)):
            at = {**here, **dict(zip(rest, values))}
            if number(solution.guard, at):
                full = {**at, **{v: number(e, at) for v, e in solution.known.items()}}
                found.add((where, tuple(full[v] for v in variables)))
    assert found == wanted


I, J, K = Index("i0", 4), Index("i1", 3), Index("k0", 3)

MAPS = {
    "itself": ((I, J), (4, 3)),
    "permuted": ((J, I), (3, 4)),
    "broadcast": ((as_expr(0, i64), J), (1, 3)),
    "diagonal": ((I, I), (4, 4)),
    "row": ((as_expr(2, i64), I), (3, 4)),
    "slice": ((I * 2 + 1,), (9,)),
    "reversed": ((3 - I,), (4,)),
    "padded": ((I - 1,), (3,)),
    "window": ((I * 2 + K - 1,), (8,)),
    "dilated": ((I + K * 2 - 2,), (6,)),
    "reshaped": (((I * 3 + J) // 2, (I * 3 + J) % 2), (6, 2)),
    "three of two": (((I * 3 + J) // 6, (I * 3 + J) // 2 % 3, (I * 3 + J) % 2), (2, 3, 2)),
    "flat": ((I * 3 + J,), (12,)),
    "flat with a gap": ((I * 5 + J + 1,), (22,)),
    "group": ((I // 2 * 3 + K,), (6,)),
    "sum": ((I + J,), (6,)),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_maps(name):
    element, shape = MAPS[name]
    if name == "group":
        with pytest.raises(Unsolvable):  # a quotient without its remainder
            solve(element, [Index("j0", 6)], (I, K))
        return
    used = [v for v in (I, J, K) if any(v in free_indices(e) for e in element)]
    check(element, shape, used)


@pytest.mark.parametrize("seed", range(40))
def test_random_affine_maps(seed):
    rng = random.Random(seed)
    variables = [Index(f"{'ik'[n % 2]}{n}", rng.randint(1, 4)) for n in range(rng.randint(1, 3))]
    element, shape = [], []
    for _ in range(rng.randint(1, 2)):
        expr = as_expr(rng.randint(-2, 2), i64)
        for v in rng.sample(variables, rng.randint(0, len(variables))):
            expr = expr + v * rng.choice([1, 1, 2, 3, -1, -2, 4])
        element.append(simplify(expr))
        shape.append(rng.randint(1, 7))
    check(tuple(element), tuple(shape), variables)


@pytest.mark.parametrize(
    "index", [Load("0", (I,), i64), maximum(I - 1, 0), Load("1", (I,), f64).cast(i64)], ids=str
)
def test_data_and_clamps_are_not_solved(index):
    with pytest.raises(Unsolvable):
        solve((index,), [Index("j0", 4)], (I,))
