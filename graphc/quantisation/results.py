"""What quantising a model gives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphc.frontend.onnx_export import export_onnx
from graphc.ir.graph import Graph
from graphc.quantisation.budgets import Needs
from graphc.quantisation.measuring import Accuracy

if TYPE_CHECKING:
    from onnx import ModelProto

OLDEST = 13  # the opset with scales per channel; 16 bits need 21, which the exporter finds


@dataclass(frozen=True)
class LayerReport:
    """A row of the report: a layer, its operator, the bits of weights and of what it reads, the
    scale of the latter, and the signal-to-noise ratio of its result in dB, all errors before it
    included (infinite without error)."""

    name: str
    operator: str
    weight_bits: int
    activation_bits: int
    scale: float
    sqnr: float


@dataclass
class Quantised:
    """A quantised model: its graph, and what was measured on the samples: the rows of its layers,
    the signal-to-noise ratio in dB of each output, and the accuracy: the share of rows (along the
    last axis of the first output) whose largest element is where it was, and with labels those that
    are right. `left_out` are the layers that stayed float; `needs` are the bytes of RAM and flash,
    if there were limits."""

    graph: Graph
    layers: list[LayerReport]
    outputs: dict[str, float]
    accuracy: Accuracy
    samples: int
    left_out: list[str]
    needs: Needs | None = None

    @property
    def agreement(self) -> float:
        """The share of rows whose largest element is where it was."""
        return self.accuracy.agreement

    def to_onnx(self) -> ModelProto:
        """The model as an ONNX message."""
        return export_onnx(self.graph, oldest=OLDEST)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model as ONNX."""
        export_onnx(self.graph, path, OLDEST)
