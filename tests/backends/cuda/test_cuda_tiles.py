"""Contractions in float32: tiles in shared memory, read in vectors, without bank conflicts."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import (
    bank_conflicts,
    chosen_architectures,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.simulator.profile import profile
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction.costs import Problem, ranked
from graphc.backends.cuda.strategies.contraction.shared_tiles import TILES, Tile, lower_shared_tiles
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

GRAPHS = {
    "plain": """graph @g(%x: f32[128,68], %w: f32[68,64]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}""",
    "left transposed": """graph @g(%x: f32[68,128], %w: f32[68,64]) -> ? {
  %t = Transpose(%x)
  %y = MatMul(%t, %w)
  return %y
}""",
    "right transposed": """graph @g(%x: f32[128,68], %w: f32[64,68]) -> ? {
  %t = Transpose(%w)
  %y = MatMul(%x, %t)
  return %y
}""",
    "epilogue": """graph @g(%x: f32[3,70,44], %w: f32[44,52], %b: f32[52], %r: f32[3,70,52]) -> ? {
  %e = Exp(%x)
  %p = MatMul(%e, %w)
  %s = Add(%p, %b)
  %t = Add(%s, %r)
  %y = Relu(%t)
  return %y
}""",
}
LAID_OUT = {
    "convolution": """graph @g(%x: f32[1,12,12,16]) -> ? {
  const %w : f32[24,16,3,3] = random(seed=1)
  %n = Transpose(%x) {perm=[0,3,1,2]}
  %y = Conv(%n, %w) {pads=[1,1,1,1]}
  return %y
}""",
    "odd columns": """graph @g(%x: f32[40,36]) -> ? {
  const %w : f32[36,51] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}""",
    "odd depth": """graph @g(%x: f32[40,30]) -> ? {
  const %w : f32[51,30] = random(seed=1)
  %t = Transpose(%w)
  %y = MatMul(%x, %t)
  return %y
}""",
}
DEEP = """graph @g(%x: f32[40,600], %w: f32[600,40]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
EACH_TILE = pytest.mark.parametrize("tile", TILES, ids=str)


def tiled(text: str, tile: Tile) -> Program:
    """The program of a graph, its contraction with a tile."""
    own = [lambda c: lower_shared_tiles(c, machine(), tile), *strategies()]
    return lower(optimise(graph_of(text), target=Cuda()), own)


def source_of(text: str, tile: Tile) -> CudaSource:
    source = emit(tiled(text, tile))
    assert any(step.function.startswith("tiles") for step in source.steps)
    return source


@needs_compiler
@EACH_TILE
def test_every_tile_computes_products(tile):
    graph = graph_of("""graph @g(%x: f32[150,45], %w: f32[45,131]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}""")
    source = emit(lower(graph, [lambda c: lower_shared_tiles(c, machine(), tile)]))
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0,))(inputs)
    np.testing.assert_allclose(found, inputs[0] @ inputs[1], 1e-4, 1e-4)


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("tile", [TILES[0], TILES[-1]], ids=["large", "small"])
def test_graphs_agree_with_the_interpreter(tile, name):
    source = source_of(GRAPHS[name], tile)
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(GRAPHS[name]), inputs)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@needs_compiler
@pytest.mark.parametrize("name", LAID_OUT)
def test_constant_operands_are_laid_out_for_vectors(name):
    """Weights that are contiguous neither along the depth nor along the columns."""
    source = source_of(LAID_OUT[name], TILES[4])
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(LAID_OUT[name]), inputs)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
    (tiles,) = (x for x in profile(source, inputs) if x.steps[0].function.startswith("tiles"))
    panels = [x for site, x in tiles.sites.items() if site.array == "panels"]
    assert len(panels) == 2 and min(x.coalescing for x in panels) > 0.7
    assert all(x.bytes == 16 * 32 * x.requests for x in panels if name == "convolution")


@needs_compiler
@EACH_TILE
def test_halves_of_a_warp_read_their_factors_at_once(tile):
    """A wavefront for each half; one for the warp where a lane takes 8 bytes."""
    source = source_of(DEEP, tile)
    (tiles,) = profile(source, inputs_of(source.program), blocks=1)
    read = [x for site, x in tiles.sites.items() if re.search(r"\bslice %", site.element)]
    assert len(read) == 2 * tile.depth
    assert all(x.wavefronts == x.bytes / 32 / 8 for x in read)


@needs_compiler
@pytest.mark.parametrize("type", ["f32", "f16"])
@pytest.mark.parametrize("sizes", [(9, 17, 1), (33, 65, 31), (130, 70, 17), (8, 260, 24)], ids=str)
def test_awkward_sizes(sizes, type):
    m, n, k = sizes
    text = f"""graph @g(%x: {type}[2,{k},{m}], %w: {type}[2,{k},{n}], %b: {type}[{n}]) -> ? {{
  %t = Transpose(%x) {{perm=[0,2,1]}}
  %r = Relu(%t)
  %p = MatMul(%r, %w)
  %y = Add(%p, %b)
  return %y
}}"""
    source = emit(program_for(graph_of(text), "cuda"))
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0, 3))(inputs)
    (wanted,) = interpret(graph_of(text), inputs)
    tolerance = 1e-5 if type == "f32" else 2e-3
    np.testing.assert_allclose(found, wanted, tolerance, tolerance * np.ptp(wanted))


@needs_compiler
@EACH_TILE
@pytest.mark.parametrize("name", ["left transposed", "right transposed"])
def test_no_bank_is_asked_twice(tile, name):
    found = bank_conflicts(tiled(GRAPHS[name], tile), "tiles")
    assert {"tile_a", "tile_b"} <= set(found) and not any(found.values())


def test_epilogues_read_vectors():
    text = source_of(GRAPHS["epilogue"], TILES[0]).text
    finish = text[text.rindex("__syncthreads();") :]
    assert finish.count("load_vector(in") == 2  # the bias and what is added


def test_operands_are_read_in_vectors():
    text = emit(tiled(GRAPHS["plain"], TILES[0])).text
    assert "load_vector(in" in text and "store_vector(out" in text
    assert "] = held_b" not in text  # it is stored in vectors too


@needs_compiler
def test_vectors_that_are_not_aligned_are_caught():
    source = source_of(GRAPHS["plain"], TILES[1])
    place = source.text.index("]", source.text.index("load_vector(tile_b"))
    text = f"{source.text[:place]} + 1{source.text[place:]}"
    with pytest.raises(SimulationError, match="vector that is not aligned"):
        simulate(replace(source, text=text))(inputs_of(source.program))


def test_tiles_grow_with_the_problem_and_shrink_with_the_gpu():
    def best(arch: str, rows: int, columns: int) -> Tile:
        return ranked(TILES, machine(arch), Problem(1, rows, columns, 1024))[0]

    assert best("sm_90", 4096, 4096).rows == best("sm_90", 4096, 4096).columns == 128
    assert best("sm_80", 16, 64).rows <= 32
    areas = [best(arch, 512, 512).rows * best(arch, 512, 512).columns for arch in
             ("sm_75", "sm_120")]  # fmt: skip
    assert areas[0] > areas[1], areas


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_tiles(arch):
    assert compile_cuda(source_of(GRAPHS["epilogue"], TILES[0]).text, arch, strict=True)
