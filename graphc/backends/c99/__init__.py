"""Plain C99: a whole program in one file, compiled by the system's compiler. No strategies.

It exists to prove that kernels mean the same everywhere, and to read.
"""

from graphc.backends.c99.build import build
from graphc.backends.c99.emit import emit

__all__ = ["build", "emit"]
