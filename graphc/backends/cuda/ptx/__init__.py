"""A machine for PTX: runs what a CUDA compiler makes of kernels, instruction by instruction."""

from graphc.backends.cuda.ptx.kernels import PtxFault, PtxKernels
from graphc.backends.cuda.ptx.run import run_ptx
from graphc.backends.cuda.ptx.text import PtxError

__all__ = ["PtxError", "PtxFault", "PtxKernels", "run_ptx"]
