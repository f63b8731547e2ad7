"""Normalisations and losses: PyTorch in float64."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from by_torch import array, tensor
from judge import BETWEEN, WIDE, Case
from operands import integers, normal, uniform

EPSILON = 1e-5


def batch(x, scale, b, mean, var, *, epsilon=EPSILON):
    return array(F.batch_norm(*map(tensor, (x, mean, var, scale, b)), eps=epsilon))


def trained_batch(x, scale, b, mean, var, *, momentum):
    """The running variance is of the population, PyTorch's of a sample."""
    axes = (0, *range(2, x.ndim))
    own_mean, own_var = x.mean(axes), x.var(axes)
    means = (momentum * mean + (1 - momentum) * own_mean, momentum * var + (1 - momentum) * own_var)
    return batch(x, scale, b, own_mean, own_var), *means


def instance(x, scale, b, *, epsilon=EPSILON):
    return array(F.instance_norm(*map(tensor, (x, None, None, scale, b)), eps=epsilon))


def layer(x, scale, b=None, *, axis=-1, epsilon=EPSILON):
    axes = tuple(range(axis % x.ndim, x.ndim))
    y = F.layer_norm(tensor(x), [x.shape[a] for a in axes], None, None, epsilon)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    statistics = (v.astype(np.float32) * 1.0 for v in (mean, 1 / np.sqrt(var + epsilon)))
    return array(y) * scale + (0 if b is None else b), *statistics


def rms(x, scale, *, axis=-1, epsilon=EPSILON):
    return array(F.rms_norm(tensor(x), x.shape[axis:], None, epsilon)) * scale


def group(x, scale, b, *, num_groups, epsilon=EPSILON):
    return array(F.group_norm(tensor(x), num_groups, tensor(scale), tensor(b), epsilon))


def mean_variance(x, *, axes):
    centred = x - x.mean(tuple(axes), keepdims=True)
    return centred / (np.sqrt((centred**2).mean(tuple(axes), keepdims=True)) + 1e-9)


def likelihood(x, target, weight=None, *, reduction="mean", ignore_index=-100):
    return array(F.nll_loss(*map(tensor, (x, target, weight)), reduction=reduction,
                            ignore_index=ignore_index))  # fmt: skip


def entropy(x, target, weight=None, *, reduction="mean", ignore_index=-100):
    loss = F.cross_entropy(*map(tensor, (x, target, weight)), reduction=reduction,
                           ignore_index=ignore_index)  # fmt: skip
    return array(loss), array(F.log_softmax(tensor(x), 1))


CHANNELS = (normal(5), normal(5))
STATISTICS = (normal(5), uniform(0.3, 2, 5))
NORMS = [
    Case("BatchNormalization", "BatchNormalization", [normal(3, 5, 4, 2), *CHANNELS, *STATISTICS],
         batch, share=1.0),
    Case("BatchNormalization_rows", "BatchNormalization", [normal(7, 5), *CHANNELS, *STATISTICS],
         batch, {"epsilon": 0.125}, share=1.0),
    Case("BatchNormalization_trained", "BatchNormalization",
         [normal(3, 5, 4, 2), *CHANNELS, *STATISTICS], trained_batch,
         {"training_mode": 1, "momentum": 0.75}, outputs=3, share=1.0),
    Case("InstanceNormalization", "InstanceNormalization", [normal(3, 5, 4, 2), *CHANNELS],
         instance, share=1.0, roundings=8, narrow=BETWEEN),
    Case("InstanceNormalization_far", "InstanceNormalization",
         [normal(2, 5, 50, offset=1000), *CHANNELS], instance, types=WIDE, terms=1000),
    Case("LayerNormalization", "LayerNormalization", [normal(3, 5, 8), normal(8), normal(8)],
         layer, outputs=3, share=1.0, roundings=8, narrow=BETWEEN),
    Case("LayerNormalization_axes", "LayerNormalization", [normal(3, 5, 8), normal(5, 8)],
         layer, {"axis": 1, "epsilon": 0.25}, outputs=3, share=1.0, roundings=8, narrow=BETWEEN),
    Case("LayerNormalization_far", "LayerNormalization", [normal(3, 300, offset=1000), normal(300)],
         lambda x, s: layer(x, s)[0], types=WIDE, terms=1000),
    Case("LayerNormalization_constant", "LayerNormalization",
         [lambda rng, dtype: np.full((2, 6), 3, dtype), normal(6), normal(6)],
         lambda *x: layer(*x)[0], share=1.0),
    Case("RMSNormalization", "RMSNormalization", [normal(3, 5, 8), normal(8)], rms, share=1.0),
    Case("RMSNormalization_axes", "RMSNormalization", [normal(3, 5, 8), normal(5, 8)], rms,
         {"axis": 1, "epsilon": 0.25}, share=1.0),
    Case("GroupNormalization", "GroupNormalization", [normal(3, 6, 4, 2), normal(6), normal(6)],
         group, {"num_groups": 3}, share=1.0, roundings=8, narrow=BETWEEN),
    Case("MeanVarianceNormalization", "MeanVarianceNormalization", [normal(3, 5, 4, 2)],
         mean_variance, {"axes": [0, 2, 3]}, share=1.0, roundings=8, narrow=BETWEEN,
         note="The standard adds 1e-9 to the deviation."),
]  # fmt: skip
ROWS, MAPS = (normal(6, 5), integers(0, 5, 6, dtype=np.int64)), (
    normal(3, 5, 4, 2), integers(0, 5, 3, 4, 2, dtype=np.int64))  # fmt: skip
WEIGHT = uniform(0.1, 2, 5)
LOSSES = [
    Case(f"{name}_{kind}_{reduction}_{weight}", name,
         [*inputs, *([WEIGHT] if weight == "weighed" else [])],
         reference,
         {"reduction": reduction, **({"ignore_index": 2} if weight == "weighed" else {})},
         outputs=2 if name.startswith("Soft") else 1, share=1.0, roundings=8,
         narrow=BETWEEN)
    for name, reference in (("NegativeLogLikelihoodLoss", likelihood),
                            ("SoftmaxCrossEntropyLoss", entropy))
    for kind, inputs in (("rows", ROWS), ("maps", MAPS))
    for reduction in ("mean", "sum", "none")
    for weight in ("plain", "weighed")
]  # fmt: skip
CASES = [*NORMS, *LOSSES]
