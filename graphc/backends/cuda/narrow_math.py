"""Exponentials and quotients of narrow floats, by the approximate instructions of GPUs.

expf and division of float32 take eight and ten instructions, which bound a softmax of f16 where
memory is fast. `ex2.approx` and `rcp.approx` are one each, good to 2**-22 or so, and results are
then rounded to 11 or 8 digits. A quotient of two numbers of n digits is never a half of the last
digit, and farther than 2**-2n from one; so it is rounded rightly but for a few pairs of f16, of
which one in the last digit is off. Numbers of f16 are far from the ends of float32; a divisor of
bf16 that is not is scaled. Operations without such instructions are as in C.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.cfamily.spell import Speller, Text
from graphc.ir.dtypes import bf16, f16
from graphc.ir.expr import Call

_EXP = """\
[[maybe_unused]] static __device__ inline float exp_{dtype}(float x)
{{
#ifdef __CUDA_ARCH__
    float result;
    asm("{instruction} %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
    return result;
#else
    return expf(x);
#endif
}}
"""
_DIV = """\
[[maybe_unused]] static __device__ inline float div_{dtype}(float a, float b)
{{
#ifdef __CUDA_ARCH__
    float inverse;
{body}
#else
    return a / b;
#endif
}}
"""
_NEAR = """\
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    return a * inverse;"""
_SCALED = """\
    const float size = fabsf(b);
    const float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b * scale));
    return a * inverse * scale;"""
FUNCTIONS = {
    "exp_f16": _EXP.format(dtype="f16", instruction="ex2.approx.ftz.f32"),
    "exp_bf16": _EXP.format(dtype="bf16", instruction="ex2.approx.f32"),
    "div_f16": _DIV.format(dtype="f16", body=_NEAR),
    "div_bf16": _DIV.format(dtype="bf16", body=_SCALED),
}


class DeviceSpeller(Speller):
    """Spells operations of narrow floats with the functions above."""

    def float_op(self, node: Call, args: Sequence[Text]) -> Text:
        if node.op.name in ("exp", "div") and node.dtype in (f16, bf16):
            return self.rounded(self.call(f"{node.op.name}_{node.dtype}", *args), node.dtype)
        return super().float_op(node, args)
