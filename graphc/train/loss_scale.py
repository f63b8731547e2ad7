"""Loss scaling: float16 has no room below 6e-8, where gradients may be.

The gradients are those of the loss times a scale, and are divided by it in float32. If one of them
is infinite or no number, the update is left out and the scale made smaller; after a number of
updates in a row it is made larger (Micikevicius et al., "Mixed Precision Training", 2018). All of
this is part of the compiled step, and its state lies beside that of the optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graphc.errors import ModelError
from graphc.frontend.dsl_tensor import Tensor, apply

SCALE, GOOD, SKIPPED = "scale of the loss", "updates with this scale", "steps without an update"
LARGEST = 2.0**100  # gradients that are small times this are still numbers of float32


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling: the scale starts as `initial`, is multiplied by `growth` after
    `interval` updates in a row, and by `backoff` when gradients are infinite or no numbers. The
    defaults are those of PyTorch's GradScaler."""

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        good = 0 < self.initial <= LARGEST and self.growth >= 1 > self.backoff > 0
        if not good or self.interval < 1:
            raise ModelError(
                f"a loss scale has an initial value in (0, {LARGEST:g}], growth >= 1, 0 < backoff "
                f"< 1 and interval >= 1, found {self}"
            )

    def state(self) -> dict[str, np.ndarray]:
        """What is kept from step to step, as it starts, by name."""
        return {
            SCALE: np.array(self.initial, np.float32),
            GOOD: np.zeros((), np.int64),
            SKIPPED: np.zeros((), np.int64),
        }

    def update(self, state: Mapping[str, Tensor], is_finite: Tensor) -> dict[str, Tensor]:
        """The state after a step whose gradients are finite or not (a scalar)."""
        scale, good, skipped = (state[name] for name in (SCALE, GOOD, SKIPPED))
        more = good + 1
        grows = more >= self.interval
        grown = apply("Min", scale * self.growth, np.float32(LARGEST))
        after = apply("Where", grows, grown, scale)
        count = apply("Where", grows, np.int64(0), more)
        return {
            SCALE: apply("Where", is_finite, after, scale * self.backoff),
            GOOD: apply("Where", is_finite, count, np.int64(0)),
            SKIPPED: apply("Where", is_finite, skipped, skipped + 1),
        }
