"""The standard onnx.backend interface: `prepare(model, device).run(inputs)`.

Devices: "INTERP" runs the reference interpreter; "CPU", "C", "CUDA" (or "CUDA:1", the second GPU)
and the names of other targets compile for that target; "SIMULATOR" runs the kernels of CUDA on the
host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from graphc import driver
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir import dtypes
from graphc.ir.interp import interpret
from graphc.ir.types import OptionalType, SequenceType, TensorType
from graphc.targets import TARGETS


def _devices() -> dict[str, tuple[str, dict[str, Any]]]:
    """The target, and options of it, for each name of a device."""
    every = ((name, cls.devices()) for name, cls in TARGETS.items())
    return {device: (name, own) for name, devices in every for device, own in devices.items()}


def supports_device(device: str) -> bool:
    """Whether `prepare` takes this device name ("CPU", "CUDA:0", ...)."""
    kind = device.split(":")[0].upper()
    return kind == "INTERP" or kind in _devices()


def is_compatible(model: object, device: str = "CPU", **options: object) -> bool:
    """Whether the device exists; models that cannot be compiled are refused by `prepare`."""
    return supports_device(device)


def prepare(model: object, device: str = "CPU", **options: object) -> Rep:
    """Imports (and compiles) a model; `options` go to graphc.compile, `target` in place of the
    device's."""
    if not supports_device(device):
        raise UnsupportedError(f"device {device!r} is not one of INTERP, {', '.join(_devices())}")
    kind = device.split(":")[0].upper()
    if kind == "INTERP":
        return InterpreterRep(model)
    name, own = _devices()[kind]
    if ":" in device and any(option.name == "device" for option in fields(TARGETS[name])):
        options = {"device": _number(device), **options}
    return CompiledRep(model, {"target": name, **own, **options})


def _number(device: str) -> int:
    """1 of CUDA:1."""
    number = device.split(":", 1)[1]
    if not number.isdecimal():
        raise UnsupportedError(f"device {device!r}: expected a number after the colon")
    return int(number)


def run_model(
    model: object, inputs: object, device: str = "CPU", **options: object
) -> list[object]:
    """Prepares and runs once."""
    return prepare(model, device, **options).run(inputs)


class Rep:
    """A prepared model."""

    def run(self, inputs: object, **options: object) -> list[object]:
        """Outputs for a list, a dict by name, or a single array."""
        raise NotImplementedError


class InterpreterRep(Rep):
    """A model run by the reference interpreter."""

    def __init__(self, model: Any):
        self.graph = import_onnx(model)

    def run(self, inputs: object, **options: object) -> list[object]:
        params = self.graph.params
        values = as_list(inputs, [p.name for p in params])
        return interpret(self.graph, [as_value(v, p.type, p.name) for v, p in zip(values, params)])


class CompiledRep(Rep):
    """A model compiled for a target."""

    def __init__(self, model: object, options: dict[str, Any]):
        self.model = driver.compile(model, **options)
        self.inputs = self.model.inputs

    def run(self, inputs: object, **options: object) -> list[object]:
        values = as_list(inputs, [i.name for i in self.inputs])
        pairs = zip(values, self.inputs)
        return list(self.model.run([as_value(v, i.type, i.name) for v, i in pairs]))


def as_list(inputs: Any, names: Sequence[str]) -> list[Any]:
    """The inputs in the order of `names`; ModelError says which are missing or too many."""
    if isinstance(inputs, Mapping):
        wrong = [n for n in inputs if n not in names] or [n for n in names if n not in inputs]
        if wrong:
            raise ModelError(f"inputs must be {list(names)}, found {list(inputs)}")
        return [inputs[name] for name in names]
    if isinstance(inputs, np.ndarray) and len(names) == 1:
        inputs = [inputs]
    inputs = list(inputs)
    if len(inputs) != len(names):
        raise ModelError(f"expected {len(names)} inputs {list(names)}, found {len(inputs)}")
    return inputs


def as_value(value: Any, type: Any, name: str) -> Any:
    """An input as the numpy array, list or None that its type asks for."""
    if isinstance(type, OptionalType):
        return None if value is None else as_value(value, type.element, name)
    if isinstance(type, SequenceType):
        return [as_value(v, type.element, name) for v in value]
    if value is None:
        raise ModelError(f"input {name!r} is required, found None")
    if isinstance(type, TensorType) and not hasattr(value, "dtype"):
        return np.asarray(value, type.dtype.np)
    array = np.asarray(value)
    return array.astype(object) if dtypes.of(array.dtype) is dtypes.string else array
