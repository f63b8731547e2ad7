"""Random graphs through the whole pipeline, on machines of every vector width."""

import pytest
from differential import MACHINES, build, check
from random_graphs import random_graph

WIDTHS = list(MACHINES)


@pytest.mark.parametrize("seed", range(60))
def test_native(seed):
    """Seven layers; one width each, so that all of them get their share."""
    function, inputs = random_graph(seed, layers=7)
    graph, arrays = build(function, **inputs)
    check(graph, arrays, [WIDTHS[seed % 4]], interpreted=())


@pytest.mark.parametrize("seed", range(100, 120))
def test_kernel_by_kernel(seed):
    """Four layers, also by the interpreter of kernels, which sees every access."""
    function, inputs = random_graph(seed, layers=4)
    graph, arrays = build(function, **inputs)
    width = WIDTHS[seed % 4]
    check(graph, arrays, [width], interpreted=[width])


@pytest.mark.parametrize("seed", range(200, 212))
def test_large(seed):
    """Sizes at which blocks, panels and row buffers are filled."""
    function, inputs = random_graph(seed, layers=4, largest=100_000)
    graph, arrays = build(function, **inputs)
    check(graph, arrays, [WIDTHS[seed % 4]], interpreted=())
