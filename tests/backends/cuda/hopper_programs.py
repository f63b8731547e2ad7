"""Kernels of warp groups for tests: a graph, with a tile wherever one fits."""

from cuda_programs import graph_of

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.wgmma import GroupTile
from graphc.driver import optimise
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

HOPPER = "sm_90a"
TILE = GroupTile(64, 64, 64, 64, 32, 4)


def grouped(text: str, tile: GroupTile = TILE, precision: str = "f32") -> CudaSource:
    """The CUDA C of a graph whose contractions take a tile of warp groups, which must suit them."""
    graph = optimise(graph_of(text), target=Cuda(precision=precision))
    gpu, known = machine(HOPPER), strategies(HOPPER)
    source = emit(lower(graph, [lambda c: lower_matrix_cores(c, gpu, tile), *known]))
    assert "wgmma_" in source.text
    return source
