"""Operations of PTX that each lane does by itself: what each is in C, defined once.

`OPERATIONS` maps the name of an operation (its opcode without what makes no difference here) to the
types of its result and operands, and the C expression of them (`a`, `b`, `c`). The C functions that
the machine calls are made of it. Comparisons and other predicates are `pred`, a bit of a word per
lane.
"""

from __future__ import annotations

from dataclasses import dataclass

C_TYPES = {
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "f16": "uint16_t", "bf16": "uint16_t",
    "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "f32": "float", "f16x2": "uint32_t",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f64": "double", "bf16x2": "uint32_t",
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "tf32": "uint32_t",
    "u16x2": "uint32_t", "s16x2": "uint32_t",
}  # fmt: skip
BITS = {
    name: 64 if "64" in name else 8 if name.endswith("8") else 16 if name[-2:] == "16" else 32
    for name in C_TYPES
}
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
ROUNDINGS = ("rn", "rz", "rm", "rp")
WHOLE_ROUNDINGS = ("rni", "rzi", "rmi", "rpi")
INTEGERS = tuple(f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "us")
VALUES = {"f16": "from_f16(a)", "bf16": "from_bf16(a)", "f32": "a", "f64": "a"}  # of floats
COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """The types of the result and of the operands, and the result as an expression of C."""

    result: str
    operands: tuple[str, ...]
    text: str


OPERATIONS: dict[str, Operation] = {}


def _define(name: str, result: str, operands: tuple[str, ...], text: str) -> None:
    OPERATIONS[name] = Operation(result, operands, text)


def _integers() -> None:
    for bits in (16, 32, 64):
        for sign in "us":
            t = f"{sign}{bits}"
            c = C_TYPES[t]
            for name, sign_of in (("add", "+"), ("sub", "-"), ("mul.lo", "*")):
                _define(f"{name}.{t}", t, (t, t), f"({c})(a {sign_of} b)")
            _define(f"mad.lo.{t}", t, (t, t, t), f"({c})(a * b + c)")
            high = "__int128" if bits == 64 else "int64_t"
            high = "unsigned __int128" if t == "u64" else high
            _define(f"mul.hi.{t}", t, (t, t), f"({c})((({high})a * b) >> {bits})")
            _define(f"mad.hi.{t}", t, (t, t, t), f"({c})(((({high})a * b) >> {bits}) + c)")
            _define(f"div.{t}", t, (t, t), f"divide_{t}(a, b)")
            _define(f"rem.{t}", t, (t, t), f"remainder_{t}(a, b)")
            _define(f"min.{t}", t, (t, t), "a < b ? a : b")
            _define(f"max.{t}", t, (t, t), "a > b ? a : b")
            _define(f"shr.{t}", t, (t, "u32"), _shifted_right(sign, bits, c))
            if t in WIDE:
                wide = C_TYPES[WIDE[t]]
                _define(f"mul.wide.{t}", WIDE[t], (t, t), f"({wide})a * b")
                _define(f"mad.wide.{t}", WIDE[t], (t, t, WIDE[t]), f"({wide})a * b + c")
            for comparison, symbol in COMPARISONS.items():
                _define(f"setp.{comparison}.{t}", "pred", (t, t), f"a {symbol} b")
        s, b = f"s{bits}", f"b{bits}"
        c = C_TYPES[b]
        _define(f"abs.{s}", s, (s,), "a < 0 ? -a : a")
        _define(f"neg.{s}", s, (s,), "-a")
        _define(f"not.{b}", b, (b,), f"({c})~a")
        _define(f"cnot.{b}", b, (b,), f"({c})(a == 0)")
        for name, symbol in (("and", "&"), ("or", "|"), ("xor", "^")):
            _define(f"{name}.{b}", b, (b, b), f"({c})(a {symbol} b)")
        _define(f"shl.{b}", b, (b, "u32"), f"b < {bits} ? ({c})((uint64_t)a << b) : 0")
        _define(f"shr.{b}", b, (b, "u32"), _shifted_right("u", bits, c))
        for comparison in ("eq", "ne"):
            _define(f"setp.{comparison}.{b}", "pred", (b, b), f"a {COMPARISONS[comparison]} b")
        _define(f"mov.{b}", b, (b,), "a")
        _define(f"selp.{b}", b, (b, b, "pred"), "c ? a : b")
    for t in ("u16", "s16"):
        for name, text in (("add", "{a} + {b}"), ("min", "{a} < {b} ? {a} : {b}"),
                           ("max", "{a} > {b} ? {a} : {b}")):  # fmt: skip
            low, high = (
                text.format(**{x: f"({C_TYPES[t]}){half}({x})" for x in "ab"})
                for half in ("low", "high")
            )
            both = f"(uint16_t)({low}) | (uint32_t)(uint16_t)({high}) << 16"
            _define(f"{name}.{t}x2", f"{t}x2", (f"{t}x2",) * 2, both)
    _define("mad24.lo.s32", "s32", ("s32", "s32", "s32"), "((a << 8 >> 8) * (b << 8 >> 8)) + c")
    _define("add.sat.s32", "s32", ("s32", "s32"), "saturated((int64_t)a + b)")
    _define("sub.sat.s32", "s32", ("s32", "s32"), "saturated((int64_t)a - b)")
    _define("sad.s32", "s32", ("s32", "s32", "s32"), "c + (a < b ? b - a : a - b)")
    _define("sad.u32", "u32", ("u32", "u32", "u32"), "c + (a < b ? b - a : a - b)")


def _shifted_right(sign: str, bits: int, c: str) -> str:
    beyond = "a < 0 ? -1 : 0" if sign == "s" else "0"
    return f"({c})(b < {bits} ? a >> b : {beyond})"


def _bits() -> None:
    for bits, ones in ((32, "~0u"), (64, "~0ull")):
        b, u, s = f"b{bits}", f"u{bits}", f"s{bits}"
        _define(f"popc.{b}", "u32", (b,), "(uint32_t)__builtin_popcountll(a)")
        _define(f"clz.{b}", "u32", (b,), f"a ? __builtin_clzll(a) - {64 - bits} : {bits}")
        _define(f"brev.{b}", b, (b,), f"reversed_bits(a) >> {64 - bits}")
        _define(f"bfi.{b}", b, (b, b, "u32", "u32"), f"inserted_bits(a, b, c, d, {bits})")
        for t in (u, s):
            _define(f"bfe.{t}", t, (t, "u32", "u32"), f"extracted_{t}(a, b, c)")
            _define(f"bfind.{t}", "u32", (t,), f"leading_{t}(a)")
        _define(f"bfind.shiftamt.{u}", "u32", (u,), f"a ? {bits - 1} - leading_{u}(a) : {ones}")
    three = ("b32", "b32", "b32")
    _define("prmt.b32", "b32", three, "permuted(a, b, c)")
    for side, text in (("l", "funnel(a, b, {}) >> 32"), ("r", "(uint32_t)funnel_right(a, b, {})")):
        for mode, amount in (("wrap", "c & 31"), ("clamp", "(c < 32 ? c : 32)")):
            _define(f"shf.{side}.{mode}.b32", "b32", three, text.format(amount))
    _define("lop3.b32", "b32", (*three, "b32"), "logic3(a, b, c, d)")
    for left in "us":
        for right in "us":
            _define(f"dp4a.{left}32.{right}32", "s32", three, f"dot4_{left}{right}(a, b, c)")


def _floats() -> None:
    for t, suffix in (("f32", "f"), ("f64", "")):
        for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/")):
            _define(f"{name}.rn.{t}", t, (t, t), f"a {symbol} b")
            for mode in ("rz", "rm", "rp") if t == "f64" or name != "div" else ():
                _define(
                    f"{name}.{mode}.{t}", t, (t, t), f"rounded_{t}_{name}(a, b, {mode.upper()})"
                )
        _define(f"fma.rn.{t}", t, (t, t, t), f"fma{suffix}(a, b, c)")
        for mode in ("rz", "rm", "rp"):
            text = f"rounded_{t}_fma(a, b, c, {mode.upper()})"
            _define(f"fma.{mode}.{t}", t, (t, t, t), text)
        _define(f"min.{t}", t, (t, t), f"least_{t}(a, b)")
        _define(f"max.{t}", t, (t, t), f"largest_{t}(a, b)")
        _define(f"abs.{t}", t, (t,), f"fabs{suffix}(a)")
        _define(f"neg.{t}", t, (t,), "-a")
        _define(f"copysign.{t}", t, (t, t), f"copysign{suffix}(b, a)")
        _define(f"sqrt.rn.{t}", t, (t,), f"sqrt{suffix}(a)")
        _define(f"rcp.rn.{t}", t, (t,), "1 / a")
        _comparisons(t, "a", "b")
        for test, text in (("finite", "isfinite(a)"), ("infinite", "isinf(a)"),
                           ("notanumber", "isnan(a)"), ("number", "!isnan(a)"),
                           ("normal", "isnormal(a)")):  # fmt: skip
            _define(f"testp.{test}.{t}", "pred", (t,), f"{text} != 0")
        _define(f"mov.{t}", t, (t,), "a")
        _define(f"selp.{t}", t, (t, t, "pred"), "c ? a : b")
    _define("min.NaN.f32", "f32", ("f32", "f32"), "isnan(a) || isnan(b) ? NAN : least_f32(a, b)")
    _define("max.NaN.f32", "f32", ("f32", "f32"), "isnan(a) || isnan(b) ? NAN : largest_f32(a, b)")
    _define("add.sat.f32", "f32", ("f32", "f32"), "unit(a + b)")
    _define("mul.sat.f32", "f32", ("f32", "f32"), "unit(a * b)")
    _define("fma.rn.sat.f32", "f32", ("f32",) * 3, "unit(fmaf(a, b, c))")
    _approximations()
    _halves()


def _comparisons(t: str, a: str, b: str) -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        ordered = f"{a} {COMPARISONS[name]} {b}"
        nans = f"isnan({a}) || isnan({b})"
        ordered = f"!({nans}) && {ordered}" if name == "ne" else ordered
        for suffix, text in (("", ordered), ("u", f"{nans} || {ordered}")):
            _define(f"setp.{name}{suffix}.{t}", "pred", (t, t), text)
    _define(f"setp.num.{t}", "pred", (t, t), f"!isnan({a}) && !isnan({b})")
    _define(f"setp.nan.{t}", "pred", (t, t), f"isnan({a}) || isnan({b})")


def _approximations() -> None:
    """Exact where the ISA bounds an error; `.ftz` takes and gives zero for subnormal numbers."""
    unary = {
        "ex2": "exp2f(a)", "lg2": "log2f(a)", "sin": "sinf(a)", "cos": "cosf(a)", "rcp": "1 / a",
        "sqrt": "sqrtf(a)", "rsqrt": "1 / sqrtf(a)", "tanh": "tanhf(a)",
    }  # fmt: skip
    for name, text in unary.items():
        _define(f"{name}.approx.f32", "f32", ("f32",), text)
        flushed = text.replace("(a)", "(flush(a))").replace("/ a", "/ flush(a)")
        _define(f"{name}.approx.ftz.f32", "f32", ("f32",), f"flush({flushed})")
    _define("rcp.approx.ftz.f64", "f64", ("f64",), "high_half(1 / a)")
    _define("rsqrt.approx.ftz.f64", "f64", ("f64",), "high_half(1 / sqrt(a))")
    _define("rsqrt.approx.f64", "f64", ("f64",), "1 / sqrt(a)")
    for name in ("div.approx", "div.full"):
        _define(f"{name}.f32", "f32", ("f32", "f32"), "a / b")
        _define(f"{name}.ftz.f32", "f32", ("f32", "f32"), "flush(flush(a) / flush(b))")
    for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*")):
        text = f"flush(flush(a) {symbol} flush(b))"
        _define(f"{name}.ftz.f32", "f32", ("f32", "f32"), text)
    _define("fma.rn.ftz.f32", "f32", ("f32",) * 3, "flush(fmaf(flush(a), flush(b), flush(c)))")
    for name, text in (("abs", "fabsf(flush(a))"), ("neg", "-flush(a)")):
        _define(f"{name}.ftz.f32", "f32", ("f32",), text)
    for name, function in (("min", "least"), ("max", "largest")):
        _define(f"{name}.ftz.f32", "f32", ("f32",) * 2, f"{function}_f32(flush(a), flush(b))")


def _halves() -> None:
    for t in ("f16", "bf16"):
        a, b, c = (f"from_{t}({name})" for name in "abc")
        texts = {
            "add": ((t, t), f"{a} + {b}"), "sub": ((t, t), f"{a} - {b}"),
            "mul": ((t, t), f"{a} * {b}"), "min": ((t, t), f"least_f32({a}, {b})"),
            "max": ((t, t), f"largest_f32({a}, {b})"), "ex2.approx": ((t,), f"exp2f({a})"),
            "min.NaN": ((t, t), f"isnan({a}) || isnan({b}) ? NAN : least_f32({a}, {b})"),
            "max.NaN": ((t, t), f"isnan({a}) || isnan({b}) ? NAN : largest_f32({a}, {b})"),
            "fma.rn": ((t, t, t), f"(double){a} * {b} + {c}"), "tanh.approx": ((t,), f"tanhf({a})"),
        }  # fmt: skip
        texts |= {f"{name}.rn": texts[name] for name in ("add", "sub", "mul")}
        texts["ex2.approx.ftz"] = texts["ex2.approx"]
        for name, (operands, text) in texts.items():
            _define(f"{name}.{t}", t, operands, f"to_{t}({text}, RN)")
            pairs = tuple(f"{t}x2" for _ in operands)
            halves = [text.replace("(a)", f"({h}(a))").replace("(b)", f"({h}(b))")
                      .replace("(c)", f"({h}(c))") for h in ("low", "high")]  # fmt: skip
            both = f"to_{t}({halves[0]}, RN) | (uint32_t)to_{t}({halves[1]}, RN) << 16"
            _define(f"{name}.{t}x2", f"{t}x2", pairs, both)
        _define(f"neg.{t}", t, (t,), "a ^ 0x8000")
        _define(f"abs.{t}", t, (t,), "a & 0x7fff")
        _define(f"neg.{t}x2", f"{t}x2", (f"{t}x2",), "a ^ 0x80008000u")
        _define(f"abs.{t}x2", f"{t}x2", (f"{t}x2",), "a & 0x7fff7fffu")
        _comparisons(t, a, b)


def _conversions() -> None:
    """Between all integers, and between others and the widest; longer ways are made of these."""
    for target in INTEGERS:
        c = C_TYPES[target]
        low, high = _range(target)
        for source in INTEGERS:
            _define(f"cvt.{target}.{source}", target, (source,), f"({c})a")
        for source in ("s64", "u64"):
            text = f"({c})clipped({low}, (__int128)a, {high})"
            _define(f"cvt.sat.{target}.{source}", target, (source,), text)
        for mode in WHOLE_ROUNDINGS:
            text = f"({c})whole(a, {mode[:2].upper()}, {low}, {high}, {BITS[target]})"
            _define(f"cvt.{mode}.{target}.f64", target, ("f64",), text)
            if target == "s32":
                _define(f"cvt.{mode}.{target}.f32", target, ("f32",), text)
    for target in VALUES:
        for mode in ROUNDINGS:
            for sign in "su":
                text = f"{target}_of_{sign}64(a, {mode.upper()})"
                _define(f"cvt.{mode}.{target}.{sign}64", target, (f"{sign}64",), text)
            _define(f"cvt.{mode}.{target}.f64", target, ("f64",), f"to_{target}(a, {mode.upper()})")
        _define(f"cvt.sat.{target}.f64", target, ("f64",), f"to_{target}(unit(a), RN)")
        _define(f"cvt.f64.{target}", "f64", (target,), VALUES[target])
        if target != "f64":
            _define(f"cvt.f32.{target}", "f32", (target,), VALUES[target])
            _define(f"cvt.rn.{target}.f32", target, ("f32",), f"to_{target}(a, RN)")
    for mode in WHOLE_ROUNDINGS:
        for t in ("f32", "f64"):
            _define(f"cvt.{mode}.{t}.{t}", t, (t,), f"integral(a, {mode[:2].upper()})")
    _define("cvt.sat.f32.f32", "f32", ("f32",), "unit(a)")
    _define("cvt.ftz.f32.f32", "f32", ("f32",), "flush(a)")
    for sign in "su":
        _define(f"cvt.rn.f32.{sign}32", "f32", (f"{sign}32",), "(float)a")
    _pairs()


def _pairs() -> None:
    for t in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            for relu, wrap in (("", "{}"), (".relu", "({0} > 0 ? {0} : 0)")):
                high, low = (f"to_{t}({wrap.format(x)}, {mode.upper()})" for x in "ab")
                text = f"(uint32_t){high} << 16 | {low}"
                _define(f"cvt.{mode}{relu}.{t}x2.f32", f"{t}x2", ("f32", "f32"), text)
    _define("cvt.rna.tf32.f32", "tf32", ("f32",), "nearest_tf32(a)")
    _define("cvt.rn.tf32.f32", "tf32", ("f32",), "even_tf32(a)")


def _range(target: str) -> tuple[str, str]:
    bits = BITS[target]
    if target[0] == "u":
        return "0", f"(((__int128)1 << {bits}) - 1)"
    return f"(-((__int128)1 << {bits - 1}))", f"(((__int128)1 << {bits - 1}) - 1)"


def _predicates() -> None:
    for name, symbol in (("and", "&"), ("or", "|"), ("xor", "^")):
        _define(f"{name}.pred", "pred", ("pred", "pred"), f"a {symbol} b")
    _define("not.pred", "pred", ("pred",), "!a")
    _define("mov.pred", "pred", ("pred",), "a")
    _define("selp.pred", "pred", ("pred", "pred", "pred"), "c ? a : b")


for _part in (_integers, _bits, _floats, _conversions, _predicates):
    _part()
NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}


def operations_text() -> str:
    """The C functions, and the table of them in the order of `NUMBERS`."""
    bodies = [_function(NUMBERS[name], op) for name, op in OPERATIONS.items()]
    table = ", ".join(f"op_{number}" for number in NUMBERS.values())
    return "\n".join([*bodies, f"static const Operation operations[] = {{{table}}};\n"])


def _function(number: int, op: Operation) -> str:
    """The result is found for all lanes, and kept for those that are active."""
    given = "".join(
        f" const {_stored(t)} *{n}_ = x[{i}];" for i, (n, t) in enumerate(zip("abcd", op.operands))
    )
    values = "".join(_lane(n, t) for n, t in zip("abcd", op.operands))
    head = (
        f"static void op_{number}(void *to, const void *const *x, uint32_t mask)\n{{\n   {given}\n"
    )
    loop = f"    for (int l = 0; l < 32; ++l) {{ {values}"
    if op.result == "pred":
        return (
            f"{head}    uint32_t found = 0;\n{loop}found |= (uint32_t)(({op.text}) != 0) << l; }}\n"
            "    uint32_t *d = to;\n    *d = (*d & ~mask) | (found & mask);\n}"
        )
    c = _stored(op.result)
    return f"{head}    {c} t[32];\n{loop}t[l] = {op.text}; }}\n    KEEP({c})\n}}"


def _stored(t: str) -> str:
    """Of a lane: bytes are kept in registers of 16 bits, predicates in a word for all lanes."""
    return {"pred": "uint32_t", "b8": "uint16_t", "u8": "uint16_t", "s8": "int16_t"}.get(
        t, C_TYPES.get(t, "")
    )


def _lane(name: str, t: str) -> str:
    if t == "pred":
        return f"const uint32_t {name} = *{name}_ >> l & 1; "
    return f"const {C_TYPES[t]} {name} = ({C_TYPES[t]}){name}_[l]; "
