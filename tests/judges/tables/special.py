"""NaN, infinities and zeros of both signs in operators that read several elements."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from by_torch import array, by_torch, tensor
from judge import BETWEEN, Case
from operands import normal, uniform

from tables.reductions import normalised
from tables.sampling import TORCH, interpolated
from tables.windows import (
    CONVOLUTIONS,
    POOLED,
    TRANSPOSED,
    average_pool,
    conv,
    conv_transpose,
    lrn,
    max_pool,
)


def special(*shape: int):
    """Normal numbers, among them a few of each special value."""

    def make(rng, dtype):
        x = rng.standard_normal(shape)
        for value in (np.nan, np.inf, -np.inf, -0.0, 0.0):
            x.reshape(-1)[rng.integers(0, x.size)] = value
        return x.astype(dtype)

    return make


def like(operand):
    """Special values in the shape of an operand."""
    return special(*operand(np.random.default_rng(0), np.dtype(np.float32)).shape)


def every(value: float, operand):
    return lambda rng, dtype: np.full_like(operand(rng, dtype), value)


def arg_extreme(sign: int):
    """What a loop finds that starts with the first element and takes what is beyond the best."""

    def reference(x):
        best = []
        for row in sign * x:
            place = 0
            for n, value in enumerate(row):
                place = n if value > row[place] else place
            best.append([place])
        return np.array(best)

    return reference


def ranked(x, k, *, largest):
    values, places = torch.topk(tensor(x), int(k[0]), 1, bool(largest))
    return array(values), array(places)


def scattered(x, where, updates, *, reduction):
    how = {"max": "amax", "min": "amin", "add": "sum"}[reduction]
    return array(tensor(x).scatter_reduce(1, tensor(where), tensor(updates), how))


def batch(x, scale, b, mean, var):
    return array(F.batch_norm(*map(tensor, (x, mean, var, scale, b))))


# Beyond the first element PyTorch adds 0 times the second; antialiasing, we add 0 times what the
# kernel does not reach.
EDGED = ("linear", "linear_antialias", "cubic_antialias")
LARGE = {k: v for k, v in CONVOLUTIONS.items() if k not in ("2d_no_images", "2d_deep")}
WINDOWS = [
    *(Case(f"MaxPool_{n}_special", "MaxPool", [like(x)], max_pool, a, roundings=0)
      for n, (x, a) in POOLED.items()),
    *(Case(f"MaxPool_{n}_{v}", "MaxPool", [every(v, x)], max_pool, a, roundings=0)
      for v in (-np.inf, np.nan) for n, (x, a) in POOLED.items()),
    *(Case(f"AveragePool_{n}_special", "AveragePool", [like(x)], average_pool, a, share=1.0)
      for n, (x, a) in POOLED.items()),
    *(Case(f"Conv_{n}_special", "Conv", [like(x), w], conv, a, share=2.0)
      for n, (x, w, a) in LARGE.items()),
    *(Case(f"ConvTranspose_{n}_special", "ConvTranspose", [like(x), w], conv_transpose, a,
           share=2.0) for n, (x, w, a) in TRANSPOSED.items()),
    *(Case(f"Resize_{n}_special", "Resize",
           [special(1, 1, 6, 7), None, np.array([1, 1, 1.5, 2.25], np.float32)],
           interpolated(*TORCH[n][:3]), TORCH[n][3], share=8.0, roundings=16)
      for n in TORCH if n not in EDGED),
]  # fmt: skip
CASES = [
    *WINDOWS,
    *(
        Case(f"{name}_nan", name, [special(6, 9)], arg_extreme(sign), {"axis": 1},
             note="As ONNX Runtime; PyTorch and numpy take the first NaN.")
        for name, sign in (("ArgMax", 1), ("ArgMin", -1))
    ),
    *(
        Case(f"TopK_nan_{largest}", "TopK", [special(5, 9), np.array([6])], ranked,
             {"axis": 1, "largest": largest}, outputs=2, roundings=0)
        for largest in (0, 1)
    ),
    Case("MatMul_special", "MatMul", [special(4, 5), special(5, 3)], np.matmul, share=2.0),
    Case("Gemm_special", "Gemm", [special(4, 5), special(5, 3)], np.matmul, share=2.0),
    Case("Gemm_unused", "Gemm", [normal(4, 5), normal(5, 3), special(4, 3)], lambda a, b, c: a @ b,
         {"beta": 0.0}, share=2.0, note="What is multiplied by 0 is not read."),
    Case("CumSum_special", "CumSum", [special(5, 9), np.array(1)], lambda x, _: np.cumsum(x, 1),
         share=2.0),
    Case("LayerNormalization_special", "LayerNormalization", [special(6, 9), normal(9)],
         lambda x, s: array(F.layer_norm(tensor(x), [9])) * s, share=2.0, roundings=8,
         narrow=BETWEEN),
    Case("BatchNormalization_special", "BatchNormalization",
         [special(2, 3, 5), normal(3), normal(3), normal(3), uniform(0.3, 2, 3)], batch, share=2.0),
    Case("BatchNormalization_negative", "BatchNormalization",
         [normal(2, 3, 5), normal(3), normal(3), normal(3),
          lambda rng, dtype: np.array([-1, 0, 1], dtype)], batch, share=2.0),
    *(Case(f"LpNormalization_{p}_special", "LpNormalization", [special(5, 6)], normalised,
           {"p": p, "axis": 1}, share=2.0) for p in (1, 2)),
    Case("LRN_special", "LRN", [special(2, 9, 4)], lrn,
         {"size": 5, "alpha": 0.25, "beta": 0.75, "bias": 2.0}),
    *(Case(f"{name}_special", name, [special(6, 4)], by_torch(function, dim=-1), share=1.0,
           narrow=BETWEEN)
      for name, function in (("Softmax", F.softmax), ("LogSoftmax", F.log_softmax))),
    *(Case(f"ScatterElements_{how}_special", "ScatterElements",
           [special(4, 5), lambda rng, _: rng.integers(0, 5, (4, 7)), special(4, 7)], scattered,
           {"axis": 1, "reduction": how}, share=2.0, narrow=BETWEEN)
      for how in ("max", "min", "add")),
]  # fmt: skip
