"""graphc compare: layer by layer, how far a model is from a reference."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    add_feeds,
    add_limits,
    add_model,
    add_target,
    command,
    examples,
    positive,
    reader,
    run_options,
    settings_options,
    target_of,
)
from graphc.errors import ModelError
from graphc.progress import counted
from graphc.targets.base import nonnegative

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.comparing.compare import Comparer
    from graphc.comparing.references import Values

SUMMARY = """\
Compares a model layer by layer, and names the first layer that departs. Without --with, what graphc
compiles is compared with ONNX Runtime, which runs the model without optimising it. With --with,
another model is compared with MODEL, which counts as right: a quantised model with the float one it
was made from, or a copy that behaves otherwise. Values are matched by name, those of a quantised
model behind DequantizeLinear.

Each layer is compared twice: in the whole, with all errors of the layers before it; and alone,
given the reference's values. A layer departs if it does so alone; where none does, the first
value that does in the whole is named. Of each value: the largest difference, the same relative to
the range of the value, signal to noise (SQNR), cosine, and the distance in floating-point numbers
(ULP). Outputs are those of the model as it is compiled when nobody looks at what is inside.

With --data many samples are compared, one batch at a time, and for outputs that are scores of
classes it is told how often both have the same largest one; with --labels how often it is right.
The exit code is 1 if a layer departs."""

EPILOG = examples(
    ("graphc compare model.onnx", "graphc against ONNX Runtime, value by value"),
    ("graphc compare model.onnx --with q.onnx --data calib.npz", "what quantising costs, by layer"),
    ("graphc compare model.onnx --with q.onnx --data calib.npz --labels y.npy", "and top-1"),
    ("graphc compare model.onnx --with other.onnx --limit 1e-3", "which layer of a copy is wrong"),
    ("graphc compare model.onnx --input x=x.npy --all --json", "every value, as data"),
)
NAMES = ("onnxruntime", "interpreter", "graphc")
TOP = 20


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "compare", run, SUMMARY, EPILOG)
    add_model(parser)
    parser.add_argument("--with", dest="other", metavar="OTHER.onnx",
                        help="the model to compare with MODEL")  # fmt: skip
    parser.add_argument("--against", choices=NAMES, default=None,
                        help="who runs the reference (default: onnxruntime, or graphc if there is "
                        "--with)")  # fmt: skip
    parser.add_argument("--limit", type=reader(nonnegative), metavar="R", default=None,
                        help="the largest difference, relative to a value's range (default: 1e-4); "
                        "of a quantised model compared with a float one the root of noise to "
                        "signal (default: 0.05, or 4 times the median of layers)")  # fmt: skip
    parser.add_argument("--data", metavar="DATA",
                        help="samples: a .npz file with an array for each input, whose first axes "
                        "count samples, or a folder of such files")  # fmt: skip
    parser.add_argument("--batch", type=positive, metavar="N", default=1,
                        help="samples of --data in a run, where the model does not fix it "
                        "(default: 1)")  # fmt: skip
    parser.add_argument("--samples", type=positive, metavar="N",
                        help="so many samples of --data at most")  # fmt: skip
    parser.add_argument("--labels", metavar="Y.npy",
                        help="the right class of each sample of --data")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help=f"every layer, not just the {TOP} that lose most")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    add_target(parser)
    add_feeds(parser)
    add_limits(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from graphc.cli.deviation import quantising
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.comparing import report
    from graphc.comparing.compare import set_limit

    _check(args)
    model = open_model(args)
    samples = _samples(model, args)
    other = _other(model, args)
    comparer = _comparer(model, other, args)
    with progress(f"comparing {model.path.name}"):
        comparison = comparer.compare(samples, _labels(args))
    is_quantised = other is not model and quantising(other.graph) > quantising(model.graph)
    set_limit(comparison, args.limit, is_quantised)
    if args.json:
        print(json.dumps({"model": model.path.stem, **report.data(comparison)}, indent=2))
    else:
        print(report.layers_text(comparison, None if args.all else TOP) + "\n")
        print("\n".join([*report.verdict(comparison), *report.outputs_text(comparison)]))
    return 0 if comparison.first is None else 1


def _check(args: argparse.Namespace) -> None:
    """ModelError names options that do not go together."""
    for name in ("labels", "samples"):
        if getattr(args, name) and not args.data:
            raise ModelError(f"--{name}: goes with --data")
    if args.data and args.input:
        raise ModelError("--data and --input both give contents of inputs: leave one out")


def _other(model: Model, args: argparse.Namespace) -> Model:
    """The model that is compared: that of --with, with the same sizes, or the reference itself."""
    from graphc.cli.models import Model, read_graph
    from graphc.ir.types import TensorType

    if args.other is None:
        return model
    path = Path(args.other)
    graph = read_graph(path)
    ours, theirs = ([p.name for p in g.params] for g in (model.graph, graph))
    if set(ours) != set(theirs):
        raise ModelError(f"{path}: has inputs {theirs}, {model.path.name} has {ours}")
    types = {p.name: p.type for p in model.graph.params}
    for param in graph.params:
        ours_type = types[param.name]
        if isinstance(ours_type, TensorType) and isinstance(param.type, TensorType):
            if ours_type.dtype != param.type.dtype:
                raise ModelError(
                    f"{path}: input {param.name!r} is {param.type}, that of {model.path.name} is "
                    f"{ours_type}: compare models that take the same inputs"
                )
    dims = {name: size for name, size in model.dims.items() if name in graph.symbols}
    return Model(path, graph, model.shapes, dims, model.values, model.given)


def _comparer(model: Model, other: Model, args: argparse.Namespace) -> Comparer:
    """What compares the two, each compiled or loaded."""
    from graphc.cli.output import progress
    from graphc.comparing.compare import Comparer
    from graphc.comparing.pairs import data_values, pairs_of
    from graphc.comparing.references import compiled

    target = target_of(args)
    options = {**run_options(args, target), "target": target}
    reference, graph = model.pinned(), other.pinned()
    pairs = pairs_of(reference, graph)
    names = [name for name in reference.output_names if name in graph.output_names]
    if not names:
        theirs, ours = graph.output_names, reference.output_names
        raise ModelError(f"{other.path}: has outputs {theirs}, {model.path.name} has {ours}")
    known = data_values(reference)
    with progress(f"compiling {other.path.name} for {target.name}"):
        observed = compiled(graph, [pair.other for pair in pairs], **options)
        plain = compiled(graph, names, **options)
    expected = _reference(model, list(dict.fromkeys([*known, *names])), args)
    return Comparer(graph, pairs, {n: n for n in names}, expected, observed, plain, options)


def _reference(model: Model, names: list[str], args: argparse.Namespace) -> Values:
    """Who computes the values of the reference."""
    from graphc.cli.output import progress
    from graphc.comparing import references

    graph = model.pinned()
    inputs = {param.name for param in graph.params}
    wanted = [name for name in names if name not in inputs or name in graph.output_names]
    who = args.against or ("onnxruntime" if args.other is None else "graphc")
    with progress(f"loading {model.path.name} in {who}"):
        if who == "onnxruntime":
            run = references.by_onnxruntime(model.source, model.graph, wanted, args.threads)
            return lambda feeds: run({**feeds, **model.values})
        if who == "interpreter":
            return references.by_interpreter(graph, wanted)
        return references.compiled(graph, wanted, **settings_options(args))


# ---------------------------------------------------------------- samples


def _samples(model: Model, args: argparse.Namespace) -> Iterator[dict[str, Any]] | list:
    """The inputs of each run, and the sizes of the model fixed to fit them."""
    if not args.data:
        return [model.feeds(args.seed)]
    from graphc.ir.types import TensorType
    from graphc.train.data import Data

    params = model.pinned().params
    data = Data.open(args.data, params, has_target=False)
    first = params[0].type if params else None
    fixed = first.shape[0] if isinstance(first, TensorType) and first.shape else None
    size = fixed if isinstance(fixed, int) else args.batch
    count = min(data.samples, args.samples or data.samples)
    if count < size or count % size:
        raise ModelError(
            f"--data {args.data}: {count} samples are no multiple of the batch of {size}; give "
            f"another number with --samples, or another batch with --batch or --dim"
        )
    batches = data.batches(size)
    runs = counted("samples", range(count // size))
    named = (dict(zip(data.names, next(batches))) for _ in runs)
    begun = next(named)
    model.shapes = {**{name: array.shape for name, array in begun.items()}, **model.shapes}
    return _chained(begun, named)


def _chained(first: dict[str, Any], rest: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from rest


def _labels(args: argparse.Namespace) -> Any:
    """The right classes, as integers."""
    if args.labels is None:
        return None
    from graphc.cli.models import load_npy

    labels = load_npy(Path(args.labels)).reshape(-1)
    if labels.dtype.kind not in "iu":
        raise ModelError(f"--labels {args.labels}: expected integers, found {labels.dtype}")
    return labels[: args.samples]
