"""What targets have in common that write training steps."""

from __future__ import annotations

from graphc.records import dataclass
from graphc.targets.base import Target, option

LOSSES = ("cross_entropy", "nll", "bce", "mse", "l1", "huber", "kl")
TAILS = ("float32", "int8")
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "lion")


@dataclass(frozen=True)
class Trains(Target):
    """A target that can write a step that trains parameters of a model."""

    train: str | None = option(
        None, "train these parameters: 'last 2 layers', 'all', or shell patterns of names, with "
        "commas between. With a folder of C, add a function that does; with a .gcm, .so, .o or "
        ".onnx, write the training step, and what it starts from beside it", metavar="WHAT",
        commands=("compile",),
    )  # fmt: skip
    channels: str | None = option(
        None, "of the weights that are trained, change these output channels alone: '8' or '25%' "
        "of those with the largest norm, '[0-3,7]' or 'all'; 'NAME=8 25%' for one weight and for "
        "others (default: all)", metavar="WHICH", commands=("compile",),
    )  # fmt: skip
    tail: str = option(
        TAILS[0], "what the trained part of a quantised model is computed in and kept as: float32, "
        "or values and weights of int8, whose updates are rounded at random", choices=TAILS,
        commands=("compile",),
    )  # fmt: skip
    loss: str = option(
        LOSSES[0], "what training minimises", choices=LOSSES, commands=("compile",),
    )  # fmt: skip
    optimizer: str = option(
        OPTIMIZERS[0], "how training moves parameters, at the rate that a step is given",
        choices=OPTIMIZERS, commands=("compile",),
    )  # fmt: skip
