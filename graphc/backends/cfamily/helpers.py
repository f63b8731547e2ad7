"""The C helper functions that scalar operations need, by name, each with those it uses itself.

A name is an operation and an element type (`floordiv_i32`, `min_f32`), a conversion
(`i32_of_f64`), or one of the conversions of narrow types. Everything here does exactly what
scalar/ops.py says: integers wrap, dividing by zero gives 0, NaN is passed on.
"""

from __future__ import annotations

from string import Template

from graphc.backends.cfamily import narrow
from graphc.errors import InternalError
from graphc.ir import dtypes
from graphc.ir.dtypes import DType

_INTEGER = {
    "add": "($T a, $T b) { return ($T)(($U)a + ($U)b); }",
    "sub": "($T a, $T b) { return ($T)(($U)a - ($U)b); }",
    "mul": "($T a, $T b) { return ($T)(($UU)a * ($UU)b); }",
    "neg": "($T a) { return ($T)(($U)0 - ($U)a); }",
    "min": "($T a, $T b) { return a < b ? a : b; }",
    "max": "($T a, $T b) { return a > b ? a : b; }",
    "shl": """($T a, $T b)
{
    return (uint64_t)b >= $BITSu ? ($T)0 : ($T)(($U)a << b);
}""",
    "pow": """($T a, $T b)
{
    $U result = 1, base = ($U)a, rest = ($U)b;
$NEGATIVE    for (; rest != 0; rest >>= 1) {
        if ((rest & 1) != 0) {
            result = ($U)(result * ($UU)base);
        }
        base = ($U)(base * ($UU)base);
    }
    return ($T)result;
}""",
}

_SIGNED = {
    "abs": "($T a) { return a < 0 ? ($T)(($U)0 - ($U)a) : a; }",
    "sign": "($T a) { return ($T)((a > 0) - (a < 0)); }",
    "div": """($T a, $T b)
{
    return b == 0 ? ($T)0 : b == -1 ? ($T)(($U)0 - ($U)a) : ($T)(a / b);
}""",
    "rem": "($T a, $T b) { return b == 0 || b == -1 ? ($T)0 : ($T)(a % b); }",
    "floordiv": """($T a, $T b)
{
    if (b == 0 || b == -1) {
        return b == 0 ? ($T)0 : ($T)(($U)0 - ($U)a);
    }
    return ($T)(a / b - (a % b != 0 && (a < 0) != (b < 0)));
}""",
    "mod": """($T a, $T b)
{
    if (b == 0 || b == -1) {
        return 0;
    }
    const $T rest = ($T)(a % b);
    return rest != 0 && (rest < 0) != (b < 0) ? ($T)(rest + b) : rest;
}""",
    "shr": """($T a, $T b)
{
    return (uint64_t)b >= $BITSu ? ($T)(a < 0 ? -1 : 0) : ($T)(a >> b);
}""",
}

_UNSIGNED = {
    "abs": "($T a) { return a; }",
    "sign": "($T a) { return ($T)(a != 0); }",
    "div": "($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a / b); }",
    "rem": "($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a % b); }",
    "floordiv": "($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a / b); }",
    "mod": "($T a, $T b) { return b == 0 ? ($T)0 : ($T)(a % b); }",
    "shr": "($T a, $T b) { return (uint64_t)b >= $BITSu ? ($T)0 : ($T)(a >> b); }",
}

_NEGATIVE_POWER = """\
    if (b < 0) {
        return ($T)(a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
    }
"""

_FLOAT = {
    "min": "($T a, $T b) { return a != a || a < b ? a : b; }",
    "max": "($T a, $T b) { return a != a || a > b ? a : b; }",
    "sign": "($T a) { return a != a ? a : ($T)((a > 0) - (a < 0)); }",
    "floordiv": """($T a, $T b)
{
    const $T rest = fmod$F(a, b);
    $T quotient = (a - rest) / b;
    if (b == 0) {
        return a / b;
    }
    if (rest != 0 && (b < 0) != (rest < 0)) {
        quotient -= 1;
    }
    if (quotient == 0) {
        return copysign$F(($T)0, a / b);
    }
    const $T whole = floor$F(quotient);
    return quotient - whole > ($T)0.5 ? whole + 1 : whole;
}""",
    "mod": """($T a, $T b)
{
    const $T rest = fmod$F(a, b);
    if (b == 0) {
        return rest;
    }
    if (rest == 0) {
        return copysign$F(($T)0, b);
    }
    return (b < 0) != (rest < 0) ? rest + b : rest;
}""",
}

_TO_SIGNED = """static inline $T ${D}_of_$S($C x)
{
    if (x != x) {
        return 0;
    }
    return x >= $LIMIT ? $MAX : x <= -$LIMIT ? $MIN : ($T)x;
}"""

_TO_UNSIGNED = """static inline $T ${D}_of_$S($C x)
{
    return x >= $LIMIT ? $MAX : x > 0 ? ($T)x : ($T)0;
}"""

_TEST = """\
static inline int ${NAME}_$D($T x)
{
    return $NAME(x) != 0;
}"""  # by itself, gcc's isnan loses the type of a comparison, of which -Wconversion warns

_PLAIN: dict[str, tuple[str, tuple[str, ...]]] = {
    "bits_of_f32": (narrow.BITS, ()),
    "f32_of_bits": (narrow.FROM_BITS, ()),
    "encode_narrow": (narrow.ENCODE, ("bits_of_f32",)),
    "decode_narrow": (narrow.DECODE, ("f32_of_bits",)),
    "f32_odd": (narrow.ODD, ("bits_of_f32", "f32_of_bits")),
}

_BITCAST = """static inline $T bitcast_${S}_$D($C x)
{
    union { $C from; $T to; } u;
    u.from = x;
    return u.to;
}"""


def c_type(dtype: DType) -> str:
    """The C type of a number C has itself."""
    names = {"f32": "float", "f64": "double", "bool": "uint8_t"}
    if dtype.is_integer:
        return f"{'u' if dtype.kind == 'uint' else ''}int{max(dtype.bits, 8)}_t"
    return names[dtype.name]


def helper(name: str) -> tuple[str, tuple[str, ...]]:
    """The C text of a helper, and the names of those it uses."""
    if name in _PLAIN:
        return _PLAIN[name]
    first, _, second = name.partition("_")
    if first == "bitcast":
        source, _, target = second.partition("_")
        return _bitcast(dtypes.of(source), dtypes.of(target)), ()
    if second.startswith("of_"):
        return _to_integer(dtypes.of(first), dtypes.of(second[3:])), ()
    dtype = dtypes.of(second)
    if first in ("isnan", "isinf"):
        return Template(_TEST).substitute(NAME=first, T=c_type(dtype), D=dtype.name), ()
    if first in ("load", "store", "round", "saturate", "wrap"):
        return narrow.narrow_helper(first, dtype)
    return _arithmetic(first, dtype), ()


def _arithmetic(op: str, dtype: DType) -> str:
    signed = dtype.kind == "int"
    tables = (_INTEGER, _SIGNED if signed else _UNSIGNED) if dtype.is_integer else (_FLOAT,)
    text = next((table[op] for table in tables if op in table), None)
    if text is None:
        raise InternalError(f"no helper for {op} of {dtype}")
    unsigned = f"uint{dtype.bits}_t" if dtype.is_integer else ""
    text = text.replace("$NEGATIVE", _NEGATIVE_POWER if signed else "")
    filled = Template(text).safe_substitute(
        T=c_type(dtype), U=unsigned, UU="uint32_t" if dtype.bits < 64 else "uint64_t",
        F="f" if dtype is dtypes.f32 else "",
    )  # fmt: skip
    filled = filled.replace("$BITSu", f"{dtype.bits}u")
    start = f"static inline {c_type(dtype)} {op}_{dtype}"
    if "\n" not in filled:
        signature, _, rest = filled.partition(" { ")
        filled = f"{signature}\n{{\n    {rest.removesuffix(' }')}\n}}"
    return start + filled


def _to_integer(dtype: DType, source: DType) -> str:
    bits = dtype.bits - (dtype.kind == "int")
    prefix = "INT" if dtype.kind == "int" else "UINT"
    return Template(_TO_SIGNED if dtype.kind == "int" else _TO_UNSIGNED).substitute(
        T=c_type(dtype), D=dtype.name, S=source.name, C=c_type(source),
        LIMIT=f"0x1p{bits}{'f' if source is dtypes.f32 else ''}",
        MAX=f"{prefix}{dtype.bits}_MAX", MIN=f"{prefix}{dtype.bits}_MIN",
    )  # fmt: skip


def _bitcast(source: DType, target: DType) -> str:
    return Template(_BITCAST).substitute(
        S=source.name, D=target.name, C=c_type(source), T=c_type(target)
    )


def helper_text(names: set[str]) -> str:
    """The C text of helpers and all they use, each before its users, in a fixed order."""
    done: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in done:
            return
        text, uses = helper(name)
        for other in uses:
            visit(other)
        done[name] = text

    for name in sorted(names):
        visit(name)
    return "".join(text + "\n\n" for text in done.values())
