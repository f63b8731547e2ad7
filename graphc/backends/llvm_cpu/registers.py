"""Local arrays as SSA names: what a kernel keeps in registers is never written to memory.

The elements of an `Alloc(scope="reg")` are indexed by constants once loops are unrolled. So the
printer knows which one a load or a store means, and an element is whatever name was stored last;
loops that store elements carry them in phis. It is what LLVM would make of an array on the stack,
but loads, stores and addresses need not be printed, parsed and taken away again.

An array stays in memory if it is used in another way: if its elements overlap or are read before
they are written, or are stored in a branch that may not be taken. `StaysInMemory` says so while a
function is printed: what follows the array's declaration is then printed again, with the array on
the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from graphc.backends.llvm_cpu.spell import Typed
from graphc.ir.expr import Load
from graphc.ir.kernel import Body, Intrin, Store, walk_stmts


class StaysInMemory(Exception):
    """A local array cannot be kept as SSA names."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


Elements = tuple[dict[int, Typed], dict[int, tuple[int, int]]]


class Registers:
    """The elements of a local array, by the place of their first lane."""

    def __init__(self, name: str):
        self.name = name
        self.values: dict[int, Typed] = {}
        self._lanes: dict[int, tuple[int, int]] = {}  # by place: the element it belongs to

    def read(self, place: int | None, lanes: int) -> Typed:
        """The element of so many lanes at a place; None is a place that is not known."""
        value = None if place is None else self.values.get(place)
        if value is None or value.lanes != lanes:
            raise StaysInMemory(self.name)
        return value

    def write(self, place: int | None, value: Typed, width: int) -> None:
        """Stores an element that takes `width` places."""
        if place is None:
            raise StaysInMemory(self.name)
        for n in range(place, place + width):
            if self._lanes.setdefault(n, (place, width)) != (place, width):
                raise StaysInMemory(self.name)
        self.values[place] = value

    def elements(self) -> Elements:
        """What is known of the elements, for `restore`."""
        return dict(self.values), dict(self._lanes)

    def restore(self, elements: Elements) -> None:
        """Makes the elements what they were."""
        self.values, self._lanes = elements


class Carried:
    """The elements of arrays that a loop stores into, from trip to trip; made at its head."""

    def __init__(self, arrays: list[Registers], fresh: Callable[[], str]):
        self.arrays, self.fresh = arrays, fresh
        self.before = [dict(x.values) for x in arrays]
        for x in arrays:
            x.values = {at: Typed(fresh(), v.dtype, v.lanes) for at, v in x.values.items()}
        self.entered = [dict(x.values) for x in arrays]

    def at_head(self, before: str, latch: str) -> list[str]:
        """The phis of the loop's head, once its body is printed: the elements come from the block
        before it or from its last one."""
        return [
            _phi(inside[at], [(value, before), (array.values[at], latch)])
            for array, outside, inside in zip(self.arrays, self.before, self.entered)
            for at, value in outside.items()
        ]  # fmt: skip

    def at_end(self, skipped: str, latch: str) -> list[str]:
        """The phis behind a loop that may have no trips, which a block then skips. Of what the loop
        alone has stored nothing is known any more."""
        lines = []
        for array, outside in zip(self.arrays, self.before):
            ends, array.values = array.values, {}
            for at, value in outside.items():
                array.values[at] = Typed(self.fresh(), value.dtype, value.lanes)
                lines.append(_phi(array.values[at], [(value, skipped), (ends[at], latch)]))
        return lines


def _phi(name: Typed, sources: list[tuple[Typed, str]]) -> str:
    values = ", ".join(f"[ {value.text}, %{block} ]" for value, block in sources)
    return f"  {name.text} = phi {name.type} {values}"


def stored_in(bodies: Iterable[Body]) -> set[str]:
    """The names of what statements store into, or may change by an instruction."""
    names = set()
    for body in bodies:
        for stmt in walk_stmts(body):
            if isinstance(stmt, Store):
                names.add(stmt.buffer)
            elif isinstance(stmt, Intrin):
                names.update(x.source for x in stmt.args if isinstance(x, Load))
    return names
