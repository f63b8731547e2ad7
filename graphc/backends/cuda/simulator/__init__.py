"""Runs printed CUDA C on the host, to prove kernels without a GPU."""

from graphc.backends.cuda.hosted import SimulationError
from graphc.backends.cuda.simulator.build import simulate

__all__ = ["SimulationError", "simulate"]
