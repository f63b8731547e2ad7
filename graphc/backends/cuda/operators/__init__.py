"""How GPUs build what imperative operators do with many elements at once."""

from graphc.backends.cuda.operators.builder import GridBuilder

__all__ = ["GridBuilder"]
