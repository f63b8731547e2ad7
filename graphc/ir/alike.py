"""What follows from a definition, made once for all ops that are alike.

Layers, and steps of time, have many ops of one definition, with equal attributes, operands of equal
types, and equal contents where types or bodies depend on these. What scalar bodies and shape rules
give for one of them they give for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from graphc.ir.graph import Op, Value

Made = TypeVar("Made")
KEPT = 1 << 12  # results that are kept
LARGE = 64  # elements of contents, beyond which ops are not compared
_kept: dict[tuple, Any] = {}


def once(op: Op, what: tuple, make: Callable[[], Made]) -> Made:
    """What `make` gives for an op, which nobody may change, but to add to it what holds of all that
    are alike; `what` tells it from other results."""
    key = _key(op, what)
    if key is None:
        return make()
    made = _kept.get(key)
    if made is None:
        made = make()
        if len(_kept) >= KEPT:
            _kept.clear()
        _kept[key] = made
    return made


def _key(op: Op, what: tuple) -> tuple | None:
    """What ops that are alike have in common; None for one that is not compared."""
    read: list[Any] = []
    params = op.defn.params
    for number, value in enumerate(op.inputs):
        read.append(None if value is None else value.type)
        if value is not None and params and params[min(number, len(params) - 1)].accepts.known:
            contents = _contents(value)
            if contents is None:
                return None
            read.append(contents)
    for name, attribute in op.attrs.items():
        if not _is_plain(attribute):
            return None
        read += [name, repr(attribute)]  # which tells 1 from 1.0 and True, and 0.0 from -0.0
    return op.defn, len(op.outputs), what, *read


def _contents(value: Value) -> tuple | None:
    """Small contents that are numbers, as part of a key."""
    known = value.known
    if known is None or known.size > LARGE or known.dtype.hasobject:
        return None
    return known.dtype.str, known.shape, known.tobytes()


def _is_plain(attribute: object) -> bool:
    """Whether the text of an attribute says all about it."""
    if isinstance(attribute, tuple):
        return all(map(_is_plain, attribute))
    return attribute is None or type(attribute) in (bool, int, float, str)
