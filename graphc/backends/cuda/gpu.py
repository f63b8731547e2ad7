"""Programs on a GPU: machine code for it, and the runtime's errors as those of graphc."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.emit import emit
from graphc.backends.cuda.machine_code import architectures, machine_code, missing
from graphc.backends.cuda.runtime import (
    DeviceArray,
    Driver,
    DriverError,
    DriverMissing,
    Model,
    adopt,
    open_driver,
)
from graphc.errors import InternalError, ModelError, UnsupportedError
from graphc.ir.program import Program


class GpuModel:
    """A program on a GPU. Takes and gives arrays of the host, or of the device."""

    def __init__(self, program: Program, driver: Driver):
        source = emit(program)
        plan, weights = launch_plan(source)
        image = image_for(source.text, driver.arch)
        with _translated():
            self.model = Model(plan, weights, image, driver)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        with _translated():
            return self.model.run(values)


def open_gpu(ordinal: int = 0) -> Driver:
    """A GPU; UnsupportedError says what is missing, and how to install it."""
    try:
        return open_driver(ordinal)
    except DriverMissing as error:
        raise UnsupportedError(
            f"{error}. Without a GPU, simulate=True (--simulate) runs kernels on the host"
        ) from error


def image_for(text: str, arch: str) -> bytes:
    """Code that a GPU of an architecture runs: its own, or PTX of the newest older one if the
    compiler does not know it yet."""
    known, wanted = architectures(), with_own_features(arch)
    if not known:
        raise UnsupportedError(missing())
    if wanted in known:
        return machine_code(text, wanted)
    older = [name for name in known if name[-1].isdigit() and _number(name) < _number(arch)]
    if not older:
        raise UnsupportedError(
            f"a GPU of {arch} is too old: the compiler here makes code from {known[0]} on; an "
            "older one may do for it (NVCC is the path of one)"
        )
    return machine_code(text, max(older, key=_number), "ptx")


def with_own_features(arch: str) -> str:
    """The architecture to plan kernels for that run on a GPU of this one and on no other: sm_90a
    for sm_90, if the compiler here makes code for it."""
    return f"{arch}a" if f"{arch}a" in architectures() else arch


def _number(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


def adopted(value: Any) -> DeviceArray | None:
    """A value in the memory of a GPU as the runtime takes it; None if it is elsewhere. ModelError
    if it cannot be taken as it is."""
    try:
        return adopt(value)
    except ValueError as error:
        raise ModelError(str(error)) from error


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except DriverError as error:
        if "out of memory" in str(error).lower():
            raise UnsupportedError(
                f"the GPU has too little memory: {error}; free some, or compile for smaller shapes"
            ) from error
        raise InternalError(str(error)) from error
    except ValueError as error:
        raise ModelError(str(error)) from error
