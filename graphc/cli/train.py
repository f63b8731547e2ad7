"""graphc train: trains a model on samples in .npz files."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import command, dim, examples, filename, positive
from graphc.cli.output import Written, add_json, answer
from graphc.cli.training import add_schedule, add_step, optimizer_of
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.train import Step
    from graphc.train.data import Data
    from graphc.train.fitting import Epoch, Log, Plan
    from graphc.train.step import Result

SUMMARY = """\
Trains a model on samples in .npz files. The model is one for inference: its floating-point
constants are the parameters that are trained, its first output and a target make the loss.

DATA is a .npz file, as numpy.savez writes it, or a folder of such files. It holds an array for each
input of the model, by its name, and one more, the target; the first axes of all count samples:

  numpy.savez("train.npz", x=images, label=classes)      # x is the model's input

OUT is the trained model (.onnx), or its parameters by name (.npz, .safetensors: PyTorch reads the
latter). With --checkpoint, the state of the run is kept in a file; if the run is killed, the same
command with --resume goes on from there, to the same bits as if nothing had happened. Under
torchrun each process takes its part of every batch."""

EPILOG = examples(
    ("graphc train model.onnx --data train.npz --epochs 3 -o trained.onnx",
     "class numbers as targets: cross-entropy, AdamW"),
    ("graphc train model.onnx --data train.npz --validation test.npz --epochs 3 -o trained.onnx",
     "tells loss and accuracy on other samples after each epoch"),
    ("graphc train model.onnx --data train.npz --epochs 20 --optimizer nesterov --rate 0.05 "
     "--schedule cosine --warmup 10 --clip-norm 1 -o trained.onnx",
     "SGD whose rate rises for ten steps and then falls to 0"),
    ("graphc train model.onnx --data train.npz --epochs 5 --train 'w*' --eval-mode -o trained.onnx",
     "fine-tunes the parameters whose names begin with w"),
    ("graphc train model.onnx --data train.npz --epochs 5 --checkpoint run.npz --resume "
     "-o trained.onnx", "goes on from run.npz if it is there, and keeps it up to date"),
    ("torchrun --nproc-per-node 2 -m graphc train model.onnx --data train.npz --epochs 5 "
     "--checkpoint run.npz --resume -o trained.onnx", "in two processes; any number may go on"),
    ("graphc train model.onnx --data train.npz --epochs 5 --csv run.csv --tensorboard events "
     "-o weights.safetensors", "records every step; writes parameters alone"),
)  # fmt: skip


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "train", run, SUMMARY, EPILOG)
    parser.add_argument(
        "model", metavar="MODEL", help="an .onnx or .tflite file, or a graph in text (.gir)"
    )
    add = parser.add_argument
    add("--data", metavar="DATA", required=True, help="the samples: a .npz file, or a folder")
    add("--validation", metavar="DATA", help="samples to measure loss and metrics on, likewise")
    add("--target-name", metavar="NAME",
        help="the array of targets (default: the one that is no input)")  # fmt: skip
    add("--epochs", type=positive, default=1, metavar="N", help="(default: 1)")
    add("--batch", type=positive, default=32, metavar="N", help="samples of a step (default: 32)")
    add("--accumulate", type=positive, default=1, metavar="N",
        help="compute a batch in so many parts, which takes less memory (default: 1)")  # fmt: skip
    add("--dim", metavar="NAME=1..32", type=dim, action="append",
        help="bounds of an open dimension of the model: batches of all sizes within them are "
        "computed by one program, as is the last, smaller one of an epoch; repeatable")  # fmt: skip
    add("--no-shuffle", action="store_true", help="take samples in the order in which they lie")
    add("--drop-last", action="store_true",
        help="leave out the last batch of an epoch if it is not full")  # fmt: skip
    add("--metric", action="append", metavar="NAME",
        help="accuracy, top5, binary_accuracy, mse or l1, of each batch and of --validation; "
        "repeatable (default: accuracy where targets are classes)")  # fmt: skip
    add("--threads", metavar="N", type=positive, default=None, help="CPU threads (default: all)")
    add("-o", "--output", metavar="OUT", type=filename, required=True, help="the file to write")
    add_step(parser)
    add_schedule(parser)
    _add_records(parser)


def _add_records(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("records").add_argument
    add("--checkpoint", metavar="FILE.npz", type=filename,
        help="keep the state of the run in this file (or FILE.safetensors)")  # fmt: skip
    add("--checkpoint-every", metavar="STEPS", type=positive,
        help="write it after so many steps (default: after each epoch)")  # fmt: skip
    add("--resume", action="store_true", help="go on from the checkpoint, if it is there")
    add("--csv", metavar="FILE.csv", type=filename, help="a row for each step")
    add("--tensorboard", metavar="DIR", type=filename, help="event files of TensorBoard")
    add_json(parser)
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.models import read_graph
    from graphc.train.data import Data
    from graphc.train.fitting import Fitting
    from graphc.train.parallel import DataParallel

    _check_output(args)
    graph = read_graph(Path(args.model))
    _check_batch(graph, args)
    data = Data.open(args.data, graph.params, args.target_name)
    validation = None
    if args.validation:
        validation = Data.open(args.validation, graph.params, data.names[-1])
    step, plan = _step(graph, data, args), _plan(args)
    fitting = Fitting(step, data, plan, validation)
    if args.resume and fitting.resume() and not (args.quiet or args.json):
        print(f"goes on after step {step.count}, from {args.checkpoint}")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        fitting.parallel = DataParallel(step)
        args.quiet = args.quiet or not fitting.is_first
    progress = _Progress(args, fitting.per_epoch)
    logs = _logs(args, fitting) if fitting.is_first else []
    fitting.run(logs, progress.step, progress.epoch)
    if fitting.is_first:
        written = Written(args.output)
        _write(step, args.output)
        done = {"model": Path(args.model).stem, "steps": step.count, "epochs": progress.epochs}
        answer(args, {**done, **written.data}, "" if args.quiet else str(written))
    return 0


def _check_output(args: argparse.Namespace) -> None:
    from graphc.files import check_folder
    from graphc.train.state_files import SUFFIXES

    if Path(args.output).suffix not in (".onnx", *SUFFIXES):
        raise ModelError(f"-o {args.output}: expected a name ending in .onnx, .npz or .safetensors")
    for name in ("output", "checkpoint", "csv"):
        if getattr(args, name):
            check_folder(Path(getattr(args, name)))
    for name in ("checkpoint_every", "resume"):
        if getattr(args, name) and not args.checkpoint:
            raise ModelError(f"--{name.replace('_', '-')}: goes with --checkpoint FILE.npz")


def _check_batch(graph: Graph, args: argparse.Namespace) -> None:
    """ModelError if the model is for batches of another size."""
    from graphc.ir.types import TensorType

    for value in graph.params:
        first = value.type.dims[:1] if isinstance(value.type, TensorType) else ()
        if first and isinstance(first[0], int) and first[0] * args.accumulate != args.batch:
            raise ModelError(
                f"{args.model}: input {value.name!r} is {value.type}: it takes batches of "
                f"{first[0]} alone, found --batch {args.batch}; export the model with an open "
                f"first dimension, or use --batch {first[0]} --drop-last"
            )


def _step(graph: Graph, data: Data, args: argparse.Namespace) -> Step:
    from graphc.cli.models import once
    from graphc.train import Step

    metrics = args.metric
    if metrics is None:
        own = {"cross_entropy": ["accuracy"], "nll": ["accuracy"], "bce": ["binary_accuracy"]}
        metrics = own.get(args.loss, [])
    per_epoch = data.steps(args.batch, args.drop_last)
    return Step(
        graph,
        loss=args.loss,
        optimizer=optimizer_of(args, per_epoch, args.epochs),
        parameters=args.parameters,
        frozen=args.freeze,
        clip_norm=args.clip_norm,
        train_mode=not args.eval_mode,
        threads=args.threads,
        metrics=metrics,
        seed=args.seed,
        accumulate=args.accumulate,
        precision=args.precision,
        dims=once("--dim", args.dim or []),
    )


def _plan(args: argparse.Namespace) -> Plan:
    """The plan; what decides the numbers of the run describes it."""
    from graphc.train.fitting import Plan

    names = ("loss", "optimizer", "rate", "weight_decay", "clip_norm", "parameters", "freeze",
             "eval_mode", "schedule", "warmup", "decay", "decay_every", "epochs", "accumulate",
             "metric", "precision", "dim")  # fmt: skip
    description: dict[str, Any] = {f"--{n.replace('_', '-')}": getattr(args, n) for n in names}
    description["model"] = hashlib.sha256(Path(args.model).read_bytes()).hexdigest()
    return Plan(
        args.epochs,
        args.batch,
        None if args.no_shuffle else args.seed,
        args.drop_last,
        args.checkpoint,
        args.checkpoint_every,
        description,
    )


def _logs(args: argparse.Namespace, fitting: Any) -> list[Log]:
    from graphc.train.logs import CsvLog, EventLog

    count, logs = fitting.step.count, list["Log"]()
    if args.csv:
        logs.append(CsvLog(args.csv, fitting.columns, count))
    if args.tensorboard:
        logs.append(EventLog(args.tensorboard, count))
    return logs


def _write(step: Step, output: str) -> None:
    from graphc.frontend.onnx_export import export_onnx
    from graphc.train import save_state_dict

    if Path(output).suffix == ".onnx":
        export_onnx(step.trained(), output)
    else:
        save_state_dict(step.state_dict(), output)


class _Progress:
    """A line for each epoch, and on a terminal one that counts steps."""

    def __init__(self, args: argparse.Namespace, per_epoch: int):
        self.args, self.per_epoch = args, per_epoch
        self.is_shown = sys.stderr.isatty() and not args.quiet
        self.start = self.last = time.perf_counter()
        self.epochs: list[dict[str, Any]] = []

    def step(self, count: int, total: int, result: Result) -> None:
        now = time.perf_counter()
        if self.is_shown and now - self.last > 0.1:
            self.last = now
            left = (now - self.start) / count * (total - count)
            text = f"\r\x1b[Kstep {count} of {total}, {_numbers({'loss': result.loss})}"
            print(f"{text}, {left:.0f} s left", end="", file=sys.stderr, flush=True)

    def epoch(self, epoch: Epoch) -> None:
        losses = {"training": epoch.training, "validation": epoch.validation or None}
        self.epochs.append({"epoch": epoch.number, **losses})
        if self.args.quiet or self.args.json:
            return
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        text = f"epoch {epoch.number} of {self.args.epochs}: {_numbers(epoch.training)}"
        if epoch.validation:
            text += f"; validation: {_numbers(epoch.validation)}"
        print(f"{text} ({time.perf_counter() - self.start:.1f} s)", flush=True)


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.5g}" for name, value in values.items())
