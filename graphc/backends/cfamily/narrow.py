"""C helpers for element types that C lacks: float16 to float4, e8m0, and integers below a byte.

In memory such an element is its bits in a uint16_t or uint8_t, as ml_dtypes keeps it; in registers
a narrow float is a float that the type can hold, a narrow integer an int8_t or uint8_t.
`load_T` and `store_T` convert, `round_T` and `wrap_T` bring a float or an int into the type.
Rounding is to nearest even from float, as ml_dtypes does it (float16 from double: in one step;
e8m0: halves up, and up from 2**-127 on).
"""

from __future__ import annotations

from graphc.ir import dtypes
from graphc.ir.dtypes import DType
from graphc.ir.scalar.narrow import FORMATS, Format
from graphc.ir.text.literals import float_text

BITS = """\
static inline uint32_t bits_of_f32(float x)
{
    union { float value; uint32_t bits; } u;
    u.value = x;
    return u.bits;
}"""

FROM_BITS = """\
static inline float f32_of_bits(uint32_t bits)
{
    union { uint32_t bits; float value; } u;
    u.bits = bits;
    return u.value;
}"""

ENCODE = """\
/* The code of |x| in a float type of so many mantissa bits, not above `over`; x is not NaN. */
static inline uint32_t encode_narrow(float x, int mantissa, int bias, uint32_t top, uint32_t over)
{
    const uint32_t bits = bits_of_f32(x) & 0x7fffffffu;
    const int subnormal = bits < 0x800000u;
    const int exponent = subnormal ? -126 : (int)(bits >> 23) - 127;
    const uint32_t significand = (bits & 0x7fffffu) | (subnormal ? 0u : 0x800000u);
    const int above = exponent - (1 - bias); /* the smallest normal exponent of the type */
    const int drop = 23 - mantissa - (above < 0 ? above : 0);
    if (drop > 24) {
        return 0;
    }
    uint32_t code = (above > 0 ? (uint32_t)above << mantissa : 0u) + (significand >> drop);
    const uint32_t rest = significand & ((1u << drop) - 1u), half = 1u << (drop - 1);
    code += rest > half || (rest == half && (code & 1u) != 0u) ? 1u : 0u;
    return code > top ? over : code;
}"""

DECODE = """\
/* The value of a code without its sign. `tiny` is the value of code 1. */
static inline float decode_narrow(uint32_t code, int mantissa, int bias, float tiny)
{
    const uint32_t exponent = code >> mantissa;
    if (exponent == 0u) {
        return (float)code * tiny;
    }
    return f32_of_bits((code << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23));
}"""

ODD = """\
/* x as float rounded to odd: rounding the result to fewer bits is rounding x directly. */
static inline float f32_odd(double x)
{
    const float nearest = (float)x;
    uint32_t bits = bits_of_f32(nearest);
    if (x != x || (double)nearest == x || nearest - nearest != 0.0f) {
        return nearest;
    }
    if ((x < 0.0 ? -(double)nearest : (double)nearest) > (x < 0.0 ? -x : x)) {
        bits -= 1u;
    }
    return f32_of_bits(bits | 1u);
}"""

LOAD_BF16 = """\
static inline float load_bf16(uint16_t bits)
{
    return f32_of_bits((uint32_t)bits << 16);
}"""

LOAD_E8M0 = """\
static inline float load_f8e8m0(uint8_t bits)
{
    return bits == 255u ? NAN : bits == 0u ? 0x1p-127f : f32_of_bits((uint32_t)bits << 23);
}"""

STORE_E8M0 = """\
static inline uint8_t store_f8e8m0(float x)
{
    const uint32_t bits = bits_of_f32(x), exponent = bits >> 23, rest = bits & 0x7fffffu;
    if (!(x > 0.0f && x - x == 0.0f)) {
        return 255;
    }
    return (uint8_t)(exponent + (rest > 0x400000u - (exponent != 0u ? 1u : 0u) ? 1u : 0u));
}"""

ROUND = """\
static inline float round_{d}(float x)
{{
    return load_{d}(store_{d}(x));
}}"""

SATURATE = """\
static inline float saturate_{d}(float x)
{{
    return round_{d}(x > {top} ? {top} : x < -{top} ? -{top} : x);
}}"""

STORE = """\
static inline {c} store_{d}(float x)
{{
    const uint32_t sign = bits_of_f32(x) >> 31 << {shift};
    if (x != x) {{
        return ({c})({nan});
    }}
    const uint32_t code = encode_narrow(x, {mantissa}, {bias}, {top}u, {over}u);
    return ({c})({signed});
}}"""

LOAD = """\
static inline float load_{d}({c} bits)
{{
{native}    const uint32_t code = bits & {mask}u;
    float value = decode_narrow(code, {mantissa}, {bias}, {tiny});
{special}    return (bits & {sign}u) != 0u ? -value : value;
{end}}}"""

NATIVE_F16 = """\
#ifdef __ARM_FP16_FORMAT_IEEE
    union { uint16_t bits; __fp16 value; } u;
    u.bits = bits;
    return (float)u.value;
#else
"""

WRAP_SIGNED = """\
static inline int8_t wrap_{d}(int x)
{{
    return (int8_t)((x & {mask}) - ((x & {half}) << 1));
}}"""

WRAP_UNSIGNED = """\
static inline uint8_t wrap_{d}(int x)
{{
    return (uint8_t)(x & {mask});
}}"""


def has_negative_zero(dtype: DType) -> bool:
    """Whether negating a value of this narrow float gives another of it."""
    return dtype in FORMATS and FORMATS[dtype].kind != "fnuz"


def narrow_helper(kind: str, dtype: DType) -> tuple[str, tuple[str, ...]]:
    """The C text of `load_T`, `store_T`, `round_T`, `saturate_T` or `wrap_T`, and what it uses."""
    name = dtype.name
    if kind == "round":
        return ROUND.format(d=name), (f"load_{name}", f"store_{name}")
    if kind == "saturate":
        top = float_text(dtype.largest_finite, dtypes.f32) + "f"
        return SATURATE.format(d=name, top=top), (f"round_{name}",)
    if dtype.is_integer:
        return _integer(dtype)
    if name == "f8e8m0":
        return (LOAD_E8M0, ("f32_of_bits",)) if kind == "load" else (STORE_E8M0, ("bits_of_f32",))
    if kind == "store":
        return _store(dtype, FORMATS[dtype]), ("bits_of_f32", "encode_narrow")
    if name == "bf16":
        return LOAD_BF16, ("f32_of_bits",)
    return _load(dtype, FORMATS[dtype]), ("decode_narrow",)


def _integer(dtype: DType) -> tuple[str, tuple[str, ...]]:
    mask, half = (1 << dtype.bits) - 1, 1 << (dtype.bits - 1)
    template = WRAP_SIGNED if dtype.kind == "int" else WRAP_UNSIGNED
    return template.format(d=dtype.name, mask=mask, half=half), ()


def _store(dtype: DType, format: Format) -> str:
    if format.kind == "fnuz":
        signed, nan = "code != 0u ? sign | code : 0u", f"{format.nan}u"
    elif format.kind == "finite":
        signed, nan = "sign | code", f"sign ^ {1 << (dtype.bits - 1)}u"
    else:
        signed, nan = "sign | code", f"sign | {format.nan}u"
    return STORE.format(
        c=f"uint{dtype.size * 8}_t", d=dtype.name, shift=dtype.bits - 1, nan=nan, signed=signed,
        mantissa=format.mantissa, bias=format.bias, top=format.top, over=format.overflow,
    )  # fmt: skip


def _load(dtype: DType, format: Format) -> str:
    sign = 1 << (dtype.bits - 1)
    if format.kind == "fnuz":
        special = f"    if (bits == {sign}u) {{\n        return NAN;\n    }}\n"
    elif format.kind == "finite":
        special = ""
    elif format.kind == "fn":
        special = f"    if (code == {format.nan}u) {{\n        value = NAN;\n    }}\n"
    else:
        special = (
            f"    if (code > {format.top}u) {{\n"
            f"        value = code == {format.overflow}u ? INFINITY : NAN;\n    }}\n"
        )
    native, end = (NATIVE_F16, "#endif\n") if dtype is dtypes.f16 else ("", "")
    return LOAD.format(
        c=f"uint{dtype.size * 8}_t", d=dtype.name, mask=sign - 1, sign=sign,
        mantissa=format.mantissa, bias=format.bias, special=special, native=native, end=end,
        tiny=f"0x1p{1 - format.bias - format.mantissa}f",
    )  # fmt: skip
