"""Optimisers: how a parameter follows from its gradient, written as functions of the DSL.

Each has the formulas of PyTorch's optimiser of that name. `rate` is a number, or a function from
the number of the step (from 0) to one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphc.frontend.dsl_tensor import Tensor, apply

Rate = float | Callable[[int], float]
Slots = dict[str, Tensor]


@dataclass(frozen=True)
class Optimizer:
    """What all optimisers have: the rate, and the weight decay (added to the gradient, unless an
    optimiser says otherwise). `slots` names the state that is kept for each parameter; it starts
    as zeros of the parameter's shape."""

    rate: Rate = 1e-3
    weight_decay: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of what is kept for each parameter."""
        return ()

    def rate_of(self, step: int) -> float:
        """The rate of a step."""
        return float(self.rate(step) if callable(self.rate) else self.rate)

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        """The new parameter and slots; `rate` and `step` (from 1) are scalars of p's type."""
        raise NotImplementedError

    def decayed(self, p: Tensor, g: Tensor) -> Tensor:
        """The gradient with the weight decay."""
        return g + p * self.weight_decay if self.weight_decay else g


@dataclass(frozen=True)
class SGD(Optimizer):
    """p - rate * v, where v is the gradient, or momentum * v + gradient. With `nesterov`,
    gradient + momentum * v is taken."""

    momentum: float = 0.0
    nesterov: bool = False

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        g = self.decayed(p, g)
        if not self.momentum:
            return p - rate * g, {}
        v = slots["momentum"] * self.momentum + g
        return p - rate * (g + v * self.momentum if self.nesterov else v), {"momentum": v}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma and Ba (2015): steps along the averaged gradient, divided by the root of the averaged
    square, both corrected for starting at zero."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean", "square")

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        return self._moved(p, self.decayed(p, g), slots, rate, step)

    def _moved(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        m = slots["mean"] * self.beta1 + g * (1 - self.beta1)
        v = slots["square"] * self.beta2 + g * g * (1 - self.beta2)
        first = 1.0 - _power(self.beta1, step)
        second = apply("Sqrt", 1.0 - _power(self.beta2, step))
        size = apply("Sqrt", v) / second + self.epsilon
        return p - rate / first * m / size, {"mean": m, "square": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter (2019): Adam, where the decay is p - rate * weight_decay * p."""

    weight_decay: float = 0.01

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        shrunk = p * (1.0 - rate * self.weight_decay) if self.weight_decay else p
        return self._moved(shrunk, g, slots, rate, step)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Duchi et al. (2011): steps divided by the root of the sum of squares."""

    rate: Rate = 1e-2
    epsilon: float = 1e-10

    @property
    def slots(self) -> tuple[str, ...]:
        return ("sum",)

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        g = self.decayed(p, g)
        total = slots["sum"] + g * g
        return p - rate * g / (apply("Sqrt", total) + self.epsilon), {"sum": total}


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """Hinton (2012): steps divided by the root of the averaged square."""

    rate: Rate = 1e-2
    alpha: float = 0.99
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square",)

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        g = self.decayed(p, g)
        v = slots["square"] * self.alpha + g * g * (1 - self.alpha)
        return p - rate * g / (apply("Sqrt", v) + self.epsilon), {"square": v}


@dataclass(frozen=True)
class Lion(Optimizer):
    """Chen et al. (2023): steps of the sign of an average; decay as in AdamW."""

    rate: Rate = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99

    @property
    def slots(self) -> tuple[str, ...]:
        return ("mean",)

    def update(
        self, p: Tensor, g: Tensor, slots: Slots, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Slots]:
        m = slots["mean"]
        direction = apply("Sign", m * self.beta1 + g * (1 - self.beta1))
        shrunk = p * (1.0 - rate * self.weight_decay) if self.weight_decay else p
        return shrunk - rate * direction, {"mean": m * self.beta2 + g * (1 - self.beta2)}


def _power(base: float, step: Tensor) -> Tensor:
    """base ** step."""
    return step.__rpow__(base)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(), "momentum": SGD(momentum=0.9), "nesterov": SGD(momentum=0.9, nesterov=True),
    "adam": Adam(), "adamw": AdamW(), "adagrad": Adagrad(), "rmsprop": RMSProp(), "lion": Lion(),
}  # fmt: skip
"""By the names that commands have for them (targets.micro_c)."""
