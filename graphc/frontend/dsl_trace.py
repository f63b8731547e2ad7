"""Recording ops while Python code runs: the frames of regions under construction.

A `Frame` is one region being filled, the innermost one last on a stack that belongs to the thread
of execution. Ops always go into the innermost region. An operand from an enclosing region is
captured on the way in, as everywhere in the IR: it becomes a parameter of each region between,
and constants are repeated. Each op is located by the line of the user's code that made it, so
that every later message can name that line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from graphc.errors import GraphcError, ModelError
from graphc.frontend.dsl_infer import infer
from graphc.ir import binding, dtypes, opdef
from graphc.ir.dtypes import DType
from graphc.ir.graph import Op, Region, Value, constant_op
from graphc.ir.opdef import OpDef, Param
from graphc.ir.types import TensorType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_stack: ContextVar[tuple[Frame, ...]] = ContextVar("graphc_frames", default=())


class Frame:
    """A region under construction. `captures` maps values outside to their parameters here, and
    `copies` constants outside to theirs."""

    def __init__(self, region: Region, outer: Frame | None = None):
        self.region, self.outer = region, outer
        self.captures: dict[Value, Value] = {}
        self.copies: dict[Value, Value] = {}
        self.owned: set[Value] = set(region.params)

    def add_param(self, type: Any, name: str = "") -> Value:
        """A new parameter of the region."""
        value = self.region.add_param(type, name)
        self.owned.add(value)
        return value

    def append(self, op: Op) -> Op:
        self.region.append(op)
        self.owned.update(op.outputs)
        return op

    def local(self, value: Value) -> Value:
        """The value as this region sees it; ModelError if it belongs to another graph."""
        if value in self.owned:
            return value
        inner = self.captures.get(value) or self.copies.get(value)
        if inner is None:
            if self.outer is None:
                raise ModelError(
                    f"%{value.name} belongs to another graph, or to a branch or loop that has ended"
                )
            outside = self.outer.local(value)
            if outside.constant is not None:
                assert outside.producer is not None
                copy = constant_op(outside.constant, value.name, outside.producer.loc)
                inner = self.copies[value] = self.append(copy).output
            else:
                inner = self.captures[value] = self.add_param(outside.type, value.name)
        return inner


def current() -> Frame:
    """The innermost frame; ModelError outside of any graph."""
    frames = _stack.get()
    if not frames:
        raise ModelError("no graph is being built here; use @dsl.graph or `with dsl.building(...)`")
    return frames[-1]


def is_building() -> bool:
    """Whether a graph is being built here."""
    return bool(_stack.get())


@contextmanager
def inside(region: Region, nested: bool = True) -> Iterator[Frame]:
    """Makes `region` the innermost one; a graph of its own if not `nested`."""
    frames = _stack.get() if nested else ()
    frame = Frame(region, frames[-1] if frames else None)
    token = _stack.set((*frames, frame))
    try:
        yield frame
    finally:
        _stack.reset(token)


def user_line() -> str:
    """`file.py:12`, the innermost line outside this package that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def record(
    defn: OpDef,
    operands: Sequence[Any],
    attrs: dict[str, Any],
    outputs: int = 1,
    regions: Sequence[Region] = (),
    name: str = "",
) -> list[Value]:
    """Appends an op to the innermost region and types it as far as possible.

    Operands are values, None, or anything numpy takes. Errors name the user's line.
    """
    line = user_line()
    frame = current()
    try:
        inputs = _operands(defn, operands, frame)
        binding.bind_attrs(defn, attrs)
        op = Op(defn, inputs, attrs, outputs, regions, (name or line,))
        infer(op)
    except GraphcError as error:
        raise type(error)(_located(str(error), defn, name, line)) from error
    for value in op.outputs:
        value.name = name if name and outputs == 1 else (name or defn.name.lower())
    return frame.append(op).outputs


def _located(text: str, defn: OpDef, name: str, line: str) -> str:
    where = f'{defn.name} "{name or line}"'
    text = text if text.startswith(where) else f"{where}: {text}"
    return text if line in text else f"{text} ({line})"


def _operands(defn: OpDef, operands: Sequence[Any], frame: Frame) -> list[Value | None]:
    inputs: list[Value | None] = []
    for position, operand in enumerate(operands):
        if operand is None:
            inputs.append(None)
        elif isinstance(operand, Value):
            inputs.append(frame.local(operand))
        else:
            inputs.append(_literal(defn, operands, position, frame))
    while inputs and inputs[-1] is None:
        inputs.pop()
    return inputs


def _literal(defn: OpDef, operands: Sequence[Any], position: int, frame: Frame) -> Value:
    """A constant operand; where the types it should adapt to are not known, it is cast later."""
    like = _weak_dtype(defn, operands, position)
    value = frame.append(constant_op(as_array(operands[position], like))).output
    own = _param(defn, position)
    python = not isinstance(operands[position], (np.ndarray, np.generic))
    untyped = [v for v in operands if isinstance(v, Value) and v.type is None]
    if python and like is None and untyped and own is not None and not own.accepts.known:
        cast = Op(opdef.lookup("CastLike"), [value, frame.local(untyped[0])], loc=(user_line(),))
        return frame.append(cast).output
    return value


def as_array(value: Any, like: DType | None = None) -> np.ndarray:
    """A literal as an array: a numpy array keeps its dtype, Python numbers take that of `like`."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return array.astype(object) if array.dtype.kind in "US" else array
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return array.astype(object)
    if array.dtype.kind not in "biuf":
        raise ModelError(f"{value!r} is not a tensor, and no array of numbers or text either")
    if like is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    exact = like.is_float or array.dtype.kind in ("b" if like is dtypes.boolean else "bi")
    if not exact:
        raise ModelError(f"{value!r} is no {like}; cast the tensor, or write a number of its type")
    if like.is_integer and array.size and not like.min <= array.min() <= array.max() <= like.max:
        raise ModelError(f"{value!r} does not fit {like}")
    return array.astype(like.np)


def _param(defn: OpDef, position: int) -> Param | None:
    return defn.params[min(position, len(defn.params) - 1)] if defn.params else None


def _weak_dtype(defn: OpDef, operands: Sequence[Any], position: int) -> DType | None:
    """The dtype that Python numbers take at an operand: that of a tensor at a like operand."""
    own = _param(defn, position)
    if own is None or own.accepts.known:
        return None
    candidates = [
        (_param(defn, n), operand.type.dtype)
        for n, operand in enumerate(operands)
        if isinstance(operand, Value) and isinstance(operand.type, TensorType)
    ]
    alike = [d for p, d in candidates if p is not None and p.accepts is own.accepts]
    fitting = [d for _, d in candidates if own.accepts.accepts(d)]
    return next(iter(alike or fitting), None)
