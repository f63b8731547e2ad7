"""Fuzzing: models whose declarations are wrong must run where ONNX Runtime runs them.

    python tests/fuzz/fuzz_declarations.py --seed 0 --minutes 10           # from this seed on
    python tests/fuzz/fuzz_declarations.py --seed 1234 --count 1 --print   # one case again

What official models say of the types of inputs, outputs and values between is changed: extents,
names of dimensions, ranks, element types, or that anything is said; their nodes are moved into a
branch, or the body of a loop, beside others that fit only by chance. Where ONNX Runtime runs the
original and what was made of it, graphc must give the same results; elsewhere it may refuse.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_models import RANDOM, compare, place
from mutants import originals
from worker import Worker, add_bounds

from graphc import driver
from graphc.errors import GraphcError, InternalError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

NAMES = ("N", "M", "?", "", "None", "batch size")
Feeds = dict[str, np.ndarray]


class Refused(Exception):
    """ONNX Runtime does not run a model."""


# ---------------------------------------------------------------- models


def runtime(model: ModelProto, feeds: Feeds) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, feeds)
    except Exception as error:  # the runtime raises types of its own
        raise Refused(str(error)) from error


def compiled(model: ModelProto, feeds: Feeds) -> list[Any]:
    made = driver.compile(model.SerializeToString(), threads=1)
    return made.run({spec.name: feeds[spec.name] for spec in made.inputs})


def interpreted(model: ModelProto, feeds: Feeds) -> list[Any]:
    graph = import_onnx(model.SerializeToString())
    return interpret(graph, [feeds[p.name] for p in graph.params])


@lru_cache(maxsize=64)
def original(number: int) -> tuple[ModelProto, Feeds] | None:
    """An official model with its inputs, if ONNX Runtime and graphc agree on it."""
    test = originals()[number]
    model = ModelProto.FromString(test.model.SerializeToString())
    if any(name in str(model.graph.node) for name in RANDOM) or not test.data_sets:
        return None
    feeds = {}
    for info, value in zip(model.graph.input, test.data_sets[0][0]):
        array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
        if not isinstance(array, np.ndarray) or array.dtype.isbuiltin != 1:
            return None
        feeds[info.name] = array
    try:
        compare(compiled(model, feeds), runtime(model, feeds))
    except (Refused, GraphcError, AssertionError):
        return None
    return model, feeds


# ---------------------------------------------------------------- edits


def shapes(rng: random.Random, infos: list[ValueInfoProto]) -> Any:
    """The dimensions of a tensor that has any."""
    found = [i.type.tensor_type.shape.dim for i in infos if i.type.HasField("tensor_type")]
    return rng.choice([dims for dims in found if dims] or [[]])


def name_dims(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """Dimensions of inputs and outputs by name, often by one name."""
    name = rng.choice(NAMES)
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if rng.random() < 0.6:
                dim.dim_param = name if rng.random() < 0.7 else rng.choice(NAMES)


def wrong_dim(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    infos = [*model.graph.output, *rng.choice(([], list(model.graph.input)))]
    dims = shapes(rng, infos)
    if dims:
        rng.choice(dims).dim_value = rng.choice((-1, -5, 0, 1, 2, 3, 7))


def wrong_rank(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    dims = shapes(rng, [*model.graph.output, *rng.choice(([], list(model.graph.input)))])
    if dims and rng.random() < 0.5:
        del dims[rng.randrange(len(dims)) :]
    elif dims:
        dims.add(dim_value=rng.choice((1, 2)))


def scalars(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """An input is declared a scalar, or a scalar is fed as [1]."""
    info = rng.choice(model.graph.input or [ValueInfoProto()])
    if info.name in feeds and feeds[info.name].ndim == 0:
        feeds[info.name] = feeds[info.name].reshape(rng.choice(((1,), (1, 1))))
    else:
        del info.type.tensor_type.shape.dim[:]


def unsaid(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """Shapes, or the types of outputs, are not declared."""
    for info in (*model.graph.input, *model.graph.output):
        if rng.random() < 0.5 and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for info in model.graph.output:
        if rng.random() < 0.3:
            info.ClearField("type")


def other_elements(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    info = rng.choice([*model.graph.output, *model.graph.input])
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.elem_type = rng.choice((1, 7, 11, 9))


def inner_types(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """What is said of values between, or of the initializers."""
    names = [name for node in model.graph.node for name in node.output if name]
    for name in rng.sample(names, min(2, len(names))):
        shape = rng.choice((None, [], [3], ["N", 2], [1, 2, 3]))
        info = helper.make_tensor_value_info(name, rng.choice((1, 1, 1, 7)), shape)
        model.graph.value_info.append(info)


def branch(rng: random.Random, model: ModelProto, feeds: Feeds) -> None:
    """The nodes become a branch; the other one has operands that do not fit."""
    graph = model.graph
    if not graph.output or any(not o.type.HasField("tensor_type") for o in graph.output):
        return
    inner = [ValueInfoProto.FromString(o.SerializeToString()) for o in graph.output]
    for info in inner:
        info.type.tensor_type.ClearField("shape")
    taken = helper.make_graph(list(graph.node), "taken", [], inner)
    other = _misfit(rng, [i.type.tensor_type.elem_type for i in inner])
    swapped = rng.random() < 0.5
    then, orelse = (other, taken) if swapped else (taken, other)
    names = [o.name + "_chosen" for o in graph.output]
    node = helper.make_node("If", ["chosen"], names, then_branch=then, else_branch=orelse)
    del graph.node[:]
    del graph.value_info[:]
    graph.node.append(node)
    for info, name in zip(graph.output, names):
        info.name = name
    graph.input.append(helper.make_tensor_value_info("chosen", TensorProto.BOOL, []))
    for name in ("left", "right"):
        graph.input.append(helper.make_tensor_value_info(name, 1, [name + "1", name + "2"]))
    feeds["chosen"] = np.array(swapped if rng.random() < 0.15 else not swapped)
    feeds["left"] = feeds["right"] = np.ones((2, 3), np.float32)


def _misfit(rng: random.Random, elements: list[int]) -> Any:
    """A branch that fails unless left and right happen to fit."""
    operator = rng.choice(("MatMul", "Add", "Concat", "Gemm"))
    right = "right" if operator in ("MatMul", "Gemm") else "turned"
    nodes = [helper.make_node("Flatten", ["right"], ["turned"], axis=2)]
    attributes = {"axis": 1} if operator == "Concat" else {}
    nodes.append(helper.make_node(operator, ["left", right], ["product"], **attributes))
    infos = []
    for number, element in enumerate(elements):
        name = f"misfit{number}"
        nodes.append(helper.make_node("Cast", ["product"], [name], to=element))
        infos.append(helper.make_tensor_value_info(name, element, None))
    return helper.make_graph(nodes, "misfit", [], infos)


EDITS = (
    name_dims, name_dims, wrong_dim, wrong_rank, scalars, unsaid, other_elements, inner_types,
    branch, branch,
)  # fmt: skip

# ---------------------------------------------------------------- examining


def make(seed: int) -> tuple[str, ModelProto, Feeds] | None:
    """What was edited and how, the model, and inputs; None where the original does not run."""
    rng = random.Random(seed)
    number = rng.randrange(len(originals()))
    found = original(number)
    if found is None:
        return None
    model, feeds = ModelProto.FromString(found[0].SerializeToString()), dict(found[1])
    edits = rng.sample(EDITS, rng.choice((1, 1, 2)))
    for edit in edits:
        edit(rng, model, feeds)
    label = f"{seed} [{originals()[number].name} {' '.join(e.__name__ for e in edits)}]"
    return label, model, feeds


def examine(seed: int, tell: bool = False) -> list[str]:
    """Findings of one seed, a line each."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = make(seed)
        if made is None:
            return []
        label, model, feeds = made
        try:
            wanted = runtime(model, feeds)
        except Refused as refusal:
            if tell:
                print("ONNX Runtime:", refusal)
            wanted = None
        return [
            f"{label}: {run.__name__}: {told}"
            for run in (compiled, interpreted)
            if (told := _difference(run, model, feeds, wanted))
        ]


def _difference(run: Callable, model: ModelProto, feeds: Feeds, wanted: Any) -> str | None:
    """What is wrong with what graphc makes of a model."""
    try:
        results = run(model, feeds)
        if wanted is not None:
            compare(list(results), wanted)
    except Exception as error:
        if wanted is None and isinstance(error, GraphcError):
            return None if not isinstance(error, InternalError) else str(error)
        text = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}: {text} ({place(error)})"
    return None


def examiner(tell: bool) -> Callable[[int], list[str]]:
    return lambda seed: examine(seed, tell)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_bounds(parser)
    parser.add_argument("--print", action="store_true", help="print each model and its error")
    args = parser.parse_args()
    worker = Worker(examiner, args.print)
    return worker.work(args, show)


def show(seed: int) -> None:
    import onnx

    made = make(seed)
    if made is None:
        print("the original does not run")
        return
    label, model, feeds = made
    print(label)
    print(onnx.printer.to_text(model))
    print({name: (array.shape, array.dtype.name) for name, array in feeds.items()})


if __name__ == "__main__":
    sys.exit(main())
