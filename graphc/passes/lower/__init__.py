"""Lowering of graphs to programs, by strategies that match structure."""

from graphc.passes.lower.program import Conventions, Strategy, lower

__all__ = ["Conventions", "Strategy", "lower"]
