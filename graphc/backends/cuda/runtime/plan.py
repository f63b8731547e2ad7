"""A launch plan as it is at some sizes.

The numbers of a plan of open shape (extents, grids, what kernels are given) are expressions: an
integer, the name of a size, or a list of an operation and its operands. A size is read from a
dimension of an input; a count is one that data decides, which is known in the course of a run
(steps.py). Memory is that of the largest sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .arrays import element_type
from .driver import Driver, DriverError

Number = Any  # an integer, a name, or a list
Sizes = tuple[int, ...]

OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "min": min,
    "max": max,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "select": lambda condition, a, b: a if condition else b,
}


def value(number: Number, sizes: Mapping[str, int]) -> int:
    """A number of a plan at some sizes."""
    if isinstance(number, str):
        return sizes[number]
    if isinstance(number, list):
        operation, *operands = number
        return OPERATIONS[operation](*(value(x, sizes) for x in operands))
    return int(number)


class Spec:
    """An input or output of a plan, at some sizes."""

    def __init__(self, entry: Mapping[str, Any], sizes: Mapping[str, int]):
        self.name: str = entry["name"]
        self.shape = tuple([value(dim, sizes) for dim in entry["shape"]])
        self.dtype = element_type(entry["numpy"])
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def check(self, given: Any) -> None:
        """ValueError unless a value has this type."""
        if given.dtype != self.dtype or tuple(given.shape) != self.shape:
            shown = f"{given.dtype.name}{list(given.shape)}"
            wanted = f"{self.dtype.name}{list(self.shape)}"
            raise ValueError(f"input {self.name} takes {wanted}, found {shown}")


@dataclass(frozen=True)
class Launch:
    """One launch of the plan, its kernel loaded; `sizes` are given after the arguments."""

    function: object
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[tuple[str, int, int], ...]  # space, number, offset in bytes
    stream: int
    waits: tuple[int, ...]  # launches on other streams that must be done
    awaited: bool  # whether another stream waits for it
    where: str
    sizes: tuple[int, ...] = ()
    maps: tuple[Mapping[str, Any], ...] = ()  # of tensors in arguments, given last


@dataclass(frozen=True)
class AtSizes:
    """The inputs, outputs and launches of a plan at some sizes, where counts are the largest."""

    inputs: list[Spec]
    outputs: list[Spec]
    launches: list[Launch]


class OpenPlan:
    """A plan at any of its sizes; one of fixed shape has none. `most` are the largest."""

    def __init__(self, plan: Mapping[str, Any], driver: Driver, module: object):
        self.plan = plan
        self.most: Sizes = tuple(size["high"] for size in plan["sizes"])
        self.counts = {count["name"]: count["high"] for count in plan.get("counts", ())}
        self._loaded = [_loaded(driver, module, entry) for entry in plan["launches"]]

    def sizes_of(self, shapes: Sequence[Sequence[int]]) -> Sizes:
        """The sizes that inputs of these shapes have; ValueError if one is out of bounds."""
        sizes = []
        for size in self.plan["sizes"]:
            shape = tuple(shapes[size["input"]])
            if len(shape) <= size["axis"]:
                name, rank = self.plan["inputs"][size["input"]]["name"], size["axis"] + 1
                raise ValueError(f"input {name} has {rank} dimensions or more, found {list(shape)}")
            extent = (shape[size["axis"]] - size["offset"]) // size["factor"]
            if not size["low"] <= extent <= size["high"]:
                bounds = f"{size['low']}..{size['high']}"
                raise ValueError(f"dimension {size['name']} = {extent} is not in {bounds}")
            sizes.append(int(extent))
        return tuple(sizes)

    def known(self, sizes: Sizes) -> dict[str, int]:
        """The sizes of inputs by name."""
        return {size["name"]: extent for size, extent in zip(self.plan["sizes"], sizes)}

    def at(self, sizes: Sizes) -> AtSizes:
        """The plan at these sizes."""
        known = self.known(sizes) | self.counts
        launches = [self.launch(number, known) for number in range(len(self._loaded))]
        inputs = [Spec(entry, known) for entry in self.plan["inputs"]]
        return AtSizes(inputs, self.outputs(known), launches)

    def launch(self, number: int, known: Mapping[str, int]) -> Launch:
        """A launch where sizes are known."""
        entry = self.plan["launches"][number]
        return replace(
            self._loaded[number], grid=(value(entry["grid"], known), 1, 1),
            sizes=tuple([value(x, known) for x in entry["sizes"]]),
        )  # fmt: skip

    def outputs(self, known: Mapping[str, int]) -> list[Spec]:
        """The outputs where all sizes are known."""
        return [Spec(entry, known) for entry in self.plan["outputs"]]


def _loaded(driver: Driver, module: object, entry: Mapping[str, Any]) -> Launch:
    """A launch of the plan, with its function; DriverError names it."""
    name, shared = entry["function"], entry["shared"]
    nodes = ", ".join(entry["nodes"])
    where = f"kernel {name} (of {nodes})" if nodes else f"kernel {name}"
    arguments = tuple((a["space"], a["index"], a["offset"]) for a in entry["arguments"])
    try:
        function = driver.function(module, name, shared)
    except DriverError as error:
        asks = f", which asks for {shared} bytes of shared memory" if shared else ""
        raise DriverError(f"{where}{asks}: {error}") from error
    return Launch(
        function, (0, 1, 1), (entry["block"], 1, 1), shared, arguments,
        entry["stream"], tuple(entry["waits"]), entry["awaited"], where,
        maps=tuple(entry["maps"]),
    )  # fmt: skip
