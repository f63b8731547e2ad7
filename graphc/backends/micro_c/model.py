"""What all files of a bundle share: names, tensors, and the kernels made ready to print."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from graphc.backends.cfamily.printer import Dialect, Unit, identifier
from graphc.backends.cfamily.spell import storage_type
from graphc.backends.micro_c.intrinsics import MicroUnit
from graphc.errors import UnsupportedError
from graphc.ir import dtypes
from graphc.ir.kernel import Kernel
from graphc.ir.program import Program, Quantisation
from graphc.ir.scalar_math import POLYNOMIALS, round_f32
from graphc.ir.types import TensorType
from graphc.passes.kernel.prepare import prepare_kernel

FUNCTIONS = {**POLYNOMIALS, "round": round_f32}  # what else would be calls of libm
DIALECT = Dialect(index=dtypes.i32)
ARENA_ALIGNMENT = 16
LAYER_NAME_LENGTH = 40


@dataclass(frozen=True)
class Tensor:
    """An input or output: the user's name, the field that holds its pointer, and its type."""

    name: str
    field: str
    type: TensorType
    quantisation: Quantisation | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.type.static_shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.type.dtype.size

    @property
    def c_type(self) -> str:
        return storage_type(self.type.dtype)

    @property
    def shape_text(self) -> str:
        return f"{self.type.dtype}[{','.join(map(str, self.type.static_shape))}]"


@dataclass(frozen=True)
class Constant:
    """A constant: its symbol and contents."""

    symbol: str
    array: np.ndarray

    @property
    def c_type(self) -> str:
        return storage_type(dtypes.of(self.array.dtype))


@dataclass
class Model:
    """A program with the names its C text uses. `functions` gives each kernel's C function."""

    name: str
    program: Program
    inputs: list[Tensor]
    outputs: list[Tensor]
    constants: list[Constant]
    unit: Unit
    functions: dict[str, str]

    @classmethod
    def of(cls, program: Program, name: str, libm: bool) -> Model:
        """Names everything and prints the kernels; UnsupportedError if C lacks something."""
        constants = [Constant(f"{name}_w{n}", a) for n, a in enumerate(program.constants)]
        unit = MicroUnit(DIALECT)
        functions: dict[str, str] = {}
        layers = layer_names(program)
        for kernel in program.kernels.values():
            ready = _renamed(kernel, f"{name}_{layers[kernel.name]}")
            functions[kernel.name] = unit.kernel(_prepared(ready, libm))
        return cls(
            name, program, _tensors(program, "input"), _tensors(program, "output"),
            constants, unit, functions,
        )  # fmt: skip

    @property
    def macro(self) -> str:
        return self.name.upper()

    @property
    def weight_bytes(self) -> int:
        return sum(c.array.nbytes for c in self.constants)


def _tensors(program: Program, side: str) -> list[Tensor]:
    taken: list[str] = []
    tensors = []
    for number, (name, type) in enumerate(getattr(program, f"{side}s")):
        if type.dtype.kind in ("string", "complex"):
            raise UnsupportedError(f"{name!r}: C has no elements of type {type.dtype}")
        taken.append(identifier(name, taken))
        way = program.quantisation.get((side, number))
        tensors.append(Tensor(name, taken[-1], type, way))
    return tensors


def _prepared(kernel: Kernel, libm: bool) -> Kernel:
    return prepare_kernel(kernel, lacks=(), functions={} if libm else FUNCTIONS)


def _renamed(kernel: Kernel, name: str) -> Kernel:
    return replace(kernel, name=name)


def layer_names(program: Program) -> dict[str, str]:
    """For every kernel a name after the first layer that it computes, or after the kernel."""
    names: dict[str, str] = {}
    for step in program.steps:
        if step.kernel not in names:
            names[step.kernel] = layer_name(step.loc[0]) if step.loc else step.kernel
    return {name: names.get(name, name) for name in program.kernels}


def layer_name(loc: str) -> str:
    """An identifier like the name of an ONNX node; of a list of names the first."""
    first = loc.split(";")[0]
    plain = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]", "_", first)).strip("_")
    return plain[-LAYER_NAME_LENGTH:].strip("_") or "layer"
