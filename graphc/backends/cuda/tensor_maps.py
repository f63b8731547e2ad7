"""Maps of tensors that kernels copy boxes of (TMA): what they say, read off the copies of a kernel.

A kernel takes one map for each tensor and box, after its pointers and sizes. The launch plan says
what is mapped; the driver makes maps of it, for the addresses of a run (runtime/tensor_maps.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from graphc.backends.cuda.bulk_instructions import BOXES, MEET
from graphc.errors import InternalError
from graphc.ir.expr import Const, Load
from graphc.ir.kernel import Intrin, Kernel, walk_stmts
from graphc.ir.simplify import simplify

SWIZZLE = 128  # bytes of a line


@dataclass(frozen=True)
class TensorMap:
    """A tensor within an argument of a kernel: where it starts, in bytes; bytes of an element;
    extents, innermost first; bytes from one element to the next of every dimension but the first;
    and extents of a box."""

    argument: int
    offset: int
    element: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def entry(self) -> dict[str, Any]:
        """As the launch plan has it."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def map_of(kernel: Kernel, stmt: Intrin) -> TensorMap:
    """The map that a copy of a box reads."""
    rank = BOXES[stmt.name]
    source = stmt.args[2]
    numbers = [_number(x) for x in stmt.args[3 + rank : 4 * rank + 2]]
    assert isinstance(source, Load)
    names = [b.name for b in kernel.params]
    size = source.dtype.size
    (start,) = source.index
    return TensorMap(
        names.index(source.source), _number(start) * size, size, tuple(numbers[:rank]),
        tuple(n * size for n in numbers[rank : 2 * rank - 1]), tuple(numbers[2 * rank - 1 :]),
    )  # fmt: skip


def maps_of(kernel: Kernel) -> tuple[TensorMap, ...]:
    """The maps that a kernel reads, each once, in the order of its text."""
    copies = (s for s in walk_stmts(kernel.body) if isinstance(s, Intrin) and s.name in BOXES)
    return tuple(dict.fromkeys(map_of(kernel, copy) for copy in copies))


def cluster_of(kernel: Kernel) -> int:
    """Blocks that run together: as many as meet."""
    meetings = (s for s in walk_stmts(kernel.body) if isinstance(s, Intrin) and s.name == MEET)
    return max((_number(s.args[0]) for s in meetings), default=1)


def _number(expr: Any) -> int:
    number = simplify(expr)
    if not isinstance(number, Const):
        raise InternalError(f"the map of a tensor must be of numbers, found {expr}")
    return int(number.value)
