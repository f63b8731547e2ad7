"""Calibration data: the inputs of a model, batch after batch, as often as they are needed.

A .npz file or a folder of them is read one file at a time. Arrays by name are cut along their first
axes. What else can be iterated over several times, or a function that gives an iterator, gives
inputs by name itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Graph, Value
from graphc.ir.types import TensorType
from graphc.train.data import Data

Feeds = dict[str, np.ndarray]


class Samples:
    """A stream of inputs by name, which starts again with every iteration; `most` bounds how many
    samples are taken. `taken` is the number of the last whole iteration."""

    def __init__(self, stream: Callable[[], Iterable[Mapping[str, Any]]], most: int | None):
        self.stream, self.most = stream, most
        self.taken = 0

    def __iter__(self) -> Iterator[Feeds]:
        count = 0
        for feeds in self.stream():
            if self.most is not None and count >= self.most:
                break
            arrays = {name: np.asarray(value) for name, value in feeds.items()}
            for name, array in arrays.items():
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    bad = "NaN" if np.isnan(array).any() else "an infinity"
                    raise ModelError(
                        f"calibration data: sample {count} of input {name!r} holds {bad}; "
                        "quantisation needs finite numbers"
                    )
            yield arrays
            count += max((len(a) for a in arrays.values() if a.ndim), default=1)
        if not count:
            raise ModelError("calibration data: there are no samples")
        self.taken = count

    def halves(self) -> tuple[Samples, Samples] | None:
        """Every second sample, and the others; None if there are not two."""
        if next(itertools.islice(self, 1, 2), None) is None:
            return None
        even, odd = (
            Samples(lambda start=start: itertools.islice(self, start, None, 2), None)  # type: ignore[misc]
            for start in (0, 1)
        )
        return even, odd


def samples_of(data: Any, graph: Graph, most: int | None = None) -> Samples:
    """The samples that `data` gives for the inputs of a graph; ModelError if it does not fit."""
    if isinstance(data, Samples):
        return data
    params = graph.params
    size = _batch(params)
    if isinstance(data, (str, os.PathLike)):
        files = Data.open(data, params, has_target=False)
        if files.samples < size:
            raise ModelError(
                f"{data}: the model takes batches of {size}, found {files.samples} samples"
            )
        names = [param.name for param in params]
        batches = lambda: files.batches(size, drop_last=True)  # noqa: E731
        return Samples(lambda: (dict(zip(names, batch)) for batch in batches()), most)
    if isinstance(data, Mapping):
        arrays = _checked(data, params, size)
        count = len(next(iter(arrays.values())))
        parts = range(0, count - size + 1, size)
        return Samples(
            lambda: ({n: a[start : start + size] for n, a in arrays.items()} for start in parts),
            most,
        )
    if callable(data):
        return Samples(data, most)
    if isinstance(data, Sequence):
        return Samples(lambda: data, most)
    raise ModelError(
        "calibration data is a .npz file, a folder of such files, arrays by the names of inputs, a "
        f"list of inputs by name, or a function that gives an iterator; found {type(data).__name__}"
    )


def _batch(params: Sequence[Value]) -> int:
    """How many samples the model takes at once; 1 if that is open."""
    for param in params:
        if isinstance(param.type, TensorType) and param.type.shape:
            first = param.type.dims[0]
            return first if isinstance(first, int) else 1
    return 1


def _checked(data: Mapping[str, Any], params: Sequence[Value], size: int) -> Feeds:
    """The arrays of the inputs, in their types; ModelError if one is missing or does not fit."""
    names = [param.name for param in params]
    missing = [name for name in names if name not in data]
    if missing or not names:
        raise ModelError(
            f"calibration data: there is no array {missing[0]!r}; the inputs of the model are "
            f"{names}, found are {list(data)}"
        )
    arrays: Feeds = {}
    for param in params:
        array, type = np.asarray(data[param.name]), param.type
        if isinstance(type, TensorType):
            dims = type.shape
            if dims is not None and (
                len(dims) != array.ndim
                or any(isinstance(d, int) and d != e for d, e in zip(dims[1:], array.shape[1:]))
            ):
                raise ModelError(
                    f"calibration data: {param.name!r} must be samples of {type}, found shape "
                    f"{array.shape}"
                )
            if array.dtype.kind != type.dtype.np.kind:
                raise ModelError(
                    f"calibration data: {param.name!r} must be of type {type.dtype}, found "
                    f"{array.dtype}"
                )
            array = array.astype(type.dtype.np, copy=False)
        arrays[param.name] = array
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ModelError(
            f"calibration data: first axes must count the same samples, found {lengths}"
        )
    if min(lengths.values()) < size:
        raise ModelError(
            f"calibration data: there are no samples; the model takes {size} at once, found "
            f"{min(lengths.values())}"
        )
    return arrays
