"""Means and second moments of what layers read: E[x] and E[x x'] for each group of channels.

A convolution reads windows (im2col): of each sample some are drawn, by a seed, as neighbours tell
little that is new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.quantisation.layers import Layer

DRAWN = 512  # windows or rows of a sample, at most


@dataclass
class Moments:
    """Sums of what a layer reads and of its products, for each group; `count` rows were seen."""

    sums: np.ndarray  # [groups, columns]
    products: np.ndarray  # [groups, columns, columns]
    count: int = 0

    @staticmethod
    def of(layer: Layer) -> Moments | None:
        """Without rows yet; None if a layer is not described by rows."""
        if layer.op.name == "ConvTranspose":
            return None
        return Moments.empty(layer.groups, columns_of(layer))

    @staticmethod
    def empty(groups: int, columns: int) -> Moments:
        """Of no rows."""
        return Moments(np.zeros((groups, columns)), np.zeros((groups, columns, columns)))

    def add(self, rows: np.ndarray) -> None:
        """Takes rows: [groups, rows, columns]."""
        self.sums += rows.sum(1)
        self.products += rows.transpose(0, 2, 1) @ rows
        self.count += rows.shape[1]

    @property
    def means(self) -> np.ndarray:
        return self.sums / max(self.count, 1)

    def estimated(self, centred: bool) -> np.ndarray:
        """E[x x'], of x less its mean if `centred`. What few rows say of pairs of columns is
        partly chance: entries off the diagonal are taken for as much as they are founded on."""
        whole = self._seconds(centred)
        columns = whole.shape[-1]
        trust = self.count / (self.count + columns)
        for group in whole:
            diagonal = np.diagonal(group).copy()
            group *= trust
            np.fill_diagonal(group, diagonal)
        return whole

    def mean_of(self, rows: np.ndarray) -> np.ndarray:
        """The mean of what each row of factors sums up to, shrunk by its standard error (it is a
        sample's mean, not that of all there may be)."""
        per_group = len(rows) // len(self.sums)
        grouped = rows.reshape(len(self.sums), per_group, -1)
        mean = np.einsum("goc,gc->go", grouped, self.means)
        narrow = grouped.astype(np.float32)
        spread = np.einsum("goc,goc->go", narrow @ self._seconds(True).astype(np.float32), narrow)
        chance = np.maximum(spread, 0) / max(self.count, 1)
        shrunk = mean * mean**2 / np.maximum(mean**2 + chance, 1e-300)
        return shrunk.reshape(-1)

    def _seconds(self, centred: bool) -> np.ndarray:
        whole = self.products / max(self.count, 1)
        if centred:
            whole -= self.means[:, :, None] * self.means[:, None]
        return whole


def columns_of(layer: Layer) -> int:
    """How many numbers each sum of a layer reads."""
    return layer.weights.size // layer.weights.shape[layer.axis]


def rows_read(layer: Layer, array: np.ndarray, seed: int) -> np.ndarray:
    """Rows that a layer reads of a value: [groups, rows, columns], as float32."""
    rng = np.random.default_rng(seed)
    if layer.op.name != "Conv":
        flat = array.reshape(-1, array.shape[-1])
        if len(flat) > DRAWN:
            flat = flat[rng.permutation(len(flat))[:DRAWN]]
        return flat[None].astype(np.float32)
    return _windows(layer, array, rng)


def _windows(layer: Layer, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    attrs, kernel = layer.op.attrs, layer.weights.shape[2:]
    rank, groups = len(kernel), layer.groups
    strides = attrs.get("strides") or (1,) * rank
    dilations = attrs.get("dilations") or (1,) * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads = _pads(attrs, array.shape[2:], reach, strides)
    padded = np.pad(array, [(0, 0), (0, 0), *pads])
    axes = tuple(range(2, 2 + rank))
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axes)  # type: ignore[call-overload]
    every: tuple[Any, ...] = (slice(None), slice(None))
    views = views[every + tuple(slice(None, None, s) for s in strides)]
    taps: tuple[Any, ...] = (Ellipsis, *(slice(None, None, d) for d in dilations))
    views = views[taps]
    extents = views.shape[2 : 2 + rank]
    places = np.arange(math.prod(extents))
    if len(places) > DRAWN:
        places = np.sort(rng.permutation(len(places))[:DRAWN])
    taken = views[every + np.unravel_index(places, extents)]
    batch, channels, count = taken.shape[:3]  # [batch, channels, places, kernel...]
    split = taken.reshape(batch, groups, channels // groups, count, -1)
    moved = split.transpose(1, 0, 3, 2, 4)
    return moved.reshape(groups, batch * count, -1).astype(np.float32)


def _pads(
    attrs: dict, extents: tuple[int, ...], reach: list[int], strides: tuple[int, ...]
) -> list[tuple[int, int]]:
    """The padding of each axis, before and after."""
    rank, auto = len(extents), attrs.get("auto_pad", "NOTSET")
    if not auto.startswith("SAME"):
        given = (attrs.get("pads") or (0,) * 2 * rank) if auto != "VALID" else (0,) * 2 * rank
        return list(zip(given[:rank], given[rank:]))
    pads = []
    for extent, size, stride in zip(extents, reach, strides):
        total = max((-(-extent // stride) - 1) * stride + size - extent, 0)
        half = total // 2
        pads.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
    return pads
