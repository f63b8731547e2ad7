"""Columns that change from run to run and are large are packed by blocks, a step at a time."""

import numpy as np
import pytest
from differential import L2_BYTES, build, check, floats, program_of

from graphc.passes.lower.strategies import block_panels, tile_plan, tile_rules

DEPTH = 601  # more than two steps


def large(depth: int, size: int = 4) -> int:
    """Columns that are too many for the second level of cache, and fill no whole panels."""
    return L2_BYTES // 2 // (depth * size) + 37


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def product(b, x, w):
    return b.Relu(b.MatMul(x, w))


def turned(b, x, w):
    return b.Relu(b.MatMul(x, b.Transpose(w, perm=[1, 0])))


def kernels(graph) -> int:
    return len(program_of(graph).kernels)


@pytest.mark.parametrize("rows", [130, 157])
@pytest.mark.parametrize("depth", [DEPTH, 640])
@pytest.mark.parametrize("function", [product, turned])
def test_products_with_large_columns(function, depth, rows):
    columns = large(depth)
    shape = (depth, columns) if function is product else (columns, depth)
    graph, inputs = build(function, x=floats(rng(), rows, depth), w=floats(rng(), *shape))
    check(graph, inputs, (64, 32, 16), interpreted=(), tolerance=1e-4)
    assert kernels(graph) == 1


@pytest.mark.parametrize("function", [product, turned])
def test_small_columns_and_few_rows_are_not_packed_in_blocks(function):
    for rows, columns in ((130, 64), (2, large(DEPTH))):
        shape = (DEPTH, columns) if function is product else (columns, DEPTH)
        graph, inputs = build(function, x=floats(rng(), rows, DEPTH), w=floats(rng(), *shape))
        check(graph, inputs, interpreted=(), tolerance=1e-4)


def test_products_of_doubles():
    columns = large(DEPTH, 8)
    x, w = rng().standard_normal((130, DEPTH)), rng().standard_normal((columns, DEPTH))
    graph, inputs = build(turned, x=x, w=w)
    check(graph, inputs, (64, 32), interpreted=(), tolerance=1e-12)
    assert kernels(graph) == 1


def gradient(b, x, w):
    *front, last, deep = range(x.type.rank)
    return b.Relu(b.MatMul(b.Transpose(x, perm=[*front, deep, last]), w))


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize(
    "rows, depth, columns, on_stack",
    [(5, 41, 19, 1 << 18), (31, 24, 40, 1 << 12), (8, 24, 33, 1 << 18)],
)
@pytest.mark.parametrize("function", [product, turned, gradient])
def test_each_block_packs_what_it_reads(
    monkeypatch, function, rows, depth, columns, batch, on_stack
):
    """As if caches held next to nothing, and steps were short; blocks of all rows, and of few."""
    monkeypatch.setattr(block_panels, "PART_FOR_COLUMNS", 1 << 40)
    monkeypatch.setattr(tile_plan, "MANY_ROWS", 1)
    monkeypatch.setattr(tile_plan, "PAGES", 1)
    monkeypatch.setattr(tile_rules, "PIECES", 1)
    monkeypatch.setattr(tile_rules, "FEW_PANELS", 1)
    monkeypatch.setattr(block_panels, "ON_STACK", on_stack)
    monkeypatch.setattr(block_panels, "ON_STACK_COPIED", on_stack)
    for module in (block_panels, tile_rules):
        monkeypatch.setattr(module, "STEPS", 11)
    shape = (columns, depth) if function is turned else (depth, columns)
    own = (depth, rows) if function is gradient else (rows, depth)
    graph, inputs = build(function, x=floats(rng(), *batch, *own), w=floats(rng(), *shape))
    check(graph, inputs, (64, 32, 16), interpreted=(64, 32, 16))
