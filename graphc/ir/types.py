"""Types of values: tensors with a dtype, a logical shape and a layout; sequences; optionals; maps.

`TensorType.shape` is always in ONNX's logical order. How the elements lie in memory is the
`layout`: an order of the logical dimensions from outermost to innermost (None: row-major). No
operator knows about layouts; lowering maps logical indices to physical ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.records import dataclass

if TYPE_CHECKING:
    from graphc.ir.expr import Expr

Dim: TypeAlias = "int | Expr"
Shape: TypeAlias = "tuple[Dim, ...]"

MAX_ELEMENTS = 1 << 46  # more cannot be addressed by any machine
MAX_RANK = 64  # of numpy's arrays

_NAMED = {
    "NLC": (0, 2, 1),
    "NHWC": (0, 2, 3, 1),
    "NDHWC": (0, 2, 3, 4, 1),
}
_NAME_OF = {perm: name for name, perm in _NAMED.items()}


@dataclass(frozen=True)
class Layout:
    """Physical order of the logical dimensions: order[p] is the logical dim at position p."""

    order: tuple[int, ...]

    def __str__(self) -> str:
        return _NAME_OF.get(self.order) or "p" + "_".join(map(str, self.order))

    @staticmethod
    def parse(text: str) -> Layout:
        """The layout of a name (NHWC) or of an order (p0_2_3_1); ValueError if it is neither."""
        if text in _NAMED:
            return Layout(_NAMED[text])
        return Layout(tuple(int(part) for part in text[1:].split("_")))

    @staticmethod
    def channels_last(rank: int) -> Layout | None:
        """N, spatial..., C for a tensor whose logical order is N, C, spatial..."""
        return Layout((0, *range(2, rank), 1)) if rank > 2 else None

    def physical(self, logical: tuple) -> tuple:
        """Logical dims or indices in memory order."""
        return tuple(logical[d] for d in self.order)

    @property
    def inverse(self) -> tuple[int, ...]:
        """inverse[d] is the physical position of logical dim d."""
        positions = [0] * len(self.order)
        for position, dim in enumerate(self.order):
            positions[dim] = position
        return tuple(positions)


def largest(dim: Dim) -> int:
    """The most that a dimension can be, within the bounds of its symbols (by interval arithmetic).
    UnsupportedError if these do not bound it."""
    if isinstance(dim, int):
        return max(dim, 0)
    from graphc.ir.expr import Sym  # most types need no expressions

    if isinstance(dim, Sym) and dim.hi is not None:
        return max(dim.hi, 0)
    from graphc.ir.simplify import bounds  # most open ones no arithmetic

    high = bounds(dim)[1]
    if high == math.inf:
        raise UnsupportedError(f"dimension {dim} has no upper bound")
    return max(int(high), 0)


def at(dim: Dim, sizes: Mapping[Any, Expr]) -> Dim:
    """A dimension with symbols replaced; an integer once none is left."""
    if isinstance(dim, int):
        return dim
    from graphc.ir.expr import Const, Sym  # most types need no expressions

    if isinstance(dim, Sym):
        value = sizes.get(dim, dim)
        if value is dim or isinstance(value, Const):
            return _constant(value)
    from graphc.ir.simplify import simplify  # most open ones no arithmetic

    return _constant(simplify(dim, sizes))


def elements_of(shape: Iterable[Dim]) -> Any:
    """The product of dimensions, in normal form."""
    return at(math.prod(shape), {})  # type: ignore[arg-type]


def check_rank(shape: Sequence, where: str = "a tensor") -> None:
    """UnsupportedError if a tensor has more dimensions than an array can have."""
    if len(shape) > MAX_RANK:
        raise UnsupportedError(f"{where}: {len(shape)} dimensions, at most {MAX_RANK} are possible")


@dataclass(frozen=True)
class TensorType:
    """A tensor. `shape` None means that the rank is not known yet (before shape inference)."""

    dtype: DType
    shape: Shape | None
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.shape is None:
            return
        shape = tuple(at(d, {}) for d in self.shape)
        check_rank(shape)
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise ModelError(f"negative dimension in shape {list(shape)}")
        if math.prod(d for d in shape if isinstance(d, int)) > MAX_ELEMENTS:
            raise ModelError(f"shape {list(shape)} has more than 2^46 elements")
        object.__setattr__(self, "shape", shape)
        if self.layout is not None and self.layout.order == tuple(range(len(shape))):
            object.__setattr__(self, "layout", None)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def dims(self) -> Shape:
        """The shape, known to be ranked."""
        if self.shape is None:
            raise ModelError("the rank of a value is not known")
        return self.shape

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; ModelError if a dimension is symbolic."""
        if not self.is_static:
            raise ModelError(f"shape of {self} is not static")
        return self.shape  # type: ignore[return-value]

    def extent(self, axis: int) -> int:
        """The extent of a dimension that has to be known; ModelError if it is symbolic."""
        dim = self.dims[axis]
        if not isinstance(dim, int):
            raise ModelError(f"dimension {axis} of {self} is not static")
        return dim

    @property
    def size(self) -> int:
        """Number of elements of a static tensor."""
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.size

    @property
    def most(self) -> int:
        """The number of elements at the largest sizes: what a decision of speed or memory goes by.
        UnsupportedError if a dimension has no upper bound."""
        return math.prod(map(largest, self.dims))

    @property
    def most_bytes(self) -> int:
        """The number of bytes at the largest sizes; as `most`."""
        return self.most * self.dtype.size

    @property
    def count(self) -> Dim:
        """The number of elements, in normal form: tensors of one count always have as many."""
        return elements_of(self.dims)

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        """The same elements in another shape, row-major."""
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape and layout, other elements."""
        return replace(self, dtype=dtype)

    def with_layout(self, layout: Layout | None) -> TensorType:
        """The same tensor stored in another order; None is row-major."""
        return replace(self, layout=layout)

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}]" + (f"@{self.layout}" if self.layout else "")


def _constant(dim: Dim) -> Dim:
    """A dimension; an integer if it is an expression without symbols."""
    from graphc.ir.expr import Const  # most types have no such dimensions

    return dim.value if isinstance(dim, Const) else dim


@dataclass(frozen=True)
class SequenceType:
    """A list of values of one type."""

    element: TensorType | SequenceType | OptionalType | MapType

    is_static = False

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True)
class OptionalType:
    """A value that may be absent."""

    element: TensorType | SequenceType

    is_static = False

    def __str__(self) -> str:
        return f"opt<{self.element}>"


@dataclass(frozen=True)
class MapType:
    """Scalars by key: a dict. Keys are integers or strings."""

    key: DType
    value: DType

    is_static = False

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


def described(name: str, type: Type | None) -> str:
    """A value in a few words: its name, and its type, if that is known."""
    return name if type is None else f"{name}: {type}"


class Map(dict):
    """A dict that knows its type, also when it is empty."""

    def __init__(self, items: Any, type: MapType):
        super().__init__(items)
        self.type = type


Type = TensorType | SequenceType | OptionalType | MapType


_PLAIN = re.compile(r"(\w+)\[((?:\w+(?:,\w+)*)?)\]", re.ASCII)


def plain_type(text: str, symbols: Mapping[str, Dim]) -> TensorType | None:
    """The type that `str` wrote, if it is a dense tensor whose dims are numbers or names of
    symbols; text/type_parser.py reads all types."""
    parts = _PLAIN.fullmatch(text)
    dtype = parts and dtypes.BY_NAME.get(parts[1])
    if not parts or not dtype:
        return None
    names = parts[2].split(",") if parts[2] else []
    dims = [int(name) if name.isdigit() else symbols.get(name) for name in names]
    return None if None in dims else TensorType(dtype, tuple(dims))  # type: ignore[arg-type]


def holds_maps(type: Type | None) -> bool:
    """Whether a value of this type is a map, or has maps in it."""
    if isinstance(type, (SequenceType, OptionalType)):
        return holds_maps(type.element)
    return isinstance(type, MapType)


def broadcast(*shapes: Shape) -> Shape:
    """The numpy broadcast of several shapes; ModelError names the dims that do not match."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_broadcast_dim(dims, shapes) for dims in zip(*padded))


def _broadcast_dim(dims: tuple[Dim, ...], shapes: Sequence[Shape]) -> Dim:
    others = [d for d in dict.fromkeys(dims) if not (isinstance(d, int) and d == 1)]
    if not others:
        return 1
    known = [d for d in others if isinstance(d, int)]
    if len(known) > 1:
        shown = ", ".join(str(list(s)) for s in shapes)
        raise ModelError(f"shapes {shown} do not broadcast: {known[0]} against {known[1]}")
    return known[0] if known else others[0]


def type_of(value: Any) -> Type:
    """The type of an actual value: an array, a map, or a list of them."""
    if isinstance(value, Map):
        return value.type
    if isinstance(value, list):
        element = type_of(value[0]) if value else TensorType(dtypes.f32, None)
        return SequenceType(element)
    array = np.asarray(value)
    return TensorType(dtypes.of(array.dtype), tuple(map(int, array.shape)))
