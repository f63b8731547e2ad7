"""graphc run: runs a model once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.cli.options import (
    INTERPRETER,
    add_feeds,
    add_limits,
    add_model,
    add_target,
    command,
    contender_of,
    examples,
    filename,
    run_options,
    settings_options,
)
from graphc.cli.output import Written, add_json, answer
from graphc.errors import ModelError
from graphc.targets import DEFAULT

if TYPE_CHECKING:
    from graphc.runtime.runnable import Runnable

SUMMARY = """\
Runs a model once. Inputs are read from files or drawn at random. Outputs are summarised, or written
to a .npz file, one array for each output (of a list of maps: their values, a row each). A .gcm
holds native code, which runs with all your rights: run one only if you trust its author (graphc
inspect shows the contents)."""

SHOWN = 8  # members of a list or map

EPILOG = examples(
    ("graphc run model.onnx", "on random inputs; prints a summary of each output"),
    ("graphc run model.onnx --input x=x.npy -o y.npz", "on an array saved by numpy.save"),
    ("graphc run model.onnx --input feeds.npz", "on all inputs, saved by numpy.savez"),
    ("graphc run model.onnx --dim batch=8 --seed 3", "on other random inputs, eight at a time"),
    ("graphc run model.gcm", "a model that graphc compile has saved"),
    ("graphc run model.onnx --target interpreter", "in the reference interpreter (slow)"),
)


def add(commands: Any) -> None:
    """Adds the command."""
    parser = command(commands, "run", run, SUMMARY, EPILOG)
    add_model(parser)
    add_target(parser, INTERPRETER)
    add_feeds(parser)
    add_limits(parser)
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT.npz", type=filename, help="the file to write outputs to"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    names, outputs = _run_saved(args) if args.model.endswith(".gcm") else _run_model(args)
    data: dict[str, Any] = {"model": Path(args.model).stem}
    if args.output:
        written = Written(args.output)
        _save(args.output, names, outputs)
        answer(args, {**data, **written.data}, str(written))
        return 0
    texts = [f"{name}: {describe(value)}" for name, value in zip(names, outputs)]
    told = {name: as_data(value) for name, value in zip(names, outputs)} if args.json else {}
    answer(args, {**data, "outputs": told}, "\n".join(texts))
    return 0


def _run_model(args: argparse.Namespace) -> tuple[list[str], list[Any]]:
    """Compiles and runs; names of the outputs, and the outputs."""
    from graphc.cli.models import open_model
    from graphc.cli.output import progress
    from graphc.cli.runs import contender

    who = contender_of(args)
    if _is_plain(args, who):
        return _run_by_name(args)
    model = open_model(args)
    feeds = model.feeds(args.seed)
    run = contender(model, who, **run_options(args, who))
    with progress(f"running {model.path.name}"):
        return model.graph.output_names, run(feeds)


def _is_plain(args: argparse.Namespace, who: Any) -> bool:
    """Whether nothing but the model's file and what pins its shapes has to be known to compile it,
    so that it may come from the cache of models and need not be read."""
    is_default = args.target == DEFAULT and who == type(who)()
    return is_default and not (args.set or args.modules) and args.model.endswith(".onnx")


def _run_by_name(args: argparse.Namespace) -> tuple[list[str], list[Any]]:
    """As `_run_model`, for a model that need not be read if the cache has it."""
    from graphc import api
    from graphc.cli.models import once
    from graphc.cli.output import progress

    shapes, dims = once("--shape", args.shape), once("--dim", args.dim)
    name = Path(args.model).name
    with progress(f"compiling {name}"):
        compiled = api.compile(args.model, shapes=shapes, dims=dims, **settings_options(args))
    with progress(f"running {name}"):
        return _run_interface(args, compiled, {}, {})


def _run_saved(args: argparse.Namespace) -> tuple[list[str], list[Any]]:
    """As `_run_model`, for a file that graphc compile wrote."""
    from graphc import api
    from graphc.cli.models import once

    if args.set or args.target != DEFAULT:
        raise ModelError(f"{args.model} is compiled already, for these values and target")
    saved = api.load(args.model, args.threads)
    return _run_interface(args, saved, once("--shape", args.shape), once("--dim", args.dim))


def _run_interface(
    args: argparse.Namespace, compiled: Runnable, shapes: dict[str, Any], dims: dict[str, Any]
) -> tuple[list[str], list[Any]]:
    """Runs a model of which the inputs are known; `shapes` and `dims` pin those that are open."""
    from graphc.cli.models import Model
    from graphc.ir.graph import Graph
    from graphc.ir.text.printer import symbols_of

    interface = Graph(Path(args.model).stem)
    for spec in compiled.inputs:
        interface.add_param(spec.type, spec.name)
    interface.symbols = symbols_of(interface)
    if (shapes or dims) and not interface.symbols:
        raise ModelError(f"{args.model} is compiled already: its shapes cannot be changed")
    model = Model(Path(args.model), interface, shapes, dims, {})
    model.read_inputs(args.input)
    return [spec.name for spec in compiled.outputs], compiled.run(model.feeds(args.seed))


def _save(path: str, names: list[str], outputs: list[Any]) -> None:
    import numpy as np

    from graphc.files import save_npz

    arrays: dict[str, Any] = {}
    for name, value in zip(names, outputs):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            arrays[name] = np.array([list(row.values()) for row in value])
        elif isinstance(value, list):
            arrays.update((f"{name}[{n}]", _storable(v)) for n, v in enumerate(value))
        elif value is not None:
            arrays[name] = _storable(value)
    save_npz(path, arrays)


def _storable(array: Any) -> Any:
    return array.astype(str) if array.dtype.kind == "O" else array


def as_data(value: Any) -> Any:
    """An output as JSON has it: type, shape and elements; of a sequence or a map its members."""
    from graphc.ir import dtypes

    if value is None:
        return None
    if isinstance(value, list):
        return list(map(as_data, value))
    if isinstance(value, dict):
        return {str(key): float(number) for key, number in value.items()}
    dtype = dtypes.of(value.dtype)
    if dtype.kind == "complex":
        values: list[Any] = [[float(x.real), float(x.imag)] for x in value.reshape(-1)]
    elif dtype.is_number and not dtype.is_integer:
        values = [float(x) for x in value.reshape(-1)]
    else:
        values = [int(x) if dtype.is_integer else x for x in value.reshape(-1).tolist()]
    return {"type": str(dtype), "shape": list(value.shape), "values": values}


def describe(value: Any) -> str:
    """An output in one line: type, shape, range and first elements."""
    import numpy as np

    from graphc.ir import dtypes

    if value is None:
        return "absent"
    if isinstance(value, list):
        members = ", ".join(map(describe, value[:SHOWN]))
        return f"[{members}{', ...' if len(value) > SHOWN else ''}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{k}: {v:.6g}" for k, v in list(value.items())[:SHOWN])
        return f"{{{pairs}{', ...' if len(value) > SHOWN else ''}}}"
    dtype = dtypes.of(value.dtype)
    text = f"{dtype}[{','.join(map(str, value.shape))}]"
    if value.size and dtype.kind not in ("string", "bool", "complex"):
        wide = value.astype(np.float64)
        text += f", {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"
    first = value.reshape(-1)[:4]
    shown = [f"{float(x):.6g}" if dtype.is_number else str(x) for x in first]
    return f"{text}: {' '.join(shown)}{' ...' if value.size > 4 else ''}"
