"""Lowering of graphs to programs, by strategies that match structure."""

from graphc.passes.lower.program import Strategy, lower

__all__ = ["Strategy", "lower"]
