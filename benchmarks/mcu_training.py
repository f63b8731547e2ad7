#!/usr/bin/env python3
"""Training on emulated microcontrollers: RAM, flash, instructions and errors of a step.

    python benchmarks/mcu_training.py MODEL.onnx ... [--train "last 2 layers"] [--channels 25%]
        [--counter count.so]

Takes ten steps on random inputs and labels on a Cortex-M4 and a Cortex-M55 in QEMU, and compares
the weights with those of `graphc.train.Step`. `--counter` is a plugin of QEMU that counts the
instructions between two addresses (emulated_training.py). Models with a Softmax at the end are
trained by cross-entropy, others to give their input. Prints a row of a table for each run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphc.backends.micro_c import model_of
from graphc.backends.micro_c.boards import BOARDS
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.emulated_training import train_on_board
from graphc.frontend.onnx_import import import_onnx
from graphc.targets.micro_c import MicroC
from graphc.train import Step
from graphc.train.bundle import OPTIMIZERS, joint_program
from graphc.train.channels import with_channels
from graphc.train.layers import exactly
from graphc.train.states import judged, to_train

STEPS, RATE = 10, 0.01
BOARD = {"m4": "mps2-an386", "m55": "mps3-an547"}
HEAD = ("model | board | arena | state | stack | RAM | flash | instructions | losses | "
        "largest error of a weight | of moves up to")  # fmt: skip


def measured(
    path: Path, name: str, what: str, channels: str, optimizer: str, counter: str | None
) -> str:
    """A row of the table."""
    graph, board = import_onnx(path), BOARDS[BOARD[name]]
    loss = "cross_entropy" if any(op.name == "Softmax" for op in graph.ops) else "mse"
    target = MicroC(cpu=board.cpu, train=what, channels=channels, loss=loss,
                    optimizer=optimizer)  # fmt: skip
    program, training = joint_program(graph, target)
    model = model_of(program, target.code(training=training))
    budget = Budget.of(model)
    random = np.random.default_rng(0)
    batches = []
    for _ in range(STEPS):
        x = [_contents(random, t.type.static_shape, t.type.dtype.np) for t in model.inputs]
        classes = model.outputs[0].type.static_shape[-1]
        label = random.integers(classes, size=1).astype(np.int32)
        batches.append((x, x[0].astype(np.float32) if loss == "mse" else label))
    graph, names = to_train(graph, what)
    graph, _ = with_channels(graph, names, channels)
    step = Step(
        judged(graph, loss), loss, replace(OPTIMIZERS[optimizer], rate=RATE),
        [exactly(n) for n in names], train_mode=False,
    )  # fmt: skip
    before = step.state_dict()
    for x, y in batches:
        step((*x, y))
    after = step.state_dict()
    done = train_on_board(program, training, batches, RATE, board, target.code(), ["-O3"], counter)
    error = max(float(np.abs(done.state[n] - after[n]).max()) for n in names)
    moves = max(float(np.abs(before[n] - after[n]).max()) for n in names)
    ram = program.arena_bytes + budget.state + done.stack + budget.io
    return " | ".join([
        path.stem, name, f"{program.arena_bytes:,}", f"{budget.state:,}", f"{done.stack:,}",
        f"{ram:,}", f"{budget.flash:,}", f"{done.instructions:,}",
        f"{done.losses[0]:.4g} to {done.losses[-1]:.4g}", f"{error:.2g}", f"{moves:.2g}",
    ])  # fmt: skip


def _contents(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Random contents of an input."""
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(-128, 128, shape).astype(dtype)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--train", default="last 2 layers")
    parser.add_argument("--channels", default="all")
    parser.add_argument("--optimizer", default="sgd", choices=tuple(OPTIMIZERS))
    parser.add_argument("--counter", help="a plugin of QEMU")
    parser.add_argument("--boards", default="m4,m55")
    args = parser.parse_args()
    print(HEAD)
    for path in args.models:
        for name in args.boards.split(","):
            row = measured(path, name, args.train, args.channels, args.optimizer, args.counter)
            print(row, flush=True)


if __name__ == "__main__":
    main()
