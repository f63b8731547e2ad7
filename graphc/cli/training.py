"""Options of training that several commands share, and what they make."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from graphc.cli.options import natural, positive
from graphc.errors import ModelError
from graphc.ir.machine import PRECISIONS
from graphc.targets.training import LOSSES as DEVICE_LOSSES
from graphc.targets.training import OPTIMIZERS

if TYPE_CHECKING:
    from graphc.train import Optimizer
    from graphc.train.schedules import Schedule

LOSSES = (*DEVICE_LOSSES, "ctc")
SCHEDULES = ("constant", "cosine", "linear", "step", "exponential")


def number(text: str) -> float:
    """A number from zero on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text!r}")
    return value


def add_step(parser: argparse.ArgumentParser) -> None:
    """What a step computes."""
    group = parser.add_argument_group("the step")
    add = group.add_argument
    add("--loss", choices=LOSSES, default="cross_entropy",
        help="of the first output and the target, each as PyTorch's of that name; cross_entropy "
        "and nll take class numbers (default: %(default)s)")  # fmt: skip
    add("--optimizer", choices=OPTIMIZERS, default="adamw",
        help="momentum and nesterov are SGD with momentum 0.9 (default: %(default)s)")  # fmt: skip
    add("--rate", type=number, metavar="R",
        help="the learning rate, with which the schedule starts (default: the optimiser's: 0.001, "
        "adagrad and rmsprop 0.01, lion 0.0001)")  # fmt: skip
    add("--weight-decay", type=number, metavar="D",
        help="(default: 0, adamw 0.01)")  # fmt: skip
    add("--clip-norm", type=number, metavar="N",
        help="scale gradients down to a 2-norm, of all together, of at most this")  # fmt: skip
    add("--train", metavar="PATTERN", action="append", dest="parameters",
        help="train the parameters of these names alone ('fc*', say); repeatable; graphc inspect "
        "lists names (default: all)")  # fmt: skip
    add("--freeze", metavar="PATTERN", action="append", default=[],
        help="leave the parameters of these names as they are; repeatable")  # fmt: skip
    add("--eval-mode", action="store_true",
        help="BatchNormalization and Dropout as in inference: for fine-tuning with small "
        "batches")  # fmt: skip
    add("--precision", choices=PRECISIONS, default="f32",
        help="to which what matrix products and convolutions multiply is rounded; all else, and "
        "the parameters, stay in f32; for f16 the loss is scaled (default: "
        "%(default)s)")  # fmt: skip
    add("--seed", type=natural, default=0,
        help="of the order of samples and of Dropout (default: 0)")  # fmt: skip


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """How the learning rate goes."""
    group = parser.add_argument_group("the learning rate")
    add = group.add_argument
    add("--schedule", choices=SCHEDULES, default="constant",
        help="cosine and linear fall to 0 at the end of the run; step and exponential multiply by "
        "--decay, after every --decay-every epochs and after each (default: constant)")  # fmt: skip
    add("--warmup", type=natural, default=0, metavar="STEPS",
        help="so many steps in which the rate rises to --rate come first (default: 0)")  # fmt: skip
    add("--decay", type=number, metavar="F", help="(default: step 0.1, exponential 0.9)")
    add("--decay-every", type=positive, default=1, metavar="EPOCHS", help="(default: 1)")


def optimizer_of(args: argparse.Namespace, per_epoch: int, epochs: int) -> Optimizer:
    """The optimiser that the arguments ask for, with its schedule."""
    from graphc.train.optimizers import OPTIMIZERS

    made = OPTIMIZERS[args.optimizer]
    if args.weight_decay is not None:
        made = replace(made, weight_decay=args.weight_decay)
    rate = made.rate_of(0) if args.rate is None else args.rate
    return replace(made, rate=schedule_of(args, rate, per_epoch, epochs))


def schedule_of(args: argparse.Namespace, rate: float, per_epoch: int, epochs: int) -> Schedule:
    """The schedule that the arguments ask for."""
    from graphc.train import schedules

    if args.decay is not None and args.schedule not in ("step", "exponential"):
        raise ModelError("--decay: goes with --schedule step or exponential")
    steps = per_epoch * epochs - args.warmup
    if args.warmup and steps <= 0:
        raise ModelError(
            f"--warmup {args.warmup}: must be less than the {per_epoch * epochs} steps of the run"
        )
    if args.schedule == "step":
        factor = 0.1 if args.decay is None else args.decay
        made = schedules.stepwise(rate, args.decay_every * per_epoch, factor)
    elif args.schedule == "exponential":
        factor = 0.9 if args.decay is None else args.decay
        made = schedules.exponential(rate, factor ** (1 / per_epoch))
    elif args.schedule == "constant":
        made = schedules.constant(rate)
    else:
        made = getattr(schedules, args.schedule)(rate, steps)
    return schedules.warmed_up(made, args.warmup) if args.warmup else made
