"""A bundle's code compiled by the host's compiler and called through ctypes, to check it.

The code is what a microcontroller gets, with the constants in a binary file, which is compiled
faster. With `sanitize` undefined behaviour ends the process with a message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np

from graphc.backends.cfamily.calls import Call, pointers
from graphc.backends.cfamily.hostcc import shared_library
from graphc.backends.micro_c.bundle import BundleOptions, code_files, model_of
from graphc.backends.micro_c.hooks import results
from graphc.backends.micro_c.joined import Training
from graphc.backends.micro_c.model import ARENA_ALIGNMENT
from graphc.backends.micro_c.traces import Trace
from graphc.errors import InternalError
from graphc.ir.checks import WHOLE
from graphc.ir.program import Program

NAME = "model"
FLAGS = ("-std=c99", "-O1", "-Wall", "-Wextra")
SANITIZE = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all")
SINK = """\
#include "model.h"
void (*model_sink)(int layer, const char *name, uint32_t crc);
void model_trace(int layer, const char *name, uint32_t crc)
{
    if (model_sink) {
        model_sink(layer, name, crc);
    }
}
void (*model_summary_sink)(float least, float most, float mean);
void model_summary(int layer, const char *name, float least, float most, float mean)
{
    (void)layer;
    (void)name;
    if (model_summary_sink) {
        model_summary_sink(least, most, mean);
    }
}
"""
HOOKS = ("-DMODEL_TRACE", "-DMODEL_SUMMARY")
REPORT = """\
#include "model.h"
_Thread_local int64_t model_reported;
int64_t model_offender(void)
{
    return model_reported;
}
void model_report(int check, int64_t value)
{
    (void)check;
    model_reported = value;
}
"""


class HostModel:
    """A program as a function of its inputs (numpy arrays, in order) that gives its outputs."""

    def __init__(
        self, program: Program, options: BundleOptions | None = None,
        sanitize: bool = False, traced: bool = False,
    ):  # fmt: skip
        model = model_of(program, host_options(options))
        files = code_files(model)
        if traced:
            files["sink.c"] = SINK
        if program.checks:
            files["report.c"] = REPORT
        reports = ["-DMODEL_REPORT"] if program.checks else []
        flags = [*FLAGS, *reports, *(SANITIZE if sanitize else ()), *(HOOKS if traced else ())]
        self.model, self.traced = model, traced
        self.library = ctypes.CDLL(str(shared_library(files, flags)))
        self.entry = self.library.model_run
        self.entry.argtypes = [ctypes.c_void_p] * (4 if program.all_sizes else 3)
        self.entry.restype = ctypes.c_int
        if program.checks:
            self._offender = self.library.model_offender
            self._offender.restype = ctypes.c_int64

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs; ModelError if the inputs have other shapes or dtypes than the program."""
        program = self.model.program
        call = Call(program, inputs, program.own_outputs)
        arena = np.empty(program.arena_bytes + ARENA_ALIGNMENT, np.uint8)
        start = arena.ctypes.data + -arena.ctypes.data % ARENA_ALIGNMENT
        given = [call.sizes] if call.sizes else []
        status = self.entry(*given, pointers(call.inputs), pointers(call.outputs), start)
        if status >= self.model.first_check:
            check = program.checks[status - self.model.first_check]
            raise check.error((self._offender() - check.low) % WHOLE)
        if status != 0:
            raise InternalError(f"{program.name}: the C code returned status {status}")
        return call.results(program)

    def trace(self, inputs: Sequence[np.ndarray]) -> list[Trace]:
        """What the hooks get during a run."""
        assert self.traced
        crcs: list[tuple[int, int, str]] = []
        summaries: list[tuple[float, float, float]] = []
        with (
            self._sink("model_sink", [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32],
                       lambda layer, name, crc: crcs.append((layer, crc, name.decode()))),
            self._sink("model_summary_sink", [ctypes.c_float] * 3,
                       lambda *numbers: summaries.append(numbers)),
        ):  # fmt: skip
            self(inputs)
        before: list[Any] = [None] * (len(crcs) - len(summaries))  # inputs have none
        of_layers = {
            layer: cycle([slot.dtype.is_float for _, slot in results(self.model, step)])
            for layer, step in enumerate(self.model.program.calls)
        }
        floats = (layer >= 0 and next(of_layers[layer]) for layer, _, _ in crcs)
        return [
            Trace(*crc, summary, is_float)
            for crc, summary, is_float in zip(crcs, before + summaries, floats, strict=True)
        ]

    @contextmanager
    def _sink(self, name: str, types: Sequence[Any], action: Callable) -> Iterator[None]:
        """Has a hook call a function."""
        call = ctypes.CFUNCTYPE(None, *types)(action)
        slot = ctypes.c_void_p.in_dll(self.library, name)
        slot.value = ctypes.cast(call, ctypes.c_void_p).value
        try:
            yield
        finally:
            slot.value = None


def build(program: Program, sanitize: bool = False) -> HostModel:
    """Compiles a program; UnsupportedError if there is no C compiler."""
    return HostModel(program, sanitize=sanitize)


def host_options(options: BundleOptions | None, training: Training | None = None) -> BundleOptions:
    """The same code, named and stored as this module needs it."""
    options = options or BundleOptions()
    return BundleOptions(
        NAME, options.libm, "incbin", cpu=options.cpu, opt=options.opt, training=training
    )
