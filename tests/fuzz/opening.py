"""Cases of open shape: a graph compiled once with every extent of its inputs open, run at many.

Each extent above 1 becomes a symbol, the same one wherever the extent is the same. What the program
gives at a size is compared with the interpreter there; sizes at which the model is wrong must be
refused. Contents are those of the case, repeated or cut off.

With two tiers, sizes have no bounds, so that these grow, and each is met twice: in between, an
exact program is made for it in the background.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
from generator import Case
from judging import Runner, failure

from graphc.driver import compile
from graphc.errors import GraphcError, ModelError
from graphc.ir.expr import Sym
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.passes.specialise import specialise
from graphc.runtime import recurring

SIZES = 20  # that a case is run at
TIERED = 6  # of which so many in two tiers
EXACT = 2  # of which so many, if there is no general program
SLOW_SECONDS = 240.0  # of processor time, for all of them


class Disagreement(Exception):
    """What differs, and at which sizes."""


def run_open(case: Case) -> list[Any]:
    """What a program of open shape gives for a case, after it has been right at other sizes."""
    graph = opened(case)
    model = compile(clone_graph(graph), "cpu", specialise="any", threads=1)
    for number, sizes in enumerate(choices(graph, case)):
        check_at(graph, case, model, sizes)
        if number + 1 == EXACT and not any(info.is_general for info in model.executables()):
            break
    return model.run(list(case.inputs))


def run_tiers(case: Case) -> list[Any]:
    """As `run_open`, of a model that has two tiers and grows."""
    graph = opened(case)
    unbounded = clone_graph(graph)
    sizes = {s: Sym(s.name, s.lo) for s in graph.symbols.values()}
    for param in unbounded.params:
        param.type = param.tensor.with_shape(sizes.get(d, d) for d in param.tensor.dims)
    unbounded.symbols = {s.name: s for s in sizes.values()}
    with mock.patch.multiple(recurring, GAIN=1e9, BACKGROUND=math.inf):
        model = compile(unbounded, "cpu", specialise="auto", threads=1)
        for chosen in islice(choices(graph, case), TIERED):
            check_at(graph, case, model, chosen)
            if graph.symbols:
                model._specialised.recurring.background.wait()
            check_at(graph, case, model, chosen)
        return model.run(list(case.inputs))


def check_at(graph: Graph, case: Case, model: Any, sizes: Mapping[str, int]) -> None:
    """Disagreement if a model is wrong at some sizes of an open graph."""
    inputs = [at_sizes(x, p, sizes) for x, p in zip(case.inputs, graph.params)]
    problem = wrong(graph, inputs, model)
    if problem:
        raise Disagreement(f"at {sizes}: {problem}; {model.executables()[:1]}")


def opened(case: Case) -> Graph:
    """The graph of a case with open dims, not typed."""
    graph = clone_graph(case.graph)
    lowest = int(case.seed % 5 > 0)  # a fifth may be empty
    extents = sorted({e for p in graph.params for e in p.tensor.static_shape if e > 1})
    symbols = {e: Sym(f"n{e}", lowest, max(8, 2 * e)) for e in extents}
    for param in graph.params:
        dims = param.tensor.static_shape
        if not is_shape(param):
            param.type = param.tensor.with_shape(symbols.get(e, e) for e in dims)
    for op in graph.ops:
        if op.name != "Constant":
            for value in op.outputs:
                value.type = None
    graph.output_types = [None] * len(graph.results)
    kept = {d for p in graph.params for d in p.tensor.dims}
    graph.symbols = {s.name: s for s in symbols.values() if s in kept}
    return graph


def is_shape(param: Value) -> bool:
    """Whether a parameter was a constant, on whose length a rank may depend."""
    return param.name.startswith("known")


def choices(graph: Graph, case: Case) -> Iterator[dict[str, int]]:
    """Sizes to run at: those of the case, the corners, and random ones."""
    symbols = list(graph.symbols.values())
    yield {s.name: int(s.name[1:]) for s in symbols}
    yield {s.name: s.lo for s in symbols}
    yield {s.name: s.hi or 0 for s in symbols}
    rng = np.random.default_rng(case.seed)
    for _ in range(SIZES - 3):
        yield {s.name: int(rng.integers(s.lo, (s.hi or 0) + 1)) for s in symbols}


def at_sizes(contents: np.ndarray, param: Value, sizes: Mapping[str, int]) -> np.ndarray:
    """Contents of an input at some sizes."""
    shape = [sizes[d.name] if isinstance(d, Sym) else d for d in param.tensor.dims]
    return np.resize(contents, shape).astype(contents.dtype)


def wrong(graph: Graph, inputs: list[np.ndarray], model: Any) -> str | None:
    """What is wrong with a run, or None."""
    shapes = {p.name: x.shape for p, x in zip(graph.params, inputs)}
    contents = {p.name: x for p, x in zip(graph.params, inputs) if is_shape(p)}
    try:
        static = specialise(graph, shapes, contents)
        return failure(Case(static, inputs, 0), Runner(lambda _: model.run(inputs)))
    except ModelError as error:
        try:
            model.run(inputs)
        except GraphcError:
            return None
        return f"runs, but {error}"
