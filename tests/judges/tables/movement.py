"""Operators that move, pick, put and repeat elements: numpy and PyTorch, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from by_torch import array, tensor
from judge import Case
from operands import booleans, integers, nasty, normal

TYPES = ("float32", "bfloat16", "uint8", "int64")
FEW = ("float32", "int8")


def at(low, high, *shape):
    return integers(low, high, *shape, dtype=np.int64)


def numbers(*shape):
    return integers(0, 100, *shape)


def gather_nd(x, where, *, batch_dims=0):
    if batch_dims:
        return np.stack([gather_nd(a, b, batch_dims=batch_dims - 1) for a, b in zip(x, where)])
    return x[tuple(np.moveaxis(where, -1, 0))]


REDUCED = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(x, where, updates, *, axis=0, reduction="none"):
    axis, where = axis % x.ndim, where % x.shape[axis]
    if reduction == "none":
        return array(tensor(x).scatter(axis, tensor(where), tensor(updates)))
    return array(tensor(x).scatter_reduce(axis, tensor(where), tensor(updates), REDUCED[reduction]))


def scatter_nd(x, where, updates, *, reduction="none"):
    y, combine = x.copy(), {"add": np.add, "mul": np.multiply, "max": np.maximum,
                            "min": np.minimum}.get(reduction)  # fmt: skip
    for place in np.ndindex(where.shape[:-1]):
        to = tuple(where[place])
        y[to] = updates[place] if combine is None else combine(y[to], updates[place])
    return y


def pad(x, pads, value=None, axes=None, *, mode="constant"):
    axes = range(x.ndim) if axes is None else axes
    widths, half = [(0, 0)] * x.ndim, len(pads) // 2
    for n, axis in enumerate(axes):
        widths[axis] = (pads[n], pads[n + half])
    cut = tuple(slice(max(-a, 0), x.shape[d] - max(-b, 0)) for d, (a, b) in enumerate(widths))
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    if mode == "constant":
        return np.pad(x[cut], widths, constant_values=0 if value is None else value)
    return np.pad(x[cut], widths, mode)


def sliced(x, starts, ends, axes, steps):
    cut = [slice(None)] * x.ndim
    for a, b, axis, step in zip(starts, ends, axes, steps):
        past = b < -x.shape[axis]
        cut[axis] = slice(a, None if past else b, step)
    return x[tuple(cut)]


def depth_to_space(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    if mode == "CRD":
        return array(torch.pixel_shuffle(tensor(x), b))
    y = x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // b**2, h * b, w * b)


def space_to_depth(x, *, blocksize):
    n, c, h, w = x.shape
    b = blocksize
    y = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


def reversed_sequences(x, lengths, *, batch_axis, time_axis):
    y = np.moveaxis(x, (batch_axis, time_axis), (0, 1)).copy()
    for row, n in zip(y, lengths):
        row[:n] = row[:n][::-1]
    return np.moveaxis(y, (0, 1), (batch_axis, time_axis))


def one_hot(where, depth, values, *, axis=-1):
    depth = int(np.asarray(depth).reshape(-1)[0])
    inside = (where >= -depth) & (where < depth)
    hot = (np.arange(depth) == (where % depth)[..., None]) & inside[..., None]
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)


def trilu(x, k, *, upper):
    return np.triu(x, int(k)) if upper else np.tril(x, int(k))


def embedded(x, shape):
    """Centred: cut where an axis is too long, padded with zeros where it is too short."""
    for axis, wanted in enumerate(shape):
        extent = x.shape[axis]
        if extent > wanted:
            x = np.take(x, range((extent - wanted) // 2, (extent - wanted) // 2 + wanted), axis)
        else:
            width = [(0, 0)] * x.ndim
            width[axis] = ((wanted - extent) // 2, wanted - extent - (wanted - extent) // 2)
            x = np.pad(x, width)
    return x


def exact(name: str, op: str, inputs, reference, attrs=None, types=TYPES, **rest) -> Case:
    return Case(name, op, inputs, reference, attrs or {}, types, roundings=0, **rest)


X = numbers(3, 4, 5)
PADS = {"plain": [0, 1, 2, 0, 2, 1], "cut": [0, -1, 2, 1, 2, -2], "none": [0] * 6}
SLICES = {
    "plain": ([1, 0], [3, 2], [0, 1], [1, 1]), "back": ([-1, -2], [-99, -4], [0, 2], [-1, -1]),
    "steps": ([0, 4], [99, 0], [1, 2], [2, -3]), "nothing": ([2], [2], [1], [1]),
    "beyond": ([-99], [99], [2], [2]),
}  # fmt: skip
PICKS = [
    *(exact(f"Gather_{axis}", "Gather", [X, at(-3, 3, 2, 3)],
            lambda x, w, *, axis: np.take(x, w, axis), {"axis": axis}) for axis in (0, 1, -1)),
    exact("Gather_scalar", "Gather", [X, np.array(-1)], lambda x, w: x[-1]),
    exact("Gather_none", "Gather", [X, np.zeros((0,), np.int64)], lambda x, w: x[:0]),
    exact("GatherElements", "GatherElements", [X, at(-4, 4, 3, 2, 5)],
          lambda x, w, *, axis: np.take_along_axis(x, w, axis), {"axis": 1}),
    exact("GatherND", "GatherND", [X, at(-3, 3, 6, 2)], gather_nd),
    exact("GatherND_batched", "GatherND", [X, at(0, 4, 3, 2, 1)], gather_nd, {"batch_dims": 1}),
    exact("Compress", "Compress", [X, np.array([True, False, True])],
          lambda x, w: x[:, w.nonzero()[0]], {"axis": 1}),
    exact("NonZero", "NonZero", [integers(0, 2, 4, 5)], lambda x: np.stack(np.nonzero(x))),
    *(exact(f"Slice_{n}", "Slice", [X, *map(np.array, s)], sliced) for n, s in SLICES.items()),
]  # fmt: skip
DISTINCT = np.array([[3, -5, 1], [0, 2, 4]])
PUTS = [
    exact("ScatterElements_none", "ScatterElements", [numbers(4, 5), DISTINCT, numbers(2, 3)],
          scatter_elements, {"axis": 1}),
    *(
        exact(f"ScatterElements_{how}", "ScatterElements",
              [integers(1, 5, 4, 5), at(-5, 5, 4, 7), integers(1, 3, 4, 7)], scatter_elements,
              {"axis": 1, "reduction": how}, ("float32", "float64", "int32", "int64"))
        for how in ("add", "mul", "max", "min")
    ),
    exact("ScatterND_none", "ScatterND", [X, np.array([[0, 1], [-1, 3], [1, -2]]), numbers(3, 5)],
          scatter_nd),
    *(
        exact(f"ScatterND_{how}", "ScatterND",
              [integers(1, 5, 4, 5), at(-4, 4, 9, 1), integers(1, 3, 9, 5)], scatter_nd,
              {"reduction": how}, ("float32", "float64", "int32", "int64"))
        for how in ("add", "mul", "max", "min")
    ),
]  # fmt: skip
PADDED = [
    exact(f"Pad_{mode}_{n}", "Pad", [X, np.array(pads)], pad, {"mode": mode})
    for mode in ("constant", "reflect", "edge", "wrap") for n, pads in PADS.items()
]  # fmt: skip
MOVES = [
    exact("Transpose", "Transpose", [X], lambda x, *, perm: x.transpose(perm), {"perm": [2, 0, 1]}),
    exact("Transpose_default", "Transpose", [X], lambda x: x.T),
    exact("Reshape", "Reshape", [X, np.array([0, -1, 2, 2])], lambda x, s: x.reshape(3, 5, 2, 2)),
    exact("Flatten", "Flatten", [X], lambda x: x.reshape(12, 5), {"axis": 2}),
    exact("Squeeze", "Squeeze", [numbers(1, 4, 1), np.array([-1])], lambda x, a: x[..., 0]),
    exact("Unsqueeze", "Unsqueeze", [numbers(3, 4), np.array([0, -1])],
          lambda x, a: x[None, ..., None]),
    exact("Tile", "Tile", [X, np.array([2, 1, 3])], np.tile),
    exact("Expand", "Expand", [numbers(3, 1, 5), np.array([2, 1, 4, 1])],
          lambda x, s: np.broadcast_to(x, (2, 3, 4, 5))),
    exact("Concat", "Concat", [X, numbers(3, 0, 5), numbers(3, 2, 5)],
          lambda *x: np.concatenate(x, 1), {"axis": -2}),
    exact("Split", "Split", [X, np.array([1, 0, 3])], lambda x, s: tuple(np.split(x, [1, 1], 1)),
          {"axis": 1}, outputs=3),
    exact("Split_uneven", "Split", [numbers(7, 2)], lambda x: (x[:3], x[3:6], x[6:]),
          {"num_outputs": 3}, outputs=3),
    exact("DepthToSpace", "DepthToSpace", [numbers(2, 8, 2, 3)], depth_to_space, {"blocksize": 2}),
    exact("DepthToSpace_CRD", "DepthToSpace", [numbers(2, 8, 2, 3)], depth_to_space,
          {"blocksize": 2, "mode": "CRD"}),
    exact("SpaceToDepth", "SpaceToDepth", [numbers(2, 2, 4, 6)], space_to_depth, {"blocksize": 2}),
    *(exact(f"Trilu_{upper}_{k}", "Trilu", [numbers(2, 4, 5), np.array(k)], trilu, {"upper": upper})
      for upper in (0, 1) for k in (-2, 0, 6)),
    exact("Trilu_special", "Trilu", [lambda rng, dtype: np.full((3, 3), np.nan, dtype),
                                     np.array(0)], trilu, {"upper": 1}, ("float32", "float16")),
    *(exact(f"ReverseSequence_{b}{t}", "ReverseSequence",
            [numbers(4, 4, 2), np.array([1, 4, 2, 3])], reversed_sequences,
            {"batch_axis": b, "time_axis": t}) for b, t in ((0, 1), (1, 0))),
    *(exact(f"OneHot_{axis}", "OneHot", [at(-4, 8, 2, 3), np.array([5]), numbers(2)], one_hot,
            {"axis": axis}) for axis in (-1, 0, 1)),
    exact("EyeLike", "EyeLike", [numbers(4, 6)], lambda x, *, k: np.eye(4, 6, k), {"k": -1},
          types=FEW),
    exact("CenterCropPad", "CenterCropPad", [X, np.array([6, 1, 5])], embedded),
    exact("Where_exact", "Where", [booleans(4, 1), numbers(4, 5), numbers(5)], np.where),
    exact("ConstantOfShape", "ConstantOfShape", [np.array([2, 0, 3])], np.zeros, types=["int64"]),
    exact("Shape", "Shape", [X], lambda x: np.array([4, 5]), {"start": -2}),
    exact("Size", "Size", [X], lambda x: np.array(60)),
    exact("BitsKept", "Transpose", [lambda rng, dtype: nasty()(rng, dtype)[:32].reshape(4, 8)],
          lambda x: x.T, types=("float32", "float64", "float16", "bfloat16"), signed=True),
    Case("Range", "Range", [*np.array([0.5, 4, 0.75], np.float32)], np.arange,
         types=["float32"]),
    Case("Normal_moved", "Transpose", [normal(2, 3)], np.transpose, roundings=0),
]  # fmt: skip
CASES = [*PICKS, *PUTS, *PADDED, *MOVES]
