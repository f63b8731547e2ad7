"""Operators through which no gradient passes, though they take and give floats, and why."""

from __future__ import annotations

from graphc.errors import UnsupportedError
from graphc.ir.graph import Op

DATA = "its result has a size that data decides, which training steps alone have"
WITHOUT = {
    "Compress": DATA,
    "Unique": DATA,
    "graphc.TreeLeaves": "decisions of trees are steps",
}


def refusal(op: Op) -> UnsupportedError:
    """The error of an op that has no derivative."""
    name = op.defn.full_name
    why = f" ({WITHOUT[name]})" if name in WITHOUT else ""
    return UnsupportedError(f"{op.where()}: {name} has no derivative{why}")
