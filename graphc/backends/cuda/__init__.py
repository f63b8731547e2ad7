"""CUDA: programs as CUDA C and a launch plan, which a GPU runs, or a simulator without one."""

from graphc.backends.cuda.emit import CudaSource, emit

__all__ = ["CudaSource", "emit"]
