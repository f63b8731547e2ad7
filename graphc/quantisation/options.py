"""How a model is quantised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.quantisation import levels, ranges
from graphc.quantisation.budgets import Limits

TYPES = {"int8": dtypes.i8, "uint8": dtypes.u8, "int16": dtypes.i16}
WEIGHTS = ("int8", "int4", "float16")
EMBEDDINGS = ("float", "int8")
SCALES = ("channel", "tensor")
Note = Callable[[str], None]


@dataclass
class Options:
    """How a model is quantised; the fields are arguments of `quantise`, but for `fed`: the layers
    whose weights are rounded so that they make up for the errors of others (None: all). Those of
    others are rounded to the nearest integers, in a small part of the time."""

    calibration: str = "mse"
    activations: str = "int8"
    whole: bool = False
    samples: int | None = None
    left_out: Sequence[str] = ()
    keep_accuracy: float | None = None
    labels: np.ndarray | None = None
    limits: Limits | None = None
    weights: str = "int8"
    mixture: Sequence[str] = ()
    equalise: bool = True
    embeddings: str = "float"
    every_layer: bool = False
    scales: str = "channel"
    fed: frozenset[str] | None = None

    @property
    def base(self) -> str:
        """The level of layers for which no other is chosen."""
        if self.weights != "int8":
            return self.weights
        return "int16" if self.activations == "int16" else "int8"

    @property
    def allowed(self) -> tuple[str, ...]:
        """The levels that layers may have."""
        if self.mixture:
            return levels.checked(self.mixture)
        return (self.base, levels.FLOAT)

    @property
    def may_leave_outputs(self) -> bool:
        """Whether small output layers may stay float though nobody named them."""
        searched = self.keep_accuracy is not None or self.limits is not None
        return self.base in levels.INTEGER and not (self.whole or self.every_layer or searched)

    @property
    def bytes(self) -> str:
        """The type of activations of 8 bits."""
        return "int8" if self.activations == "int16" else self.activations

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            known = ", ".join(WEIGHTS)
            raise ModelError(f"weights must be one of {known}, found {self.weights!r}")
        if self.embeddings not in EMBEDDINGS:
            known = ", ".join(EMBEDDINGS)
            raise ModelError(f"embeddings must be one of {known}, found {self.embeddings!r}")
        if self.scales not in SCALES:
            raise ModelError(f"scales must be one of {', '.join(SCALES)}, found {self.scales!r}")
        if self.weights == "float16" and self.embeddings != "float":
            raise ModelError(
                "weights of float16 are for all constants, tables of embeddings among them: leave "
                "embeddings out, or choose weights of int8 or int4"
            )
        if self.weights != "int8" and (self.whole or self.keep_accuracy is not None):
            raise ModelError(
                f"weights of {self.weights} go without integers, budgets and keep_accuracy"
            )
        if self.mixture:
            levels.checked(self.mixture)
            if self.keep_accuracy is None:
                raise ModelError(
                    "a mixture is searched for with a bound: give keep_accuracy (--keep-accuracy)"
                )
            if self.base not in self.mixture:
                raise ModelError(
                    f"mixture: {self.base} has to be among the levels, found "
                    f"{', '.join(self.mixture)}"
                )
        if self.keep_accuracy is not None and not 0 <= self.keep_accuracy <= 1:
            raise ModelError(
                f"keep_accuracy is a share between 0 and 1, found {self.keep_accuracy!r}"
            )
        if self.calibration not in ranges.METHODS:
            known = ", ".join(ranges.METHODS)
            raise ModelError(f"calibration must be one of {known}, found {self.calibration!r}")
        if self.activations not in TYPES:
            known = ", ".join(TYPES)
            raise ModelError(f"activations must be one of {known}, found {self.activations!r}")
        if self.samples is not None and self.samples < 1:
            raise ModelError(f"samples must be a positive integer, found {self.samples!r}")
