"""Reductions, softmax and what adds up or orders a whole axis: numpy and scipy."""

from __future__ import annotations

import numpy as np
import torch
from by_torch import array, tensor
from judge import BETWEEN, WIDE, Case
from operands import integers, nasty, normal, uniform
from scipy import special

REDUCTIONS = {
    "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **to: np.sum(np.abs(x), **to),
    "ReduceL2": lambda x, **to: np.sqrt(np.sum(x * x, **to)),
    "ReduceSumSquare": lambda x, **to: np.sum(x * x, **to),
    "ReduceLogSum": lambda x, **to: np.log(np.sum(x, **to)),
    "ReduceLogSumExp": lambda x, **to: special.logsumexp(x, **to),
}  # fmt: skip


def over(function):
    """A reference over given axes: all of them if there are none."""

    def reference(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
        if axes is None or not axes.size:
            if noop_with_empty_axes:
                return x
            axes = np.arange(x.ndim)
        return np.asarray(function(x, axis=tuple(axes), keepdims=bool(keepdims)))

    return reference


def reduction(name: str, how: str, *inputs, **rest) -> Case:
    return Case(f"{name}_{how}", name, inputs, over(REDUCTIONS[name]), share=1.0, **rest)


def reduced(name: str) -> list[Case]:
    """An operator on some axes, on all, on one of extent 1, far from zero, and of no elements."""
    positive = name == "ReduceLogSum"
    shape = (3, 5, 4, 2)
    x = uniform(0.1, 3, *shape) if positive else normal(*shape)
    cases = [
        reduction(name, "some", x, np.array([-1, 1])),
        reduction(name, "all", x, attrs={"keepdims": 0}),
        reduction(name, "one", normal(4, 1, scale=0.1, offset=2), np.array([1])),
        reduction(name, "rows", uniform(0.5, 1.5, 7, 300), np.array([0]), attrs={"keepdims": 0}),
        reduction(name, "no_rows", normal(4, 0, 3), np.array([0])),
    ]
    if name != "ReduceProd":
        cases.append(reduction(name, "offset", normal(2, 257, offset=100), np.array([1]),
                               roundings=16))  # fmt: skip
    if name not in ("ReduceMax", "ReduceMin", "ReduceMean"):
        cases.append(reduction(name, "of_nothing", normal(4, 0, 3), np.array([1])))
    return cases


def special_values(name: str) -> Case:
    """Rows with a NaN, an infinity, both infinities, and all zeros of both signs."""
    rows = np.array([[1, np.nan, 2], [1, np.inf, -2], [np.inf, -np.inf, 1], [-np.inf, -1, 3],
                     [0.0, -0.0, 0.0], [-np.inf] * 3, [np.inf] * 3])  # fmt: skip
    return reduction(name, "special", lambda _, dtype: rows.astype(dtype), np.array([1]))


def scanned(function, start):
    def reference(x, axis, *, exclusive=0, reverse=0):
        axis = int(np.asarray(axis).reshape(-1)[0])
        x = np.flip(x, axis) if reverse else x
        y = function(x, axis=axis)
        if exclusive:
            first = np.full_like(np.take(y, [0], axis), start)
            y = np.concatenate([first, np.take(y, range(x.shape[axis] - 1), axis)], axis)
        return np.flip(y, axis) if reverse else y

    return reference


def extreme(function):
    def reference(x, *, axis=0, keepdims=1, select_last_index=0):
        flipped = np.flip(x, axis) if select_last_index else x
        y = np.expand_dims(function(flipped, axis), axis)
        y = x.shape[axis] - 1 - y if select_last_index else y
        return y if keepdims else np.squeeze(y, axis)

    return reference


def topk(x, k, *, axis, largest):
    """Equal elements in the order they have."""
    order = np.argsort(-x if largest else x, axis, kind="stable")
    order = np.take(order, range(int(k[0])), axis)
    return np.take_along_axis(x, order, axis), order


def hardmax(x, *, axis):
    return (np.arange(x.shape[axis]) == np.argmax(x, axis)[..., None]) * 1.0


def normalised(x, *, p, axis):
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))


def unique(x):
    values, back, counts = torch.unique(tensor(x), return_inverse=True, return_counts=True)
    back = array(back).reshape(-1)
    first = np.array([np.flatnonzero(back == n)[0] for n in range(len(values))])
    return array(values), first, back, array(counts)


TIES = integers(0, 4, 3, 11, 2)
SCANS = [{"exclusive": e, "reverse": r} for e in (0, 1) for r in (0, 1)]
ORDERS = [
    *(
        Case(f"{name}_{last}_{keep}", name, [TIES], extreme(function),
             {"axis": 1, "keepdims": keep, "select_last_index": last})
        for name, function in (("ArgMax", np.argmax), ("ArgMin", np.argmin))
        for last in (0, 1) for keep in (0, 1)
    ),
    *(
        Case(f"TopK_{axis}_{largest}", "TopK", [TIES, np.array([3])], topk,
             {"axis": axis, "largest": largest}, outputs=2, roundings=0)
        for axis in (0, 1) for largest in (0, 1)
    ),
    Case("TopK_infinite", "TopK", [nasty(nan=False), np.array([12])], topk,
         {"axis": 0, "largest": 1}, outputs=2, roundings=0),
    Case("Hardmax", "Hardmax", [TIES], hardmax, {"axis": -1}),
    Case("Unique", "Unique", [integers(-3, 9, 4, 5)], unique, outputs=4, types=WIDE),
]  # fmt: skip
SOFT = {"Softmax": special.softmax, "LogSoftmax": special.log_softmax}
HIDDEN = np.array([[0, -np.inf, 1, 2], [-np.inf, -np.inf, 0, -np.inf], [1e4, 0, -1e4, 1e4]])
SOFTMAXES = [
    case
    for name, function in SOFT.items()
    for case in (
        Case(name, name, [normal(3, 7, 2, scale=4)], lambda x, *, axis, f=function: f(x, axis=axis),
             {"axis": 1}, share=1.0, narrow=BETWEEN),
        Case(f"{name}_far", name, [normal(3, 70, scale=3, offset=-1000)],
             lambda x, f=function: f(x, axis=-1), share=1.0),
        Case(f"{name}_hidden", name, [lambda _, dtype: HIDDEN.astype(dtype)],
             lambda x, f=function: f(x, axis=-1), share=1.0),
        Case(f"{name}_single", name, [normal(5, 1, scale=9)], lambda x, f=function: f(x, axis=-1)),
        Case(f"{name}_empty", name, [normal(0, 4)], lambda x, f=function: f(x, axis=-1)),
        Case(f"{name}_old", name, [normal(3, 4, 5)],
             lambda x, f=function: f(x.reshape(3, 20), axis=-1).reshape(x.shape), {"axis": 1},
             opset=11, share=1.0, types=("float32", "float64", "float16"),
             narrow=BETWEEN, note="Before opset 13, of all axes from the given one."),
    )
]  # fmt: skip
CASES = [
    *(case for name in REDUCTIONS for case in reduced(name)),
    *(special_values(n) for n in REDUCTIONS if n not in ("ReduceLogSum",)),
    reduction("ReduceSum", "none", normal(3, 4), np.array([], np.int64),
              attrs={"noop_with_empty_axes": 1}),
    *(
        Case(f"CumSum_{a['exclusive']}{a['reverse']}", "CumSum", [normal(3, 9), np.array(1)],
             scanned(np.cumsum, 0), a, share=2.0)
        for a in SCANS
    ),
    *(
        Case(f"CumProd_{a['exclusive']}{a['reverse']}", "CumProd", [normal(3, 9), np.array(1)],
             scanned(np.cumprod, 1), a, opset=26, roundings=12)
        for a in SCANS
    ),
    *(
        Case(f"LpNormalization_{p}", "LpNormalization", [normal(3, 6, 2)], normalised,
             {"p": p, "axis": 1}, share=1.0)
        for p in (1, 2)
    ),
    *ORDERS,
    *SOFTMAXES,
]  # fmt: skip
