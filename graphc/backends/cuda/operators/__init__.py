"""Collective operations of imperative operators, as GPUs implement them."""

from graphc.backends.cuda.operators.builder import GridBuilder

__all__ = ["GridBuilder"]
