"""Code that calls nothing of libm: floor, ceil, trunc and sqrt of float32 in C of our own.

exp, log, tanh, erf and round are expressions by then (see model.py). Other functions cannot be
written without libm and are refused. `sqrt` is digit by digit in integers, so that it is rounded
correctly, where the processor has no instruction for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from graphc.backends.cfamily.spell import MATH, Speller, Text, function
from graphc.errors import UnsupportedError
from graphc.ir.dtypes import f32
from graphc.ir.expr import Call

WHOLE = """\
/* x without its fraction, as floats hold it; from 2^23 on there is none. */
static inline float trunc_own(float x)
{
    float whole;
    if (!(x > -8388608.0f && x < 8388608.0f)) {
        return x;
    }
    whole = (float)(int32_t)x;
    return whole == 0.0f ? x * 0.0f : whole;
}
"""
FLOOR = """\
static inline float floor_own(float x)
{
    const float whole = trunc_own(x);
    return whole > x ? whole - 1.0f : whole;
}
"""
CEIL = """\
static inline float ceil_own(float x)
{
    const float whole = trunc_own(x);
    return whole < x ? (whole == -1.0f ? -0.0f : whole + 1.0f) : whole;
}
"""
SQRT = """\
/* The square root, rounded to nearest. */
static inline float sqrt_own(float x)
{
#if defined(__ARM_FP) && (__ARM_FP & 4) && defined(__GNUC__)
    float y;
    __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
    return y;
#else
    union { float value; uint32_t bits; } u;
    uint32_t rest, root = 0, twice = 0, digit;
    int32_t exponent;
    u.value = x;
    if (!(x > 0.0f) || u.bits >= 0x7f800000u) {
        return x < 0.0f ? (x - x) / 0.0f : x;
    }
    exponent = (int32_t)(u.bits >> 23);
    rest = u.bits & 0x7fffffu;
    if (exponent == 0) {
        for (exponent = 1; (rest & 0x800000u) == 0u; --exponent) {
            rest <<= 1;
        }
    }
    rest = (rest | 0x800000u) << (1 + ((exponent + 1) & 1));
    for (digit = 0x1000000u; digit != 0u; digit >>= 1) {
        const uint32_t trial = twice + digit;
        if (trial <= rest) {
            twice = trial + digit;
            rest -= trial;
            root += digit;
        }
        rest <<= 1;
    }
    root += rest != 0u ? root & 1u : 0u;
    exponent = (exponent + 127 - ((exponent + 127) & 1)) / 2;
    u.bits = (root >> 1) + ((uint32_t)(exponent - 1) << 23);
    return u.value;
#endif
}
"""
OWN = {"trunc": (WHOLE,), "floor": (WHOLE, FLOOR), "ceil": (WHOLE, CEIL), "sqrt": (SQRT,)}
CALLS = re.compile(
    rf"\b(?:{'|'.join(sorted({*MATH.values(), 'copysign', 'remainder'} - {'fabs'}))})f?\("
)


class OwnSpeller(Speller):
    """Spells float functions without libm; `own` collects those it spells itself."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.own: set[str] = set()

    def float_op(self, node: Call, args: Sequence[Text]) -> Text:
        name = node.op.name
        if name not in OWN or node.dtype.compute is not f32:
            return super().float_op(node, args)
        self.own.add(name)
        result = function(f"{name}_own", *args)
        return result if node.dtype is f32 else self.call(f"round_{node.dtype}", result)

    def text(self) -> str:
        """The functions it spells itself."""
        parts = dict.fromkeys(part for name in sorted(self.own) for part in OWN[name])
        return "".join(part + "\n" for part in parts)


def check_no_calls(text: str) -> None:
    """UnsupportedError if C text calls libm."""
    calls = sorted({call.rstrip("(") for call in CALLS.findall(text)})
    if calls:
        raise UnsupportedError(
            f"--no-libm: {', '.join(calls)} cannot be computed without libm; leave it out, or "
            "replace the operators that need them"
        )
