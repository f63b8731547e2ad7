"""Parts of panels that the first cache holds, for processors whose tiles are low."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from differential import TOLERANCE, assert_same, build, interpret_program, native
from test_sizes import opened

from graphc.backends.llvm_cpu.machine import machine_of
from graphc.backends.llvm_cpu.target import cross_target
from graphc.driver import optimise, program_for
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Sym
from graphc.ir.graph import clone_graph
from graphc.ir.instructions import LINE, PREFETCH
from graphc.ir.interp import interpret
from graphc.ir.kernel import Buffer, For, Intrin, Let, Store, walk_stmts
from graphc.ir.kernel_interp import run_kernel
from graphc.ir.program import at_sizes
from graphc.ir.types import TensorType
from graphc.passes.analysis.compose import computations
from graphc.passes.lower.strategies import tile_emitter
from graphc.passes.schedule.steps import Order, Tile, parse
from graphc.targets.base import option
from graphc.targets.cpu import Cpu


@dataclass(frozen=True)
class CpuLike(Cpu):
    """A CPU with the registers and caches of a processor."""

    mcpu: str = option("haswell", "the processor", type=str)
    l2_bytes: int = option(0, "its second level of cache, unless it is usual", type=int)

    @cached_property
    def machine(self):
        target = cross_target("x86_64-linux-gnu", self.mcpu)
        return machine_of(replace(target, l2_bytes=self.l2_bytes or target.l2_bytes))


def first_schedule(graph, mcpu, l2_bytes=0):
    """What register tiles propose first for the one product of a graph."""
    target = CpuLike(mcpu=mcpu, l2_bytes=l2_bytes)
    ops = [op for op in optimise(clone_graph(graph), target=target).ops if op.name != "Constant"]
    (strategy,) = [s for s in target.strategies() if getattr(s, "name", "") == "register_tiles"]
    (given,) = [x for x in map(strategy.propose, computations(ops)) if not isinstance(x, str)]
    return next(iter(given))


def product(rows, depth, columns, outer=(), is_open=False):
    """A product with constants, a bias and an activation. Its rows are so many, or at most so many
    if it is open."""
    rng = np.random.default_rng(rows + depth + columns)
    x = rng.standard_normal((*outer, rows, depth)).astype(np.float32)
    w = (rng.standard_normal((depth, columns)) / 16).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)

    def function(b, x):
        return b.Relu(b.Add(b.MatMul(x, b.constant(w)), b.constant(bias)))

    if is_open:
        return opened(function, {"x": TensorType(f32, (Sym("rows", 1, rows), depth))}), {"x": x}
    return build(function, x=x)


CASES = {
    "two heights of tiles, a part of a panel left": (67, 777, 40),
    "rows in the same places": (33, 1024, 48),
    "more rows than a cache holds": (301, 520, 17),
    "one column": (64, 600, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_products_in_blocks_of_panels(case):
    graph, arrays = product(*CASES[case])
    program = program_for(clone_graph(graph), CpuLike(mcpu="haswell"))
    expected = interpret(graph, arrays)
    assert_same(native(program, arrays), expected, TOLERANCE, "native")
    if case == "rows in the same places":
        assert_same(interpret_program(program, arrays), expected, TOLERANCE, "interpreted")
        assert any("rows of" in k.comment for k in program.kernels.values())


def test_tall_tiles_have_no_such_blocks():
    graph, _ = product(64, 777, 40)
    low, tall = (first_schedule(graph, mcpu) for mcpu in ("haswell", "icelake-server"))
    assert len(low.all(Tile, "columns")) == 2 and low.the(Order).middle == "columns"
    assert len(tall.all(Tile, "columns")) == 1
    assert parse(low.text) == low


@pytest.mark.parametrize("rows, of_rows, of_columns", [(64, 1, 1), (400, 2, 2)])
def test_deep_rows_that_no_cache_holds_pass_over_parts_of_panels(rows, of_rows, of_columns):
    """Where 2 MiB hold the rows, panels come from beyond once as it is."""
    graph, _ = product(rows, 3072, 768)
    schedule = first_schedule(graph, "icelake-server", 2 << 20)
    assert len(schedule.all(Tile, "rows")) == of_rows
    assert len(schedule.all(Tile, "columns")) == of_columns


def marks(body):
    """The statements of a body that ask for lines, as stores of 1 in the cells of `asked` that
    stand for them; what multiplies is left out."""
    for stmt in body:
        if isinstance(stmt, For):
            inner = tuple(marks(stmt.body))
            if inner:
                yield replace(stmt, body=inner)
        elif isinstance(stmt, Let) and stmt.ref.dtype is i64:
            yield stmt
        elif is_prefetch(stmt):
            place, lines = stmt.args
            for line in range(lines.value):
                cell = place.index[0] // (LINE // place.dtype.size) + line
                yield Store("asked", (cell,), Const(1.0, f32))


@pytest.mark.parametrize("rows, columns, few", [(33, 416, 1), (301, 32, 0)])
def test_parts_of_panels_are_asked_for_before_they_are_read(rows, columns, few):
    """All but the first part of the first panel; where rows are in several blocks, each asks for
    what the next one reads again."""
    depth, pieces = 600, 3
    panels, missed = np.divmod(not_asked_for(rows, depth, columns, "haswell"), depth)
    assert np.all(missed < depth // pieces) and len(np.unique(panels)) == few


@pytest.mark.suite("all")
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("rows", [40, 301])
def test_panels_are_asked_for_before_they_are_read(monkeypatch, rows, is_open):
    """All but the first, by the tiles of rows that pass over the one before."""
    monkeypatch.setattr(tile_emitter, "SMALL_PANELS", 0)
    depth, lines = 90, 2  # of a panel at a step
    missed = not_asked_for(rows, depth, 96, "icelake-server", is_open)
    assert list(missed) == list(range(depth * lines))


def not_asked_for(rows, depth, columns, mcpu, is_open=False):
    """The lines of panels that the one kernel with prefetches does not ask for."""
    graph, _ = product(rows, depth, columns, is_open=is_open)
    program = program_for(graph, CpuLike(mcpu=mcpu))
    program = at_sizes(program, [rows]) if is_open else program
    (kernel,) = [k for k in program.kernels.values() if any(map(is_prefetch, walk_stmts(k.body)))]
    lines = columns // 16 * depth  # of sixteen floats
    arrays = {b.name: np.zeros(b.shape, b.dtype.np) for b in kernel.params}
    arrays["asked"] = np.zeros(2 * lines, np.float32)
    params = *kernel.params, Buffer("asked", f32, (2 * lines,), "out")
    run_kernel(replace(kernel, params=params, body=tuple(marks(kernel.body))), arrays)
    return np.flatnonzero(arrays["asked"][:lines] == 0)


def is_prefetch(stmt):
    return isinstance(stmt, Intrin) and stmt.name == PREFETCH
