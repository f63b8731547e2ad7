"""Compares a graph's compiled forms with the interpreter of graphs, which gives it its meaning.

`check` runs a graph through the whole pipeline for machines of several vector widths, once natively
and, where small enough, once kernel by kernel in the interpreter of kernels, which finds every
access out of range and every element read before it was written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphc.backends.llvm_cpu.codegen import compile_program
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.driver import program_for
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.checks import judge
from graphc.ir.compare import compare
from graphc.ir.dtypes import i64
from graphc.ir.expr import Const, Expr
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.imperative.lowering import corner
from graphc.ir.interp import interpret
from graphc.ir.kernel import with_sizes
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import Copy, Count, If, Program, Slot, While
from graphc.ir.types import TensorType, at
from graphc.targets.base import option
from graphc.targets.cpu import Cpu

MACHINES = {64: 32, 32: 16, 16: 16, 0: 16}  # vector bytes: vector registers
L2_BYTES = 512 << 10
TOLERANCE = 2e-5


@dataclass(frozen=True)
class CpuOf(Cpu):
    """This machine's CPU, with vectors of so many bytes, and the same caches on every machine."""

    vector_bytes: int = option(64, "of a register", type=int)

    @cached_property
    def machine(self):
        return replace(
            host_machine(), vector_bytes=self.vector_bytes, registers=MACHINES[self.vector_bytes],
            caches=(0, L2_BYTES),
        )  # fmt: skip


POISON = 0xFF  # bytes of a NaN


def build(function: Callable, **inputs: np.ndarray) -> tuple[Graph, list[np.ndarray]]:
    """The graph of `function(builder, *values)`, with these inputs, and their contents."""
    types = {n: TensorType(dtypes.of(a.dtype), a.shape) for n, a in inputs.items()}
    graph = new_graph("main", **types)
    results = function(Builder(graph), *graph.params)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    graph.set_results(results)
    graph.output_names = [f"y{n}" for n in range(len(results))]
    graph.phase = "typed"
    return graph, list(inputs.values())


def program_of(graph: Graph, vector_bytes: int = 64, checks: str = "off") -> Program:
    """The program of a copy of a typed graph, for a machine with such vectors."""
    return program_for(clone_graph(graph), CpuOf(vector_bytes=vector_bytes), checks=checks)


def check(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    machines: Sequence[int] = (64, 0),
    interpreted: Sequence[int] = (64,),
    tolerance: float = TOLERANCE,
) -> Program:
    """Asserts that programs for all machines agree with the graph; gives the last program made."""
    expected = interpret(graph, inputs)
    program = None
    for vector_bytes in machines:
        program = program_of(graph, vector_bytes, checks="on")
        found = trimmed(program, native(program, inputs))
        assert_same(found, expected, tolerance, f"native {vector_bytes}")
        if vector_bytes in interpreted:
            found = trimmed(program, interpret_program(program, inputs))
            assert_same(found, expected, tolerance, f"kernel interpreter {vector_bytes}")
    assert program is not None
    return program


def native(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the machine code of a program gives."""
    return NativeModel(compile_program(program), 1)(inputs)


def trimmed(program: Program, found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a program, those whose size depends on data at their true sizes."""
    results, sizes = [], {position for position, _ in program.true_sizes.values()}
    for n, array in enumerate(found[: len(found) - len(sizes)]):
        if n in program.true_sizes:
            position, cell = program.true_sizes[n]
            array = corner(array, tuple(found[position][cell : cell + array.ndim]))
        results.append(array)
    return results


def assert_same(found, expected, tolerance: float, what: str) -> None:
    for n, (a, b) in enumerate(zip(found, expected, strict=True)):
        agreement = compare(f"output {n}", a, b)
        assert agreement.within(tolerance), f"{what}: {agreement}"


def interpret_program(program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs a program with the interpreter of kernels, in an arena that starts out poisoned. Sizes
    may be such that data decides."""
    spaces = {
        "sizes": {},
        "input": [np.ascontiguousarray(x) for x in inputs],
        "output": [np.empty(t.most, t.dtype.np) for _, t in program.outputs],
        "const": [np.ascontiguousarray(c) for c in program.constants],
        "arena": [np.full(program.arena_bytes, POISON, np.uint8)],
    }
    _run_steps(program, program.steps, spaces)
    shapes = [[at(d, spaces["sizes"]) for d in t.dims] for _, t in program.outputs]
    outputs = [
        whole[: math.prod(shape)].reshape(shape) for whole, shape in zip(spaces["output"], shapes)
    ]
    if program.checks:
        judge(program.checks, outputs.pop())
    return outputs


def _run_steps(program: Program, steps: Sequence, spaces: dict, trip: int = 0) -> None:
    """Runs steps; directly in a loop, in its trip of this number."""

    known = spaces["sizes"]

    def piece(slot: Slot, stride: int | Expr = 0) -> np.ndarray:
        raw = spaces[slot.space][slot.index].reshape(-1).view(np.uint8)
        start = slot.offset + trip * at(stride, known)
        size = at(slot.elements, known) * slot.dtype.size
        found = raw[start : start + size]
        assert start >= 0 and found.size == size, "leaves its space"
        return found

    def element(slot: Slot) -> int:
        return piece(slot).view(slot.dtype.np)[0]

    for step in steps:
        if isinstance(step, Copy):
            piece(step.target, step.target_stride)[:] = piece(step.source, step.source_stride)
        elif isinstance(step, If):
            assert piece(step.condition)[0] in (0, 1), "a condition that was not written"
            _run_steps(program, step.then if element(step.condition) else step.orelse, spaces)
        elif isinstance(step, While):
            _run_loop(program, step, spaces, element)
        elif isinstance(step, Count):
            known[step.size] = Const(int(element(step.slot)), i64)
        else:
            values = [at(size, known) for size in step.sizes]
            kernel = with_sizes(program.kernels[step.kernel], values)
            arrays, same = {}, {}
            for buffer, slot in zip(kernel.params, step.slots, strict=True):
                if slot not in same:
                    same[slot] = piece(slot).view(buffer.dtype.np)
                arrays[buffer.name] = same[slot].reshape(buffer.shape)  # the same memory
            run_kernel(kernel, arrays)


def _run_loop(program: Program, step: While, spaces: dict, element: Callable) -> None:
    limit = element(step.trips) if isinstance(step.trips, Slot) else step.trips
    if isinstance(limit, Expr):
        limit = at(limit, spaces["sizes"])
    trip = 0
    while (limit is None or trip < limit) and (step.condition is None or element(step.condition)):
        if step.counter is not None:
            counter, (start, size) = step.counter, (step.counter.offset, step.counter.dtype.size)
            raw = spaces[counter.space][counter.index].reshape(-1).view(np.uint8)
            raw[start : start + size].view(np.int64)[0] = trip
        _run_steps(program, step.body, spaces, trip)
        trip += 1


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal float32 numbers."""
    return rng.standard_normal(shape).astype(np.float32)
