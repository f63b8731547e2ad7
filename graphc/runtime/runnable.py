"""A model that runs, as the user sees it: named inputs and outputs, checked against their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from graphc.errors import LIMITS, ModelError, UnsupportedError, beyond_limits, did_you_mean
from graphc.ir import dtypes
from graphc.ir.types import (
    Map,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    described,
)
from graphc.records import dataclass
from graphc.runtime.exchange import as_numpy, is_array


@dataclass(frozen=True)
class Spec:
    """An input or output: its name and type; dims may be symbols, or unknown for outputs."""

    name: str
    type: Type | None

    def __str__(self) -> str:
        return described(self.name, self.type)

    @cached_property
    def dtype(self) -> np.dtype:
        """The dtype of the arrays; object for strings, and for what is not a tensor."""
        return self.type.dtype.np if isinstance(self.type, TensorType) else np.dtype(object)

    @property
    def shape(self) -> tuple | None:
        return self.type.shape if isinstance(self.type, TensorType) else None


class Given(list):
    """Values of inputs, in order, for a run that is to put some results `into` arrays: one for each
    output, or None. Who cannot puts them elsewhere."""

    def __init__(self, values: Sequence[Any], into: Sequence[np.ndarray | None]):
        super().__init__(values)
        self.into = into


class Runnable:
    """What has named inputs and outputs and runs; `execute` takes checked values in order."""

    def __init__(self, inputs: list[Spec], outputs: list[Spec]):
        self.inputs, self.outputs = inputs, outputs
        self._names = [spec.name for spec in inputs]

    def execute(self, values: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<graphc.{type(self).__name__} ({ins}) -> ({outs})>"

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "a compiled model is no data that can be copied or pickled: hand on its model or graph "
            "and compile that there, or a file of save(), which graphc.load reads"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """run(...) with arrays by position or name."""
        return self.run(kwargs if kwargs else args[0] if len(args) == 1 else list(args))

    def run(
        self, feeds: Mapping[str, Any] | Sequence[Any] | np.ndarray,
        into: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Outputs as numpy arrays (lists for sequences) for inputs by name or in order.

        `into` gives arrays for outputs by name, which are filled and returned. An array may also be
        that of an input. A cache of keys is so updated in place, without a copy, where code for it
        was made (the CPU's); what it holds after a run that failed is undefined.
        """
        values = self._values(feeds)
        try:
            if not into:
                return self.execute(values)
            targets = self._targets(into)
            results = self.execute(Given(values, targets))
        except LIMITS as error:
            raise beyond_limits(error) from error
        specs = zip(results, targets, self.outputs)
        return [_put(result, target, spec.name) for result, target, spec in specs]

    def _targets(self, into: Mapping[str, np.ndarray]) -> list[np.ndarray | None]:
        """The array for each output, or None."""
        names = [spec.name for spec in self.outputs]
        for name, array in into.items():
            if name not in names:
                near = did_you_mean(name, names)
                raise ModelError(f"into: there is no output {name!r}, but {names}{near}")
            if not isinstance(array, np.ndarray) or not array.flags.writeable:
                raise ModelError(f"into: {name} must be a numpy array that can be written")
        ordered = sorted(into, key=lambda name: into[name].ctypes.data)
        for one, other in pairwise(ordered):
            if np.may_share_memory(into[one], into[other]):
                raise ModelError(f"into: {one} and {other} share memory")
        return [into.get(name) for name in names]

    def _values(self, feeds: Any) -> list[Any]:
        if isinstance(feeds, Mapping):
            names = self._names
            if len(feeds) != len(names) or any(n not in feeds for n in names):
                _explain_names(names, feeds)
            feeds = [feeds[n] for n in names]
        elif is_array(feeds):
            feeds = [feeds]
        elif not isinstance(feeds, Sequence):
            raise ModelError(f"inputs are a dict or a list of arrays, found {type(feeds).__name__}")
        if len(feeds) != len(self.inputs):
            count = len(self.inputs)
            raise ModelError(f"expected {count} inputs {self._names}, found {len(feeds)}")
        return [
            v if type(v) is np.ndarray and v.dtype is spec.dtype else self._checked(v, spec)
            for v, spec in zip(feeds, self.inputs)
        ]

    def _checked(self, value: Any, spec: Spec) -> Any:
        """A value as its declared type asks for."""
        return checked(value, spec)


def _put(result: Any, target: np.ndarray | None, name: str) -> Any:
    """A result, in the array that was given for it."""
    if target is None or result is target:
        return result
    array = np.asarray(result)
    if (array.shape, array.dtype) != (target.shape, target.dtype):
        raise ModelError(
            f"into: {name} is {array.dtype}{list(array.shape)}, found an array of "
            f"{target.dtype}{list(target.shape)}"
        )
    np.copyto(target, array)
    return target


# ---------------------------------------------------------------- values


def checked(value: object, spec: Spec) -> Any:
    """An input as its declared type asks for; ModelError says what was required and found."""
    type_ = spec.type
    if isinstance(type_, OptionalType):
        return None if value is None else checked(value, Spec(spec.name, type_.element))
    if isinstance(type_, SequenceType):
        if not isinstance(value, (list, tuple)):
            kind = type(value).__name__
            raise ModelError(f"input {spec.name!r} takes a list of arrays, found {kind}")
        return [checked(v, Spec(spec.name, type_.element)) for v in value]
    if isinstance(type_, MapType):
        return _checked_map(value, type_, spec.name)
    if type_ is None:
        if isinstance(value, list) or value is None:
            return value
        return as_numpy(value, f"input {spec.name!r}")
    if value is None:
        raise ModelError(f"input {spec.name!r} is required, found None")
    array = as_numpy(value, f"input {spec.name!r}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.type)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype != type_.dtype.np and not isinstance(value, np.ndarray):
        array = array if array.dtype.kind == "O" else _converted(array, spec)
    check_type(array, type_, spec.name)
    return array if array.dtype is spec.dtype else array.view(spec.dtype)


def _checked_map(value: object, type: MapType, name: str) -> Map:
    """A dict whose keys and values have the types of the map."""
    if not isinstance(value, Mapping):
        raise ModelError(f"input {name!r} takes a dict, found {value.__class__.__name__}")
    whole = (int, np.integer)
    keys = str if type.key is dtypes.string else whole
    values = str if type.value is dtypes.string else (*whole, float, np.floating)
    for key, item in value.items():
        if not isinstance(key, keys) or not isinstance(item, values):  # type: ignore[arg-type]
            raise ModelError(f"input {name!r} is {type}, found {{{key!r}: {item!r}}}")
    return Map(value, type)


def _converted(array: np.ndarray, spec: Spec) -> np.ndarray:
    """Numbers that had no type of their own; ModelError if the type cannot hold them."""
    if array.dtype.kind == "c" != spec.dtype.kind:
        raise ModelError(f"input {spec.name!r} takes {spec.dtype}, found {array.dtype}")
    with np.errstate(invalid="ignore"):
        converted = array.astype(spec.dtype)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise ModelError(f"input {spec.name!r} takes {spec.dtype}, which cannot hold {array}")
    return converted


def check_type(array: Any, type: TensorType, name: str) -> None:
    """ModelError unless an array, in whatever memory, has the type of the input of this name. A
    declared scalar takes any shape, as in ONNX Runtime."""
    if array.dtype != type.dtype.np:
        raise ModelError(f"input {name!r} takes {type.dtype.np}, found {array.dtype}")
    shape = type.shape
    if shape and (
        len(shape) != array.ndim
        or any(isinstance(d, int) and d != e for d, e in zip(shape, array.shape))
    ):
        wanted = list(map(str, shape))
        raise ModelError(f"input {name!r} takes shape {wanted}, found {array.shape}")


def _explain_names(names: list[str], feeds: Mapping[str, Any]) -> None:
    missing = [n for n in names if n not in feeds]
    unknown = [n for n in feeds if n not in names]
    parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
    raise ModelError(f"inputs are {names}: {', '.join(parts)}")
