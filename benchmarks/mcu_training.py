#!/usr/bin/env python3
"""Training on emulated microcontrollers: RAM, flash, instructions and errors of a step.

    python benchmarks/mcu_training.py MODEL.onnx ... [--train "last 2 layers"] [--channels 25%]
        [--tail int8] [--ram 65536] [--counter count.so]

Takes ten steps on random inputs and labels on a Cortex-M4 and a Cortex-M55 in QEMU, and compares
the weights with those of the same step on this machine (`graphc.train.Step` in float32, without
Winograd's algorithm).
`--counter` is a plugin of QEMU that counts the instructions between two addresses
(emulated_training.py). Models with a Softmax at the end are trained by cross-entropy, others to
give their input. Prints a row of a table for each run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import graphc
from graphc.backends.micro_c import model_of
from graphc.backends.micro_c.boards import BOARDS
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.emulated_training import train_on_board
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.targets.micro_c import MicroC
from graphc.train import Step
from graphc.train.bundle import OPTIMIZERS, joint_program, step_of
from graphc.train.channels import with_channels
from graphc.train.layers import exactly
from graphc.train.states import judged, to_train

STEPS, RATE = 10, 0.01
BOARD = {"m4": "mps2-an386", "m55": "mps3-an547"}
HEAD = ("model | board | arena | state | stack | RAM | flash | instructions | losses | "
        "largest error of a weight | of moves up to | other codes")  # fmt: skip


def measured(path: Path, name: str, args: argparse.Namespace) -> str:
    """A row of the table."""
    graph, board = import_onnx(path), BOARDS[BOARD[name]]
    loss = "cross_entropy" if any(op.name == "Softmax" for op in graph.ops) else "mse"
    target = MicroC(
        cpu=board.cpu, train=args.train, channels=args.channels, loss=loss, tail=args.tail,
        optimizer=args.optimizer, ram=args.ram,
    )  # fmt: skip
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
    before, after = on_host(graph, target, batches)
    done = train_on_board(
        program, training, batches, RATE, board, target.code(), ["-O3"], args.counter
    )
    names = [name for name in after if " of " not in name and name in done.state]
    codes = [name for name in names if done.state[name].dtype.kind in "iu"]
    floats = [name for name in names if name not in codes]
    error = max((_apart(done.state[n], after[n]) for n in floats), default=0.0)
    moves = max(_apart(before[n], after[n]) for n in names)
    other = sum(int((done.state[n] != after[n]).sum()) for n in codes)
    ram = program.arena_bytes + budget.state + done.stack + budget.io
    return " | ".join([
        path.stem, name, f"{program.arena_bytes:,}", f"{budget.state:,}", f"{done.stack:,}",
        f"{ram:,}", f"{budget.flash:,}", f"{done.instructions:,}",
        f"{done.losses[0]:.4g} to {done.losses[-1]:.4g}", f"{error:.2g}", f"{moves:.2g}",
        f"{other} of {sum(after[n].size for n in codes):,}",
    ])  # fmt: skip


Arrays = dict[str, np.ndarray]


def on_host(graph: Graph, target: MicroC, batches: list) -> tuple[Arrays, Arrays]:
    """The state before and after the steps, as this machine takes them."""
    if target.tail == "int8":
        step, state = step_of(graph, target)
        model, start = graphc.compile(step, threads=1, exact=True), state
        for x, y in batches:
            given = [*x, y, np.array(RATE, np.float32)]
            results = model([*given, *state.values()])
            state = dict(zip(state, results[1:]))
        return start, state
    graph, names = to_train(graph, target.train or "all")
    graph, _ = with_channels(graph, names, target.channels or "all")
    optimizer = replace(OPTIMIZERS[target.optimizer], rate=RATE)
    named = [exactly(n) for n in names]
    loss = target.loss
    own = Step(judged(graph, loss), loss, optimizer, named, train_mode=False, exact=True)
    before = own.state_dict()
    for x, y in batches:
        own((*x, y))
    after = own.state_dict()
    return {n: before[n] for n in names}, {n: after[n] for n in names}


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two elements."""
    return float(np.abs(one.astype(np.float64) - other).max(initial=0))


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
    parser.add_argument("--tail", default="float32", choices=("float32", "int8"))
    parser.add_argument("--ram", type=int, help="bytes")
    parser.add_argument("--counter", help="a plugin of QEMU")
    parser.add_argument("--boards", default="m4,m55")
    args = parser.parse_args()
    print(HEAD)
    for path in args.models:
        for name in args.boards.split(","):
            print(measured(path, name, args), flush=True)


if __name__ == "__main__":
    main()
