"""A bundle that trains, compiled by the host's compiler and called through ctypes, to check it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.micro_c.bundle import BundleOptions, code_files, model_of
from graphc.backends.micro_c.host import FLAGS, SANITIZE, host_options
from graphc.backends.micro_c.joined import Training
from graphc.backends.micro_c.model import ARENA_ALIGNMENT
from graphc.errors import ModelError
from graphc.ir.program import Program


class HostTraining:
    """Runs a bundle: a call is NAME_run, `step` NAME_train_step; `state` has the state by name, in
    the bytes that both use, and `init` fills it."""

    def __init__(
        self, program: Program, training: Training, options: BundleOptions | None = None,
        sanitize: bool = False,
    ):  # fmt: skip
        options = host_options(options, training)
        self.model = model_of(program, options)
        flags = [*FLAGS, *(SANITIZE if sanitize else ())]
        self.library = ctypes.CDLL(str(shared_library(code_files(self.model), flags)))
        self._string = self.library.model_status_string
        self._string.restype = ctypes.c_char_p
        self._arena = np.empty(program.arena_bytes + ARENA_ALIGNMENT, np.uint8)
        self._memory = np.zeros(sum(t.nbytes for t in self.model.state), np.uint8)
        self.state = self.model.state_of(self._memory)
        self.init()

    def init(self) -> None:
        """Has the state start from the weights of the model."""
        self.library.model_train_init(_address(self._memory))

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of inference."""
        outputs = [np.empty(t.type.static_shape, t.type.dtype.np) for t in self.model.outputs]
        fields = _fields(inputs), _fields(outputs)
        self._ran(self.library.model_run(*fields, _address(self._memory), self._place()))
        return outputs

    def step(self, inputs: Sequence[np.ndarray], target: np.ndarray, rate: float) -> float:
        """The loss of a training step. ModelError gives a status other than OK in words."""
        loss = ctypes.c_float()
        self._ran(self.library.model_train_step(
            _fields(inputs), _address(target), ctypes.c_float(rate), ctypes.byref(loss),
            _address(self._memory), self._place(),
        ))  # fmt: skip
        return loss.value

    def _ran(self, status: int) -> None:
        if status:
            raise ModelError(self._string(status).decode())

    def _place(self) -> ctypes.c_void_p:
        """An aligned arena, whose contents mean nothing."""
        self._arena[:] = 255
        start = self._arena.ctypes.data
        return ctypes.c_void_p(start + -start % ARENA_ALIGNMENT)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _fields(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    """A structure of pointers."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
