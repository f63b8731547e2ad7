"""Reads the contents of constants from text.

    contents = element | nested brackets | "splat" "(" element ")" | "zeros" | "random(seed=n)"
             | "dense" "<" digest ">"

`random` gives standard normal floats, integers in -8..8 (0..16 unsigned) and fair booleans from
numpy's default generator. A digest is looked up in `constants` (see printer.graph_constants).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.text.literals import digest, nan_of_bits
from graphc.ir.text.type_parser import TypeParser
from graphc.ir.types import TensorType

Constants = Mapping[str, np.ndarray]


class ConstantParser(TypeParser):
    """Arrays of a given type."""

    def __init__(self, text: str, constants: Constants | None = None):
        super().__init__(text)
        self.constants = constants or {}

    def contents(self, type: TensorType) -> np.ndarray:
        """The array of a constant of this type."""
        token = self.token
        if not type.is_static:
            self.fail(f"a constant cannot have type {type}")
        shape, dtype = type.static_shape, type.dtype
        if self.accept("dense"):
            return self._dense(type)
        if self.accept("zeros"):
            return np.full(shape, "" if dtype is dtypes.string else 0, dtype.np)
        if self.accept("splat"):
            self.expect("(")
            value = self._element(dtype)
            self.expect(")")
            return np.full(shape, value, dtype.np)
        if self.accept("random"):
            return self._random(type)
        extents: list[int] = []
        flat = self._nested(dtype, 0, extents)
        array = np.empty(len(flat), dtype.np)
        array[:] = flat
        if (
            tuple(extents) != shape if flat else array.size != type.size
        ) or array.size != type.size:
            self.fail(f"contents of shape {extents} do not fit {type}", token)
        return array.reshape(shape)

    def _dense(self, type: TensorType) -> np.ndarray:
        self.expect("<")
        token = self.token
        key = self.expect_kind("digest", "a digest `sha256:...`")
        self.close_angle()
        array = self.constants.get(key)
        if array is None:
            self.fail(f"no constant {key} was given", token)
        wanted = type.dtype.np
        if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
            array = array.view(wanted)  # files of numpy know no bfloat16
        if array.dtype != wanted or array.shape != type.static_shape:
            self.fail(f"constant {key} is {array.dtype}{list(array.shape)}, not {type}", token)
        if digest(array) != key:
            self.fail(f"constant {key} is damaged: its digest is {digest(array)}", token)
        return array

    def _random(self, type: TensorType) -> np.ndarray:
        self.expect("(")
        self.expect("seed")
        self.expect("=")
        seed = self.integer()
        self.expect(")")
        return random_array(type.static_shape, type.dtype, seed)

    def _nested(self, dtype: DType, depth: int, shape: list[int]) -> list:
        if not self.sees("["):
            if len(shape) > depth:
                self.fail("expected `[`")
            return [self._element(dtype)]
        token = self.next()
        if len(shape) == depth:
            shape.append(-1)
        rows = self.listed("]", lambda: self._nested(dtype, depth + 1, shape))
        if shape[depth] not in (-1, len(rows)):
            self.fail(f"a row has {len(rows)} elements, others {shape[depth]}", token)
        shape[depth] = len(rows)
        return [value for row in rows for value in row]

    def _element(self, dtype: DType) -> Any:
        token = self.token
        if dtype is dtypes.string:
            raw = self.accept("b")
            text = self.string()
            return text.encode("latin-1") if raw else text
        if dtype is dtypes.boolean:
            if not (self.accept("true") or self.accept("false")):
                self.fail("expected `true` or `false`")
            return token.text == "true"
        if dtype.kind == "complex":
            return self._complex(dtype)
        if dtype.is_integer:
            value = self.integer()
            if not dtype.min <= value <= dtype.max:
                self.fail(f"{value} is not in the range of {dtype}", token)
            return value
        return self._float_element(dtype)

    def _complex(self, dtype: DType) -> Any:
        part = dtypes.f32 if dtype.bits == 64 else dtypes.f64
        self.expect("(")
        real = self._float_element(part)
        self.expect(",")
        imaginary = self._float_element(part)
        self.expect(")")
        return np.array([real, imaginary], part.np).view(dtype.np)[0]

    def _float_element(self, dtype: DType) -> Any:
        negative = self.accept("-")
        if self.accept("nan"):
            return self._nan(dtype)
        if self.accept("inf"):
            value = float("inf")
        else:
            value = float(self.expect_kind("number", f"a literal of type {dtype}"))
        return _rounded(-value if negative else value, dtype)

    def _nan(self, dtype: DType) -> Any:
        if not self.accept("("):
            return np.asarray(np.nan, dtype.np)[()]
        bits = self.integer()
        self.expect(")")
        return nan_of_bits(bits, dtype)


def _rounded(value: float, dtype: DType) -> Any:
    """The element of `dtype` nearest to the decimal that was written (infinities may be)."""
    with np.errstate(all="ignore"):
        if dtype.bits >= 32:
            return np.asarray(value, dtype.np)[()]
        return np.asarray(value, np.float32).astype(dtype.np)[()]


def random_array(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    """The contents `random(seed=...)` stands for."""
    generator = np.random.default_rng(seed)
    if dtype is dtypes.boolean:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low = max(-8, int(dtype.min))
        return generator.integers(low, min(low + 16, int(dtype.max)), shape, endpoint=True).astype(
            dtype.np
        )
    return np.asarray(generator.standard_normal(shape)).astype(np.float32).astype(dtype.np)
