"""Where the inputs and outputs of runs lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .driver import Driver
from .memory import Block, Memory
from .plan import AtSizes, Sizes, Spec

Pointers = tuple[int, ...]


@dataclass(frozen=True)
class Places:
    """Where the inputs and outputs of a run lie on the device, and its sizes."""

    inputs: Pointers
    outputs: Pointers
    sizes: Sizes = ()


class HostSide:
    """Inputs and outputs in pinned memory, and their counterparts on the device: room for those of
    the largest sizes."""

    def __init__(self, memory: Memory, inputs: Sequence[Spec], outputs: Sequence[Spec]):
        self.inputs, self.outputs = (Block(memory, _types(specs)) for specs in (inputs, outputs))
        self.sizes: Sizes | None = None

    def arrange(self, now: AtSizes, sizes: Sizes) -> None:
        """Lays out the arrays of some sizes."""
        if self.sizes != sizes:
            self.inputs.arrange(_types(now.inputs))
            self.outputs.arrange(_types(now.outputs))
            self.sizes = sizes
            self.places = Places(self.inputs.pointers, self.outputs.pointers, sizes)

    def upload(self, driver: Driver, stream: object) -> None:
        if self.inputs.nbytes:
            driver.upload(self.inputs.pointer, self.inputs.used, stream)

    def download(self, driver: Driver, stream: object) -> None:
        if self.outputs.nbytes:
            driver.download(self.outputs.used, self.outputs.pointer, stream)


def _types(specs: Sequence[Spec]) -> list[tuple[tuple[int, ...], np.dtype]]:
    return [(spec.shape, spec.dtype) for spec in specs]
