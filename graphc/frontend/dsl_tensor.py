"""Tensors under construction: Python operators, indexing and the usual methods.

Operators have numpy's meaning, and broadcast. Python numbers take the tensor's dtype. Where numpy
and ONNX differ (integer `/`, `//` and `%` of negative numbers) numpy's meaning is built from
several ops, or refused with a hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from graphc.errors import ModelError, did_you_mean
from graphc.frontend import dsl_trace as trace
from graphc.frontend import opsets
from graphc.frontend.checks import schema_of
from graphc.ir import dtypes, opdef
from graphc.ir.dtypes import DType, boolean
from graphc.ir.graph import Value, constant_op
from graphc.ir.opdef import OpDef
from graphc.ir.types import Shape, TensorType, Type

END = np.iinfo(np.int64).max
Operand = Union["Tensor", int, float, np.generic, np.ndarray, Sequence]
"""What an operator of Python takes beside a tensor."""


def _operator(op: str, swapped: bool = False) -> Callable[[Tensor, Operand], Tensor]:
    """A method that applies an operator to the tensor and another operand, or the other way."""
    if swapped:
        return lambda self, other: apply(op, other, self)
    return lambda self, other: apply(op, self, other)


def _reduction(op: str, doc: str) -> Callable[..., Tensor]:
    """A method that reduces the tensor over some axes."""

    def reduce(
        self: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False
    ) -> Tensor:
        axes = None if axis is None else np.atleast_1d(np.asarray(axis, np.int64))
        return apply(op, self, axes, keepdims=int(keepdims))

    reduce.__doc__ = doc
    return reduce


class Tensor:
    """A value of the graph being built. Sequences and optionals are wrapped by it too."""

    __slots__ = ("value",)
    __array_ufunc__ = None  # numpy leaves `array + tensor` to the tensor

    def __init__(self, value: Value):
        self.value = value

    # ------------------------------------------------------------ what it is

    @property
    def type(self) -> Type | None:
        """Its type as far as known; None if it depends on data."""
        return self.value.type

    @property
    def dtype(self) -> DType:
        """Its element type; ModelError if it is not known yet."""
        return self._tensor().dtype

    @property
    def shape(self) -> Shape:
        """Its shape, in which dims may be symbols; ModelError if it is not known yet."""
        return self._tensor().dims

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def _tensor(self) -> TensorType:
        if not isinstance(self.value.type, TensorType):
            raise ModelError(
                f"the type of {self!r} is not known at {trace.user_line()}: it depends on data"
            )
        return self.value.type

    def __repr__(self) -> str:
        return f"Tensor({self.value!r})"

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value while the graph is built; use dsl.cond")

    def __iter__(self) -> Iterator[Tensor]:
        if not isinstance(self.shape[0] if self.shape else None, int):
            raise TypeError(f"cannot iterate over {self!r}")
        return (self[n] for n in range(self.shape[0]))  # type: ignore[arg-type]

    def __len__(self) -> int:
        if not self.shape or not isinstance(self.shape[0], int):
            raise TypeError(f"{self!r} has no known length")
        return self.shape[0]

    # ------------------------------------------------------------ arithmetic

    __add__, __radd__ = _operator("Add"), _operator("Add", swapped=True)
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", swapped=True)
    __mul__, __rmul__ = _operator("Mul"), _operator("Mul", swapped=True)
    __matmul__, __rmatmul__ = _operator("MatMul"), _operator("MatMul", swapped=True)
    __pow__ = _operator("Pow")

    def __truediv__(self, other: Operand) -> Tensor:
        return self._divide(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self._divide(other, self)

    def _divide(self, a: Operand, b: Operand) -> Tensor:
        if not self.dtype.is_float:
            raise ModelError(
                f"/ of {self.dtype} at {trace.user_line()}: use //, dsl.Div (which truncates), or "
                "cast to a float type"
            )
        return apply("Div", a, b)

    def __floordiv__(self, other: Operand) -> Tensor:
        if self.dtype.is_float:
            return apply("Floor", self / other)
        return apply("Div", self - self % other, other)  # divides exactly

    def __mod__(self, other: Operand) -> Tensor:
        if self.dtype.is_float:
            return self - apply("Floor", self / other) * other
        return apply("Mod", self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return apply("Pow", trace.as_array(other, self.dtype), self)

    def __neg__(self) -> Tensor:
        return apply("Neg", self)

    def __abs__(self) -> Tensor:
        return apply("Abs", self)

    # ------------------------------------------------------------ comparison and logic

    def __eq__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return apply("Equal", self, other)

    def __ne__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return apply("Not", apply("Equal", self, other))

    __hash__ = object.__hash__

    __lt__, __le__ = _operator("Less"), _operator("LessOrEqual")
    __gt__, __ge__ = _operator("Greater"), _operator("GreaterOrEqual")

    def _logical(self, kind: str, *others: Operand) -> Tensor:
        prefix = "" if self.dtype is boolean else "Bitwise"
        return apply(prefix + kind, self, *others)

    def __and__(self, other: Operand) -> Tensor:
        return self._logical("And", other)

    def __or__(self, other: Operand) -> Tensor:
        return self._logical("Or", other)

    def __xor__(self, other: Operand) -> Tensor:
        return self._logical("Xor", other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Tensor:
        return self._logical("Not")

    # ------------------------------------------------------------ shapes

    def __getitem__(self, key: Any) -> Tensor:
        return index(self, key if isinstance(key, tuple) else (key,))

    @property
    def T(self) -> Tensor:  # noqa: N802  (numpy's name)
        """All dimensions reversed."""
        return apply("Transpose", self)

    def transpose(self, *axes: int) -> Tensor:
        """Dimensions in the order given (none: reversed)."""
        return apply("Transpose", self, perm=axes or None)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; one extent may be -1."""
        extents = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return apply("Reshape", self, np.asarray(extents, np.int64), allowzero=int(0 in extents))

    def astype(self, dtype: Any) -> Tensor:
        """Elements converted to another type."""
        return apply("Cast", self, to=dtypes.of(dtype).onnx)

    sum = _reduction(
        "ReduceSum",
        "The sum over an axis, several, or (None) all, which keep extent 1 if `keepdims`.",
    )
    mean = _reduction("ReduceMean", "The mean; axes as for `sum`.")
    max = _reduction("ReduceMax", "The largest element; axes as for `sum`.")
    min = _reduction("ReduceMin", "The least element; axes as for `sum`.")


# ---------------------------------------------------------------- operators by name


def apply(op: str, *operands: Any, outputs: int | None = None, name: str = "", **attrs: Any) -> Any:
    """Adds an operator, `"Relu"` or `"domain.Op"`; its output, or a tuple of its outputs.

    Operands are tensors, None (omitted), arrays, numbers or lists; attributes are keywords. `name`
    names the layer; without it the line of the call does. `outputs` is how many outputs to
    ask for, where the operator leaves it open.
    """
    domain, _, kind = op.rpartition(".")
    defn = opdef.find(kind, domain)
    if defn is None:
        near = did_you_mean(kind, [known for place, known in opdef.REGISTRY if place == domain])
        raise ModelError(f"there is no operator {op} (at {trace.user_line()}){near}")
    plain = {key: attribute(value) for key, value in attrs.items() if value is not None}
    values = [operand.value if isinstance(operand, Tensor) else operand for operand in operands]
    count = outputs if outputs is not None else _output_count(defn, values, plain)
    made = trace.record(defn, values, plain, count, name=name)
    return Tensor(made[0]) if count == 1 else tuple(map(Tensor, made))


def attribute(value: Any) -> Any:
    """An attribute as the IR keeps it: tuples for lists, element types by their number."""
    if isinstance(value, (list, tuple)):
        return tuple(map(attribute, value))
    if isinstance(value, (bool, np.bool_, np.integer)):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    if hasattr(value, "dtype") and isinstance(value.dtype, DType):
        return value.dtype.onnx
    if isinstance(value, (DType, np.dtype)) or (isinstance(value, type) and value not in (str,)):
        return dtypes.of(value).onnx
    return value


def _output_count(defn: OpDef, operands: list[Any], attrs: dict[str, Any]) -> int:
    if defn.name == "Split":
        sizes = operands[1] if len(operands) > 1 else None
        sizes = sizes.constant if isinstance(sizes, Value) else sizes
        return attrs.get("num_outputs") or (1 if sizes is None else len(sizes))
    schema = schema_of(defn.name, defn.domain, opsets.newest(defn.domain))
    least = schema.min_output if schema is not None else defn.outputs
    return max(1, least or 1)


# ---------------------------------------------------------------- indexing


def index(x: Tensor, key: tuple) -> Tensor:
    """numpy's basic indexing, with one index tensor or array (which gathers along its axis)."""
    key = _expand(x, key)
    gathers = [n for n, part in enumerate(key) if _is_gather(part)]
    if len(gathers) > 1:
        raise ModelError(f"more than one index tensor (at {trace.user_line()}); use dsl.GatherND")
    if gathers:
        _check_adjacent(key)
    x = _slice(x, key)
    dropped = [n for n, part in enumerate(_old_axes(key)) if _is_number(part)]
    if dropped:
        x = apply("Squeeze", x, np.array(dropped, np.int64))
    if gathers:
        picked, before = key[gathers[0]], key[: gathers[0]]
        picked = picked if isinstance(picked, Tensor) else np.asarray(picked, np.int64)
        x = apply("Gather", x, picked, axis=sum(isinstance(part, slice) for part in before))
    added = _new_axes(key)
    return apply("Unsqueeze", x, np.array(added, np.int64)) if added else x


def _old_axes(key: tuple) -> list:
    """The parts of a key that stand for dimensions of the operand."""
    return [part for part in key if part is not None]


def _new_axes(key: tuple) -> list[int]:
    """The positions of the new dimensions in the result."""
    added, position = [], 0
    for part in key:
        if part is None:
            added.append(position)
        if _is_gather(part):
            position += part.rank if isinstance(part, Tensor) else np.ndim(part)
        elif not _is_number(part):
            position += 1
    return added


def _is_number(part: Any) -> bool:
    return isinstance(part, (int, np.integer))


def _is_gather(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray, list))


def _check_adjacent(key: tuple) -> None:
    """numpy moves the axes of an index tensor that is apart from a plain number to the front."""
    places = [n for n, k in enumerate(key) if _is_gather(k) or _is_number(k)]
    if places[-1] - places[0] >= len(places):
        raise ModelError(
            f"a number and an index tensor with slices between them (at {trace.user_line()}); "
            "index in two steps"
        )


def _expand(x: Tensor, key: tuple) -> tuple:
    """The key with one part for each dimension of x, besides the new ones (None)."""
    used = sum(part is not None and part is not Ellipsis for part in key)
    if used > x.rank:
        raise ModelError(f"{used} indices for {x!r} (at {trace.user_line()})")
    rest = (slice(None),) * (x.rank - used)
    places = [n for n, part in enumerate(key) if part is Ellipsis]
    if len(places) > 1:
        raise ModelError(f"more than one ... in an index (at {trace.user_line()})")
    cut = places[0] if places else len(key)
    full = key[:cut] + rest + key[cut + 1 :]
    for part in full:
        if isinstance(part, Tensor) and not part.dtype.is_integer:
            raise ModelError(f"index of {part.dtype} (at {trace.user_line()}); see dsl.Compress")
        basic = part is None or isinstance(part, slice) or _is_number(part)
        if not basic and not _is_gather(part):
            raise ModelError(f"{part!r} is no index (at {trace.user_line()})")
    return full


def _slice(x: Tensor, key: tuple) -> Tensor:
    """The slices and the numbers (as slices of length 1) of a key."""
    rows = []
    for axis, part in enumerate(_old_axes(key)):
        if _is_number(part):
            extent = x.shape[axis]
            if isinstance(extent, int) and not -extent <= part < extent:
                raise ModelError(f"index {part} of {x!r} is out of range (at {trace.user_line()})")
            rows.append((int(part), int(part) + 1 if part != -1 else END, axis, 1))
        elif isinstance(part, slice) and part != slice(None):
            step = 1 if part.step is None else part.step
            start = part.start if part.start is not None else (0 if step > 0 else END)
            stop = part.stop if part.stop is not None else (END if step > 0 else -END)
            if step < 0 and isinstance(x.shape[axis], int) and start < -x.shape[axis]:
                start = stop = 0  # nothing, as in Python; ONNX would start at the first
            rows.append((start, stop, axis, step))
    if not rows:
        return x
    return apply("Slice", x, *(np.array(column, np.int64) for column in zip(*rows)))


def constant(value: Any, dtype: Any = None, name: str = "") -> Tensor:
    """A constant from anything numpy takes."""
    array = trace.as_array(value)
    if dtype is not None:
        array = array.astype(dtypes.of(getattr(dtype, "dtype", dtype)).np)
    made = constant_op(array, name or "constant", (name or trace.user_line(),))
    return Tensor(trace.current().append(made).output)
