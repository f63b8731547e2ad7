"""Groups of threads of a block that share the depth of a contraction."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import graph_of, inputs_of, needs_compiler

from graphc.backends.cuda import emit
from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.simulator.profile import profile
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction.costs import Problem, ranked
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.shared_tiles import TILES, Tile, lower_shared_tiles
from graphc.backends.cuda.strategies.contraction.warp_mma import SHARED_SIDES, WARP_TILES, WarpTile
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

GRAPHS = {
    "epilogue": """graph @g(%x: f32[50,700]) -> ? {
  const %w : f32[700,36] = random(seed=1)
  const %b : f32[36] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}""",
    "odd": """graph @g(%x: f32[33,203], %w: f32[203,37]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}""",
    "convolution": """graph @g(%x: f32[1,48,6,6]) -> ? {
  const %w : f32[40,48,3,3] = random(seed=1)
  %a = Conv(%x, %w) {pads=[1,1,1,1]}
  %y = Relu(%a)
  return %y
}""",
    "batch": """graph @g(%x: f32[2,20,500], %w: f32[2,500,24]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}""",
}
SHARED = [
    *(tile for tile in TILES if tile.k_groups > 1),
    *(WarpTile(*sides, 32, 4, 2) for sides in SHARED_SIDES),
]


def source_of(text: str, tile: Tile | WarpTile) -> CudaSource:
    """The kernels of a graph, its contraction with a tile; with factors of f16 on matrix cores."""
    is_plain = isinstance(tile, Tile)
    own = lower_shared_tiles if is_plain else lower_matrix_cores
    graph = optimise(graph_of(text), target=Cuda(precision="f32" if is_plain else "f16"))
    return emit(lower(graph, [lambda c: own(c, machine("sm_90"), tile), *strategies("sm_90")]))


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("tile", [
    Tile(16, 32, 16, 4, 4, 4), Tile(32, 32, 16, 4, 4, 8), Tile(32, 32, 8, 2, 2, 3),
    WarpTile(16, 32, 16, 16, 32, 3, 4), WarpTile(32, 64, 32, 16, 32, 3, 2),
], ids=str)  # fmt: skip
def test_partial_sums_add_up(tile, name):
    source = source_of(GRAPHS[name], tile)
    inputs = inputs_of(source.program)
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(GRAPHS[name]), inputs)
    error = np.abs(found - wanted).max() / np.ptp(wanted)
    assert error < (1e-5 if isinstance(tile, Tile) else 2e-3)


@needs_compiler
@pytest.mark.parametrize("tile", SHARED, ids=str)
def test_every_tile(tile):
    source = source_of(GRAPHS["epilogue"].replace("700", "1400"), tile)
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0,))(inputs)
    (wanted,) = interpret(graph_of(GRAPHS["epilogue"].replace("700", "1400")), inputs)
    assert np.abs(found - wanted).max() / np.ptp(wanted) < 2e-3


@needs_compiler
@pytest.mark.parametrize("tile", [Tile(16, 32, 16, 4, 4, 4), WarpTile(16, 32, 16, 16, 32, 3, 4)],
                         ids=["plain", "cores"])  # fmt: skip
def test_sums_are_not_read_before_they_are_there(tile):
    source = source_of(GRAPHS["odd"], tile)
    start, end = source.text.rsplit("__syncthreads();", 1)
    with pytest.raises(SimulationError, match="no barrier between|unwritten element"):
        simulate(replace(source, text=start + end), (0, 1, 2))(inputs_of(source.program))


@needs_compiler
def test_sums_are_exchanged_without_conflicts():
    source = source_of(GRAPHS["epilogue"], Tile(16, 32, 16, 4, 4, 4))
    (kernel,) = profile(source, inputs_of(source.program), blocks=1)
    found = [x for site, x in kernel.sites.items() if site.array == "partial_sums"]
    assert len(found) > 1 and all(x.conflicts == 0 for x in found)


def test_they_are_taken_where_blocks_are_few_and_sums_long():
    for tiles in (TILES, WARP_TILES):
        few, many = (
            ranked(tiles, machine("sm_90"), Problem(1, rows, 256, 2304))[0]
            for rows in (196, 100000)
        )
        assert few.k_groups > 1 and many.k_groups == 1


def test_kernels_of_float64_need_no_more_shared_memory_than_there_is():
    text = GRAPHS["odd"].replace("f32", "f64").replace("203", "2003")
    source = emit(program_for(graph_of(text), "cuda", arch="sm_75"))
    assert any(step.function.startswith("tiles") for step in source.steps)
    assert all(step.shared <= machine("sm_75").block_shared for step in source.steps)
