"""The names visible in one region, and how regions capture values from outside.

A name found in an enclosing scope becomes an extra parameter of the region; the op that owns the
region gets the outer value as an operand. Constants are repeated inside instead (the array is
shared), so that a body's shapes can be worked out on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from graphc.errors import ModelError
from graphc.ir.graph import Region, Value, constant_op
from graphc.records import dataclass

MAX_NESTING = 64  # of sub-graphs and function calls together


class StructureError(ModelError):
    """Names or nesting are wrong, which no model may have, not even where it is never run."""


@dataclass
class Context:
    """What the nodes of one model or function body refer to besides values."""

    versions: dict[str, int]
    attributes: dict[str, Any] | None = None  # of the function call; None outside functions
    call: str = ""  # name of the node that calls the function, put before the names in its body
    functions: tuple[str, ...] = ()  # the functions being expanded, outermost first

    def qualified(self, name: str) -> str:
        """The name of a value or node of this body in the graph."""
        return f"{self.call}/{name}" if self.call and name else name


class Scope:
    """Names to values for one region. `captures` are the parameters added for outer values.

    A function body has a scope without outer names (`outer` None) in its caller's region.
    """

    def __init__(
        self, region: Region, context: Context, outer: Scope | None = None, depth: int = 0
    ):
        self.region, self.context, self.outer = region, context, outer
        self.values: dict[str, Value | None] = {}
        self.captures: dict[str, Value] = {}
        self.later: Collection[str] = ()  # names that nodes still to come define
        self.depth = depth
        if depth > MAX_NESTING:
            raise StructureError(
                f"sub-graphs and functions are nested more than {MAX_NESTING} deep"
            )

    def inner(self, region: Region) -> Scope:
        """The scope of a sub-graph."""
        return Scope(region, self.context, self, self.depth + 1)

    def find(self, name: str) -> Value | None:
        """The value with this name, captured from an enclosing scope where necessary; None if it
        is an operand that the call of a function omits."""
        if name not in self.values:
            self.values[name] = self._capture(name)
        return self.values[name]

    def require(self, name: str) -> Value:
        """As `find`, for a value that cannot be omitted."""
        value = self.find(name)
        if value is None:
            raise StructureError(f"{name!r} is omitted by the caller, but required")
        return value

    def _capture(self, name: str) -> Value | None:
        if name in self.later:
            raise StructureError(f"{name!r} is used before it is defined (a cycle)")
        if self.outer is None:
            raise StructureError(f"{name!r} is used but never defined")
        value = self.outer.find(name)
        if value is None:
            return None
        array = value.constant
        if array is not None:
            assert value.producer is not None
            return self.region.append(constant_op(array, name, value.producer.loc)).output
        self.captures[name] = self.region.add_param(value.type, name)
        return self.captures[name]

    def define(self, name: str, value: Value | None) -> None:
        """Binds a new name; ModelError if it is empty or taken."""
        if not name:
            raise StructureError("a value has no name")
        if name in self.values:
            raise StructureError(f"{name!r} is defined twice")
        self.values[name] = value


Key = TypeVar("Key", str, Value)


def share_captures(regions: Sequence[tuple[Region, dict[Key, Value]]]) -> list[Key]:
    """Gives all regions of an op the same captures, in the same order, as their last parameters.

    Each region comes with its captures: what is captured (by name, or as a value) to a parameter.
    Returns what is captured.
    """
    keys = list(dict.fromkeys(key for _, captures in regions for key in captures))
    for region, captures in regions:
        captured = set(captures.values())
        params = [p for p in region.params if p not in captured]
        for key in keys:
            name = key if isinstance(key, str) else key.name
            params.append(captures.get(key) or Value(None, name=name))
        for index, param in enumerate(params):
            param.index = index
        region.params = params
    return keys
