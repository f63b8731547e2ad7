"""The vector functions of arm_mve.h that kernels call, for compilers that do not have them.

With the M-profile Vector Extension (Helium) the header defines them. Without, those that a file
uses are defined here, lane by lane, with the same meaning (Arm, MVE Intrinsics; the names are those
of the Arm C Language Extensions), so that the same kernels run on every machine. Integers wrap. A
predicate has a bit per byte of a vector: four for a lane of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable

TYPES = {
    "int8x16_t": ("int8_t", 16),
    "uint8x16_t": ("uint8_t", 16),
    "int32x4_t": ("int32_t", 4),
    "uint32x4_t": ("uint32_t", 4),
    "float32x4_t": ("float", 4),
}
INTEGERS, INTEGERS_AND_FLOATS = 1, 3  # values of __ARM_FEATURE_MVE

WRAPPED = "(int32_t)((uint32_t){} {} (uint32_t){})"
LANE = "((uint32_t)m >> {bits} * i & 1u)"
_A, _B, _S = "a.lane[i]", "b.lane[i]", "s"
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _wrapped(a: str, symbol: str, b: str) -> str:
    return WRAPPED.format(a, symbol, b)


def _memory() -> dict[str, tuple[str, str, str]]:
    """Loads and stores, with all lanes or with those of a predicate (others are 0, or stay)."""
    table = {}
    for size, letter, vector, element in (
        ("b", "s8", "int8x16_t", "int8_t"), ("b", "u8", "uint8x16_t", "uint8_t"),
        ("b", "s32", "int32x4_t", "int8_t"), ("b", "u32", "uint32x4_t", "uint8_t"),
        ("w", "s32", "int32x4_t", "int32_t"), ("w", "f32", "float32x4_t", "float"),
    ):  # fmt: skip
        lane = LANE.format(bits=16 // TYPES[vector][1])
        table[f"vldr{size}q_{letter}"] = (vector, f"const {element} *p", "p[i]")
        table[f"vldr{size}q_z_{letter}"] = (
            vector, f"const {element} *p, mve_pred16_t m", f"{lane} ? p[i] : 0",
        )  # fmt: skip
        narrow = _A if TYPES[vector][0] == element else f"({element}){_A}"
        table[f"vstr{size}q_{letter}"] = ("", f"{element} *p, {vector} a", f"p[i] = {narrow}")
        table[f"vstr{size}q_p_{letter}"] = (
            "", f"{element} *p, {vector} a, mve_pred16_t m",
            f"if ({lane}) {{\n            p[i] = {narrow};\n        }}",
        )  # fmt: skip
    return table


def _arithmetic() -> dict[str, tuple[str, str, str]]:
    """Operations lane by lane: of two vectors, and (_n) of a vector and a number."""
    table = {}
    for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*")):
        for suffix, operand, other in (("q", "int32x4_t b", _B), ("q_n", "int32_t s", _S)):
            table[f"v{name}{suffix}_s32"] = (
                "int32x4_t", f"int32x4_t a, {operand}", _wrapped(_A, symbol, other),
            )  # fmt: skip
        for suffix, operand, other in (("q", "float32x4_t b", _B), ("q_n", "float s", _S)):
            table[f"v{name}{suffix}_f32"] = (
                "float32x4_t", f"float32x4_t a, {operand}", f"{_A} {symbol} {other}",
            )  # fmt: skip
    for suffix, operand, other in (("q", "float32x4_t c", "c.lane[i]"), ("q_n", "float s", _S)):
        table[f"vfma{suffix}_f32"] = (
            "float32x4_t", f"float32x4_t a, float32x4_t b, {operand}", f"{_A} + {_B} * {other}",
        )  # fmt: skip
    two = "int32x4_t a, int32x4_t b"
    product = _wrapped(_B, "*", _S)
    table["vmlaq_n_s32"] = ("int32x4_t", f"{two}, int32_t s", _wrapped(_A, "+", f"{product}"))
    table["vmulhq_s32"] = ("int32x4_t", two, f"(int32_t)((int64_t){_A} * {_B} >> 32)")
    table["vrmulhq_s32"] = (
        "int32x4_t",
        two,
        f"(int32_t)(((int64_t){_A} * {_B} + INT64_C(2147483648)) >> 32)",
    )
    table["vminq_s32"] = ("int32x4_t", two, f"{_A} < {_B} ? {_A} : {_B}")
    table["vmaxq_s32"] = ("int32x4_t", two, f"{_A} > {_B} ? {_A} : {_B}")
    table["vandq_s32"] = ("int32x4_t", two, f"{_A} & {_B}")
    table["vbicq_s32"] = ("int32x4_t", two, f"{_A} & ~{_B}")
    table["vnegq_s32"] = ("int32x4_t", "int32x4_t a", _wrapped("0", "-", _A))
    table["vorrq_s32"] = ("int32x4_t", two, f"{_A} | {_B}")
    table["veorq_s8"] = ("int8x16_t", "int8x16_t a, int8x16_t b", f"(int8_t)({_A} ^ {_B})")
    table["vshrq_n_s32"] = ("int32x4_t", "int32x4_t a, int n", f"{_A} >> (n < 32 ? n : 31)")
    table["vshlq_n_s32"] = ("int32x4_t", "int32x4_t a, int n", f"(int32_t)((uint32_t){_A} << n)")
    rounded = "({T})(((int64_t)a.lane[i] + ((int64_t)1 << (n - 1))) >> n)"
    table["vrshrq_n_s32"] = ("int32x4_t", "int32x4_t a, int n", rounded.format(T="int32_t"))
    table["vrshrq_n_u32"] = ("uint32x4_t", "uint32x4_t a, int n", rounded.format(T="uint32_t"))
    return table


def _others() -> dict[str, tuple[str, str, str]]:
    """Copies of a number, conversions, choices by predicate."""
    table = {}
    for letter, vector in (("s8", "int8x16_t"), ("s32", "int32x4_t"), ("f32", "float32x4_t")):
        table[f"vdupq_n_{letter}"] = (vector, f"{TYPES[vector][0]} s", _S)
    for letter, vector in (("s32", "int32x4_t"), ("f32", "float32x4_t")):
        lane = LANE.format(bits=4)
        two = f"{vector} a, {vector} b, mve_pred16_t m"
        table[f"vpselq_{letter}"] = (vector, two, f"{lane} ? {_A} : {_B}")
    table["vcvtq_f32_s32"] = ("float32x4_t", "int32x4_t a", f"(float){_A}")
    table["vreinterpretq_s32_u32"] = ("int32x4_t", "uint32x4_t a", f"(int32_t){_A}")
    table["vreinterpretq_u32_s32"] = ("uint32x4_t", "int32x4_t a", f"(uint32_t){_A}")
    table["vreinterpretq_s8_u8"] = ("int8x16_t", "uint8x16_t a", f"(int8_t){_A}")
    return table


def _folds() -> dict[str, tuple[str, str, str, str]]:
    """Functions with a number or predicate as result: its type, parameters and start, and the
    part of one byte."""
    table = {
        "vctp8q": ("mve_pred16_t", "uint32_t n", "0", "y |= (uint32_t)(i < n) << i"),
        "vctp32q": ("mve_pred16_t", "uint32_t n", "0", "y |= (uint32_t)(i / 4 < n) << i"),
    }  # fmt: skip
    for name, symbol in _COMPARED.items():
        for letter, vector in (("s32", "int32x4_t"), ("f32", "float32x4_t")):
            part = f"y |= (a.lane[i / 4] {symbol} {{}} ? 1u : 0u) << i"
            number = TYPES[vector][0]
            table[f"vcmp{name}q_{letter}"] = (
                "mve_pred16_t", f"{vector} a, {vector} b", "0", part.format("b.lane[i / 4]"),
            )  # fmt: skip
            table[f"vcmp{name}q_n_{letter}"] = (
                "mve_pred16_t", f"{vector} a, {number} s", "0", part.format(_S),
            )  # fmt: skip
    return table


LANEWISE = {**_memory(), **_arithmetic(), **_others()}
FOLDS = _folds()
NAMES = frozenset((*LANEWISE, *FOLDS))

HEADER = """\
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & {level}) == {level}
#include <arm_mve.h>
#else
/* What arm_mve.h would define. */
typedef uint16_t mve_pred16_t;
"""
KEPT = """\
/* What was stored at p is used: gcc takes a store of some lanes for one of all of them, and would
 * drop those before it. */
#if defined(__ARM_FEATURE_MVE) && defined(__GNUC__) && !defined(__clang__)
#define KEPT(p) __asm__ volatile("" : : "m"(*(const char (*)[])(p)))
#else
#define KEPT(p) ((void)(p))
#endif
"""
FUNCTION = """\
static {result} {name}({params})
{{
{before}    for (uint32_t i = 0; i < {lanes}; ++i) {{
        {part}
    }}
{after}}}
"""


def definitions(names: Iterable[str]) -> str:
    """The include and, for want of it, definitions of the functions named; with stores of some
    lanes KEPT, which comes before each."""
    used = sorted(names)
    texts = [_function(name) for name in used]
    level = INTEGERS_AND_FLOATS if any(n.endswith("f32") for n in used) else INTEGERS
    types = [
        f"typedef struct {{\n    {element} lane[{lanes}];\n}} {vector};\n"
        for vector, (element, lanes) in TYPES.items()
        if any(vector in text for text in texts)
    ]
    kept = KEPT if any(n.startswith("vstr") and "q_p_" in n for n in used) else ""
    return HEADER.format(level=level) + "\n".join([*types, *texts]) + "#endif\n" + kept


def _function(name: str) -> str:
    if name in FOLDS:
        result, params, start, part = FOLDS[name]
        wide = f"    uint32_t y = {f'(uint32_t){start}' if start == _S else '0'};\n"
        return FUNCTION.format(
            result=result, name=name, params=params, before=wide, lanes=16, part=f"{part};",
            after=f"    return ({result})y;\n",
        )  # fmt: skip
    result, params, part = LANEWISE[name]
    lanes = next(
        n for v, (_, n) in TYPES.items() if v in (result, *params.replace(",", "").split())
    )
    before, after = (f"    {result} y;\n", "    return y;\n") if result else ("", "")
    part = f"y.lane[i] = {part}" if result else part
    part += "" if part.endswith("}") else ";"
    return FUNCTION.format(
        result=result or "void", name=name, params=params, before=before, lanes=lanes, part=part,
        after=after,
    )  # fmt: skip
