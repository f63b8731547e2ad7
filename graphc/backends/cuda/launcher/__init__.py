"""The files beside compiled kernels that launch them: from Python, and from C++."""

from graphc.backends.cuda.launcher.cpp import cpp_files
from graphc.backends.cuda.launcher.python import python_files

__all__ = ["cpp_files", "python_files"]
