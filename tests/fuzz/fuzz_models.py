"""Fuzzing: official models made wrong must run, or be refused with an error of our own.

    python tests/fuzz/fuzz_models.py --seed 0 --minutes 10            # from this seed on
    python tests/fuzz/fuzz_models.py --seed 1234 --count 1 --print    # one case again

Each model is imported, interpreted, and compiled and run on a target. Whatever is raised must be a
ModelError or an UnsupportedError, and results must be those of the interpreter. Cases run in a
child process of limited memory, so that a crash or a hang is a finding like any other.

With --target texts they are attacked too (hostile.py), and nothing is run: what every target prints
and puts into folders must hold nothing of a name outside of comments and strings.
"""

from __future__ import annotations

import argparse
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from hostile import leaks
from mutants import Mutant, make
from worker import Worker, add_bounds

from graphc import driver
from graphc.backends import c99, cuda, micro_c
from graphc.backends.cuda.bundle import bundle_files
from graphc.backends.llvm_cpu.codegen import llvm_text
from graphc.errors import GraphcError, InternalError, ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType
from graphc.passes.specialise import pin
from graphc.runtime.feeds import open_dims, random_feeds

MEMORY = 12 << 30  # bytes of addresses
LARGEST = 1 << 22  # elements of an input or result that is still computed
RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout", "ImageDecoder")  # as they please


def feeds_of(graph: Graph, given: dict[str, Any], seed: int) -> list[Any]:
    """Contents for the inputs: the given ones where they fit."""
    fitting = {}
    rng = np.random.default_rng(seed)
    for param in graph.params:
        value, type = given.get(param.name), param.type
        if isinstance(type, TensorType) and type.is_static:
            if isinstance(value, np.ndarray) and (value.dtype, value.shape) == (
                type.dtype.np,
                type.static_shape,
            ):
                fitting[param.name] = value
            elif type.dtype.is_integer and type.dtype.np.itemsize > 1:
                low = 0 if type.dtype.min == 0 else -3
                drawn = rng.integers(low, 5, type.static_shape)
                fitting[param.name] = drawn.astype(type.dtype.np)
            elif type.dtype.kind == "string":
                fitting[param.name] = np.full(type.static_shape, "ab", object)
        elif value is not None:
            fitting[param.name] = value
    return list(random_feeds(graph, seed, fitting).values())


def is_large(graph: Graph) -> bool:
    types = [p.type for p in graph.params]
    sizes = [np.prod(t.static_shape) for t in types if isinstance(t, TensorType) and t.is_static]
    return any(size > LARGEST for size in sizes)


def attempt(mutant: Mutant, seed: int, target: str) -> None:
    """Imports, interprets, compiles and runs a model; raises what goes wrong."""
    graph = import_onnx(mutant.data)
    graph = pin(graph, dims=open_dims(graph))
    if is_large(graph):
        return
    inputs = feeds_of(graph, mutant.inputs, seed)
    text = str(graph)
    expected = interpret(graph, inputs)
    found = driver.compile(graph, target, threads=1).run(list(inputs))
    if not any(name in text for name in RANDOM):
        compare(found, expected)


def print_all(mutant: Mutant) -> None:
    """Everything that targets print of a model; AssertionError if a name gets out. The last of
    their refusals is raised."""
    graph = import_onnx(mutant.data)
    graph = pin(graph, dims=open_dims(graph))
    refusal = None
    for printed in (print_native, print_plain, print_firmware, print_cuda):
        try:
            for name, text in printed(graph).items():
                found = leaks(text) if name.endswith((".c", ".h", ".cu", ".cpp")) else []
                assert not found, f"{name}: {found[0][:200]!r}"
        except (ModelError, UnsupportedError) as error:
            refusal = error
    if refusal is not None:
        raise refusal


def print_native(graph: Graph) -> dict[str, str]:
    return {"model.ll": llvm_text(driver.program_for(driver.typed(graph)))}


def print_plain(graph: Graph) -> dict[str, str]:
    return {"model.c": c99.emit(driver.program_for(driver.typed(graph), "plain"))}


def print_firmware(graph: Graph) -> dict[str, str]:
    files = micro_c.bundle(driver.program_for(driver.typed(graph), "c"))
    return {name: text for name, text in files.items() if isinstance(text, str)}


def print_cuda(graph: Graph) -> dict[str, str]:
    files = bundle_files(cuda.emit(driver.program_for(driver.typed(graph), "cuda")))
    return {name: files[name].decode() for name in files if name != "weights.bin"}


def compare(found: Any, expected: Any) -> None:
    """AssertionError if results differ from the interpreter's."""
    if isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), "other results"
        for pair in zip(found, expected):
            compare(*pair)
    elif isinstance(expected, np.ndarray):
        assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
        assert found.dtype == expected.dtype, f"{found.dtype}, expected {expected.dtype}"
        if expected.dtype.kind == "f":
            low = expected.dtype.itemsize < 4
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(found, expected, 2e-2 if low else 1e-3, 1e-4)
    else:
        assert found is None or expected is not None


def examine(seed: int, target: str = "cpu", tell: bool = False) -> list[str]:
    """Findings of one seed, a line each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mutant = make(seed, attack=target == "texts")
        label = f"{target} {seed} [{mutant.name} {' '.join(mutant.edits)}]"
        try:
            with np.errstate(all="ignore"):
                if target == "texts":
                    print_all(mutant)
                else:
                    attempt(mutant, seed, target)
        except MemoryError:
            return [f"{label}: MemoryError"] if target == "texts" else []
        except Exception as error:
            wanted = isinstance(error, GraphcError) and not isinstance(error, InternalError)
            if tell:
                traceback.print_exc()
            if wanted and str(error).strip():
                return []
            text = " ".join(str(error).split())[:300]
            return [f"{label}: {type(error).__name__}: {text} ({place(error)})"]
    return []


def place(error: BaseException) -> str:
    """Where an error was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def examiner(target: str, tell: bool) -> Callable[[int], list[str]]:
    """Examines seeds with little memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return lambda seed: examine(seed, target, tell)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_bounds(parser)
    parser.add_argument("--target", default="cpu", help="cpu, c, or texts")
    parser.add_argument("--print", action="store_true", help="print each model and its error")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    worker = Worker(examiner, args.target, args.print)
    return worker.work(args, lambda seed: show(make(seed, attack=args.target == "texts")))


def show(mutant: Mutant) -> None:
    import onnx

    print(mutant.name, *mutant.edits)
    try:
        print(onnx.printer.to_text(onnx.load_from_string(mutant.data)))
    except Exception as error:  # the file may be anything
        print(f"no text: {error}")


if __name__ == "__main__":
    sys.exit(main())
