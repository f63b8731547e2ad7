"""The table of scalar operations: one row each, with type rule, numpy meaning and text spelling.

Semantics are fixed here once, to what ONNX says, for every backend:
* arithmetic on integers wraps; integer `div` truncates, `floordiv` and `mod` floor, `rem` takes the
  sign of the dividend; dividing by zero gives 0 (never a trap);
* `min` and `max` return NaN if either side is NaN; comparisons with NaN are false, `ne` true;
* `clamp(x, low, high)` is min(max(x, low), high);
* `round` rounds halves to even; shifts by the width or more give 0 (-1 for negative `shr`);
* `cast` float to integer truncates, saturates to the 32- or 64-bit range (NaN gives 0) and then
  wraps to narrower types; to narrow floats it rounds to nearest even and overflows to inf or NaN,
  `cast_sat` to the largest finite value instead;
* `cut_tf32` drops the 13 bits of a float32's fraction that TF32 lacks, as matrix cores do;
  `round_tf32` rounds to the nearest TF32, halves away from zero, and `add_half_tf32` gives a number
  that is the nearest once it is cut; the last two leave infinities and NaN as they are;
* `shr_to_even(x, n)` and `shr_to_odd(x, n)` are x / 2**n - 1/2, rounded to the nearest integer, and
  halves to the even or odd one: requantisation adds one half to x beforehand, with other constants;
  `shr_rounded(x, n)` is x >> n and the last bit that was shifted out, which is x / 2**n with halves
  rounded up; `mul_high` gives the upper 32 bits of a product of two i32, `mul_high_rounded` those
  after 2**31 has been added;
* `scale(x, n)` is x * 2**floor(n) of float32, rounded once, also to a subnormal number;
* `select` evaluates only the branch it takes: loads in the other one may be out of bounds.
A narrow float (see dtypes.DType.compute) is widened to float32, operated on, and rounded back.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from graphc.errors import ModelError
from graphc.ir.dtypes import DType, boolean, f32, i32, i64
from graphc.records import dataclass

ONLY = {"float32": f32, "int32": i32, "int64": i64}  # the one type that operands have, by rule


@dataclass(frozen=True, eq=False)
class ScalarOp:
    """One scalar operation. `rule` is same, compare, logic, select, cast, test, or the name of the
    one type it takes and gives (result_type)."""

    name: str
    arity: int
    rule: str
    numpy: Callable | None
    symbol: str = ""  # infix or prefix spelling in text
    commutative: bool = False
    cost: int = 1  # rough cost in fused-multiply-add units, for recompute decisions

    def __repr__(self) -> str:
        return self.name

    def result_type(self, args: tuple) -> DType:
        """The dtype of the result; TypeError if the arguments do not fit the rule."""
        first = args[0].dtype
        if self.rule == "compare":
            self._require_equal(args)
            return boolean
        if self.rule == "test":
            return boolean
        if self.rule == "logic":
            if any(a.dtype is not boolean for a in args):
                raise TypeError(f"{self.name} takes booleans, found {[a.dtype for a in args]}")
            return boolean
        if self.rule == "select":
            if first is not boolean:
                raise TypeError(f"select takes a boolean condition, found {first}")
            self._require_equal(args[1:])
            return args[1].dtype
        if first is not ONLY.get(self.rule, first):
            raise TypeError(f"{self.name} takes {self.rule}, found {first}")
        self._require_equal(args)
        return first

    def _require_equal(self, args: tuple) -> None:
        first = args[0].dtype
        if any([a.dtype is not first for a in args]):
            raise TypeError(f"{self.name} takes equal types, found {[a.dtype for a in args]}")


TABLE: dict[str, ScalarOp] = {}


def _row(
    name: str, arity: int, rule: str, numpy: Callable | None, symbol: str = "", *,
    commutative: bool = False, cost: int = 1,
) -> None:  # fmt: skip
    TABLE[name] = ScalarOp(name, arity, rule, numpy, symbol, commutative, cost)


def _int_or_float(on_int: Callable, on_float: Callable) -> Callable:
    return lambda a, b: on_int(a, b) if np.result_type(a).kind in "iu" else on_float(a, b)


def _guarded(divide: Callable) -> Callable:
    """Integer division with x / 0 = 0."""

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        zero = np.equal(b, 0)
        safe = np.where(zero, np.asarray(b).dtype.type(1), b)
        return np.where(zero, np.asarray(a).dtype.type(0), divide(a, safe))

    return run


def _truncating(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.floor_divide(a, b)
    return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


def _shift(left: bool) -> Callable:
    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.asarray(a), np.asarray(b)
        bits = a.dtype.itemsize * 8
        amount = np.minimum(b.astype(np.uint64), np.uint64(bits - 1)).astype(a.dtype)
        over = b.astype(np.uint64) >= bits
        if left:
            return np.where(over, a.dtype.type(0), np.left_shift(a, amount))
        shifted = np.right_shift(a, amount)
        return shifted if a.dtype.kind == "i" else np.where(over, a.dtype.type(0), shifted)

    return run


def _shift_rounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    right = _shift(left=False)
    return right(a, b) + (right(a, b - np.asarray(b).dtype.type(1)) & 1)


def _shift_halves(odd: int) -> Callable:
    """x >> n, less one where x is a multiple of 2**n and the result is odd, or even if `odd`."""
    right, left = _shift(left=False), _shift(left=True)

    def run(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        whole = right(a, b)
        half = np.bitwise_and(a, left(np.int64(1), b) - 1) == 0
        return whole - np.where(half, (whole & 1) ^ odd, 0)

    return run


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    negative = b < 0  # 1 / a ** -b, truncated: nonzero only for a in {-1, 1}
    positive = np.power(a, np.where(negative, 0, b).astype(a.dtype))
    parity = np.where(np.remainder(b, 2) == 0, 1, a)
    inverse = np.where(np.abs(a.astype(np.float64)) == 1, parity, 0)
    return np.where(negative, inverse, positive).astype(a.dtype)


def _scaled(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    power = np.floor(np.asarray(b, np.float64))  # beyond 400, float32 has infinities and zeros
    power = np.where(np.isinf(power), power, np.clip(power, -400, 400))
    return np.asarray(a * np.exp2(power), np.float32)


_erf = np.frompyfunc(math.erf, 1, 1)


def _map_erf(a: np.ndarray) -> np.ndarray:
    a = np.asarray(a)
    return np.asarray(_erf(a.astype(np.float64))).astype(a.dtype)


HALF_OF_TF32, KEPT_BY_TF32, ALL = 0x1000, 0xFFFFE000, 0xFFFFFFFF  # bits of float32s


def _bits_of_tf32(half: int, mask: int) -> Callable:
    def run(a: np.ndarray) -> np.ndarray:
        added = np.asarray(a).view(np.uint32) + np.isfinite(a) * np.uint32(half)
        return (added & np.uint32(mask)).view(np.float32)

    return run


_row("neg", 1, "same", np.negative, "-")
_row("abs", 1, "same", np.abs)
_row("sign", 1, "same", np.sign)
_row("floor", 1, "same", np.floor)
_row("ceil", 1, "same", np.ceil)
_row("round", 1, "same", np.rint)
_row("trunc", 1, "same", np.trunc)
_row("sqrt", 1, "same", np.sqrt, cost=4)
_row("exp", 1, "same", np.exp, cost=12)
_row("log", 1, "same", np.log, cost=12)
_row("sin", 1, "same", np.sin, cost=16)
_row("cos", 1, "same", np.cos, cost=16)
_row("tan", 1, "same", np.tan, cost=24)
_row("asin", 1, "same", np.arcsin, cost=16)
_row("acos", 1, "same", np.arccos, cost=16)
_row("atan", 1, "same", np.arctan, cost=16)
_row("sinh", 1, "same", np.sinh, cost=20)
_row("cosh", 1, "same", np.cosh, cost=20)
_row("tanh", 1, "same", np.tanh, cost=16)
_row("asinh", 1, "same", np.arcsinh, cost=20)
_row("acosh", 1, "same", np.arccosh, cost=20)
_row("atanh", 1, "same", np.arctanh, cost=20)
_row("erf", 1, "same", _map_erf, cost=16)
_row("isnan", 1, "test", np.isnan)
_row("isinf", 1, "test", np.isinf)
_row("not", 1, "logic", np.logical_not, "!")
_row("bnot", 1, "same", np.invert, "~")

_cut, _half_added = _bits_of_tf32(0, KEPT_BY_TF32), _bits_of_tf32(HALF_OF_TF32, ALL)
_row("cut_tf32", 1, "float32", _cut, cost=3)
_row("add_half_tf32", 1, "float32", _half_added, cost=6)
_row(
    "round_tf32", 1, "float32", lambda a: np.where(np.isfinite(a), _cut(_half_added(a)), a), cost=7
)

_row("add", 2, "same", np.add, "+", commutative=True)
_row("sub", 2, "same", np.subtract, "-")
_row("mul", 2, "same", np.multiply, "*", commutative=True)
_row("div", 2, "same", _int_or_float(_guarded(_truncating), np.divide), "/", cost=4)
_row("floordiv", 2, "same", _int_or_float(_guarded(np.floor_divide), np.floor_divide), "//", cost=8)
_row("mod", 2, "same", _int_or_float(_guarded(np.remainder), np.remainder), "%", cost=8)
_row("rem", 2, "same", _int_or_float(_guarded(np.fmod), np.fmod), cost=8)
_row("pow", 2, "same", _power, "**", cost=30)
_row("min", 2, "same", np.minimum, commutative=True)
_row("max", 2, "same", np.maximum, commutative=True)
_row("band", 2, "same", np.bitwise_and, "&", commutative=True)
_row("bor", 2, "same", np.bitwise_or, "|", commutative=True)
_row("bxor", 2, "same", np.bitwise_xor, "^", commutative=True)
_row("shl", 2, "same", _shift(left=True), "<<")
_row("shr", 2, "same", _shift(left=False), ">>")
_row("shr_rounded", 2, "same", _shift_rounded, cost=2)
_row("mul_high", 2, "int32", lambda a, b: a.astype(np.int64) * b >> 32, commutative=True)
_row("mul_high_rounded", 2, "int32", lambda a, b: a.astype(np.int64) * b + (1 << 31) >> 32,
     commutative=True, cost=2)  # fmt: skip
_row("shr_to_even", 2, "int64", _shift_halves(odd=0), cost=5)
_row("shr_to_odd", 2, "int64", _shift_halves(odd=1), cost=6)
_row("scale", 2, "float32", _scaled, cost=2)
_row("eq", 2, "compare", np.equal, "==", commutative=True)
_row("ne", 2, "compare", np.not_equal, "!=", commutative=True)
_row("lt", 2, "compare", np.less, "<")
_row("le", 2, "compare", np.less_equal, "<=")
_row("gt", 2, "compare", np.greater, ">")
_row("ge", 2, "compare", np.greater_equal, ">=")
_row("and", 2, "logic", np.logical_and, "&&", commutative=True)
_row("or", 2, "logic", np.logical_or, "||", commutative=True)
_row("xor", 2, "logic", np.logical_xor, "^^", commutative=True)

_row("select", 3, "select", np.where)
_row("clamp", 3, "same", lambda x, low, high: np.minimum(np.maximum(x, low), high), cost=2)
_row("fma", 3, "same", lambda a, b, c: a * b + c)
_row("cast", 1, "cast", None)
_row("cast_sat", 1, "cast", None)
_row("bitcast", 1, "cast", None)


def apply(op: ScalarOp, dtype: DType, *args: np.ndarray) -> np.ndarray:
    """The numpy meaning of `op` giving `dtype`, applied elementwise with broadcasting."""
    with np.errstate(all="ignore"):
        if op.rule == "cast":
            return _convert(op.name, np.asarray(args[0]), dtype)
        if op.rule == "select":
            return np.where(*args).astype(dtype.np, copy=False)
        wide = [_widen(a) for a in args]
        if op.name == "abs" and np.asarray(args[0]).dtype.kind == "u":
            return np.asarray(args[0])
        assert op.numpy is not None
        return np.asarray(op.numpy(*wide)).astype(dtype.np, copy=False)


def _widen(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    registered = array.dtype.isbuiltin == 2  # by ml_dtypes; 0 is any whose byte order is named
    if not registered and array.dtype != np.float16:
        return array
    narrow_int = "int" in array.dtype.name
    return array.astype(np.int32 if narrow_int else np.float32)


def _convert(name: str, array: np.ndarray, dtype: DType) -> np.ndarray:
    if name == "bitcast":
        return array.view(dtype.np)
    if array.dtype.kind == "O" and dtype.kind != "string":
        array = _map_text(_parse_integer if dtype.is_integer else _parse_float, array, None)
    wide = _widen(array)
    if dtype.kind == "string":
        return _map_text(_number_text, wide, object)
    if dtype is boolean:
        return wide != 0
    if dtype.is_integer:
        return _to_integer(wide, dtype)
    if dtype.bits >= 32:
        return wide.astype(dtype.np)
    if wide.dtype.kind in "iub":
        wide = wide.astype(np.float32)
    if name == "cast_sat":
        top = dtype.largest_finite
        wide = np.where(np.isnan(wide), wide, np.clip(wide, -top, top))
    return wide.astype(dtype.np)


def _map_text(function: Callable, array: np.ndarray, kind: type | None) -> np.ndarray:
    items = [function(item) for item in array.reshape(-1).tolist()]
    return np.array(items, kind or (np.int64 if not items else None)).reshape(array.shape)


def _number_text(value: float) -> str:
    """A number as text, with the eight significant digits that ONNX Runtime writes."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    return f"{float(value):.8g}".upper() if math.isinf(value) else f"{float(value):.8g}"


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _parse_float(text)
    if not math.isfinite(number):
        raise ModelError(f"{text!r} is no integer")
    return int(number)


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ModelError(f"{text!r} is no number") from error


def _to_integer(wide: np.ndarray, dtype: DType) -> np.ndarray:
    if wide.dtype.kind == "f":
        unsigned = dtype.kind == "uint" and dtype.bits >= 32
        target = np.dtype(f"{'u' if unsigned else ''}int{64 if dtype.bits == 64 else 32}")
        info = np.iinfo(target)
        whole = np.trunc(np.nan_to_num(wide.astype(np.float64), posinf=np.inf, neginf=-np.inf))
        inside = np.clip(whole, float(info.min), np.nextafter(float(info.max) + 1, 0))
        exact = np.where(whole >= float(info.max), info.max, inside.astype(target))
        wide = exact.astype(target)
    if dtype.bits < 8:  # wrap to the logical width before narrowing the storage
        wide = wide.astype(np.int64) & ((1 << dtype.bits) - 1)
        if dtype.kind == "int":
            wide = np.where(wide > dtype.max, wide - (1 << dtype.bits), wide)
    return wide.astype(dtype.np)
