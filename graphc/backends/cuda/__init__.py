"""CUDA: programs as CUDA C and a launch plan, and a simulator that runs them without a GPU."""

from graphc.backends.cuda.emit import CudaSource, emit

__all__ = ["CudaSource", "emit"]
