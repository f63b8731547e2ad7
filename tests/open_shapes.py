"""Models of open shape as programs of plain loops, and what they give at sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from differential import interpret_program

import graphc
from graphc.ir.compare import compare
from graphc.ir.expr import Expr, Reduce, call, identity_of, substitute
from graphc.ir.graph import Graph
from graphc.ir.imperative.collectives import Collectives
from graphc.ir.interp import interpret
from graphc.ir.kernel import Kernel, KernelBuilder
from graphc.ir.opdef import Float, imperative
from graphc.ir.program import Program, at_sizes, true_outputs
from graphc.ir.sizes import sizes_of
from graphc.passes.analysis.computation import Computation
from graphc.passes.lower.lowered import Lowered, in_place
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds


def loops_of_any_size(part: Computation) -> Lowered:
    """A loop for each index of a computation, whatever its extent: the simplest strategy."""
    k = KernelBuilder()
    for output in part.outputs:
        with k.loops(*output.extents) as at:
            value = substitute(output.expr, dict(zip(output.index, at)))
            k.store(output.buffer, tuple(at), _reduced(k, value))
    kernel = Kernel("loops", (*part.inputs, *(o.buffer for o in part.outputs)), k.body())
    return Lowered(kernel, inplace=in_place(part))


def _reduced(k: KernelBuilder, expr: Expr) -> Expr:
    """An expression whose reductions are loops that have run before."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in done:
            if isinstance(node, Reduce):
                done[node] = _total(k, node)
            else:
                done[node] = node.rebuild([visit(child) for child in node.children])
        return done[node]

    return visit(expr)


def _total(k: KernelBuilder, node: Reduce) -> Expr:
    """A reduction, by a loop for each axis."""
    total = k.var(node.term.dtype, identity_of(node.op, node.term.dtype))
    with k.loops(*(axis.extent for axis in node.axes)) as at:
        term = _reduced(k, substitute(node.term, dict(zip(node.axes, at))))
        k.store(total, (), call(node.combine.name, total[()], term))
    return k.let(total[()].cast(node.dtype))


def run_at(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a program of open shape gives, its kernels interpreted."""
    values = sizes_of(program.sizes, program.inputs, [np.shape(x) for x in inputs])
    static = at_sizes(program, values)
    return true_outputs(static, interpret_program(static, inputs))


def agrees_on_the_cpu(graph: Graph, name: str) -> None:
    """Compares one compiled program with the interpreter, at six sizes drawn by a name."""
    model = graphc.compile(graph, specialise="any", threads=1)
    dice = random.Random(name)
    for seed in range(6):
        dims = {s.name: dice.randint(s.lo, s.hi) for s in graph.symbols.values()}
        feeds = random_feeds(pin(graph, dims=dims), seed)
        static = specialise(graph, {n: x.shape for n, x in feeds.items()})
        for found, wanted in zip(model.run(feeds), interpret(static, list(feeds.values()))):
            assert compare("output", found, wanted).within(2e-5), dims
    assert len(model.executables()) == 1 and not model.why_exact


ONE_SHAPE = "test.Longest"


@imperative("Longest", domain="test", infer=lambda x: x.type)
def longest(k: Collectives, x: Float) -> None:
    """Twice x, by a kernel that is made for one shape: it chooses by an extent."""
    (y,) = k.outputs
    factor = 2.0 if x.shape[0] > 2 else 2
    with k.loops(*x.shape) as at:
        k.store(y, at, x[at] * factor)
