"""Operators on elements: unary, binary, comparisons, casts."""

from __future__ import annotations

from generator import INTEGERS, Decline, Generator

from graphc.ir import dtypes
from graphc.ir.dtypes import boolean, f32, i64
from templates.table import (
    SMOOTH,
    anything,
    is_f32,
    is_float,
    is_int,
    is_number,
    partner,
    shuffled,
    template,
)

KEEPING = ("Abs", "Neg", "Relu", "Identity")
JUMPING = ("Floor", "Ceil", "Round", "Sign", "IsNaN", "IsInf", "Shrink", "ThresholdedRelu")


@template(3, special=True)
def unary_keeping(g: Generator) -> None:
    g.emit(g.choice(KEEPING), g.pick(is_float), keeps=True)


@template(4, special=True)
def unary_smooth(g: Generator) -> None:
    name, attrs = g.choice(SMOOTH), {}
    if name == "Gelu" and g.chance(0.5):
        attrs["approximate"] = "tanh"
    if name in ("LeakyRelu", "Elu", "Celu") and g.chance(0.5):
        attrs["alpha"] = 0.5
    g.emit(name, g.pick(is_float), **attrs)


@template(1, special=True)
def unary_jumping(g: Generator) -> None:
    x = g.pick(is_float, exact=True)
    g.emit(g.choice(JUMPING), x, keeps=True)


@template(1)
def unary_with_domain(g: Generator) -> None:
    x = g.pick(is_float)
    name = g.choice(("Sqrt", "Log", "Reciprocal", "Acosh", "Asin", "Acos", "Atanh", "Tan"))
    if name in ("Asin", "Acos", "Atanh", "Tan"):
        x = g.emit("Clip", x, -0.75, 0.75)
    else:
        x = g.emit("Add", g.emit("Abs", x), 1.0 if name == "Acosh" else 0.5)
    g.emit(name, x)


@template(6, special=True)
def binary(g: Generator) -> None:
    x = g.pick(is_number)
    name = g.choice(("Add", "Sub", "Mul", "Max", "Min"))
    keeps = name in ("Max", "Min") or x.tensor.dtype.is_integer
    g.emit(name, *shuffled(g, x, partner(g, x)), keeps=keeps)


@template(1)
def division(g: Generator) -> None:
    x = g.pick(is_float)
    y = g.emit("Add", g.emit("Abs", partner(g, x)), 0.5)
    g.emit("Div", x, y)


@template(1)
def variadic(g: Generator) -> None:
    x = g.pick(is_float)
    more = [partner(g, x) for _ in range(g.integer(0, 3))]
    g.emit(g.choice(("Sum", "Mean", "Max", "Min")), *shuffled(g, x, *more))


@template(1, special=True)
def where(g: Generator) -> None:
    x = g.pick(anything)
    y = partner(g, x)
    shape = x.tensor.dims if g.chance(0.7) else tuple(1 for _ in x.tensor.dims)
    conditions = [v for v in g.pool if v.tensor.dtype is boolean and v.tensor.dims == shape]
    condition = g.choice(conditions) if conditions else g.operand(boolean, shape)
    g.emit("Where", condition, *shuffled(g, x, y), keeps=True)


@template(1, special=True)
def compare(g: Generator) -> None:
    x = g.pick(is_number, exact=True)
    y = partner(g, x)
    if y not in g.exact:
        raise Decline
    name = g.choice(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    g.emit(name, x, y, keeps=True)


@template(1, special=True)
def clip(g: Generator) -> None:
    x = g.pick(is_number)
    low, high = sorted((g.integer(0, 5), g.integer(0, 30)))
    kind = x.tensor.dtype
    bounds = [None if g.chance(0.2) else g.b.constant(v, kind) for v in (low, high)]
    g.emit("Clip", x, *bounds, keeps=True)


@template(1)
def power(g: Generator) -> None:
    x = g.pick(is_float)
    if g.chance(0.5):
        g.emit("Pow", x, g.b.constant(g.choice((2.0, 3.0, 1.0, 0.0)), x.tensor.dtype))
    else:
        base = g.emit("Add", g.emit("Abs", x), 0.5)
        g.emit("Pow", base, g.b.constant(g.choice((0.5, -0.5, -1.0, 1.7)), x.tensor.dtype))


@template(0.5)
def prelu(g: Generator) -> None:
    x = g.pick(is_float, (1, 9))
    shape = [d if g.chance(0.5) else 1 for d in x.tensor.dims]
    g.emit("PRelu", x, g.constant(x.tensor.dtype, shape))


@template(2)
def integer_binary(g: Generator) -> None:
    x = g.pick(is_int)
    kind = x.tensor.dtype
    name = g.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Mod", "BitShift", "Pow"))
    if name in ("Div", "Mod", "BitShift", "Pow"):
        shape = partner(g, x).tensor.dims
        signed = name in ("Div", "Mod") and kind.kind == "int" and g.chance(0.5)
        limit = 6 if name in ("BitShift", "Pow") else 9
        by = g.rng.integers(0 if limit == 6 else 1, limit, shape) * (-1 if signed else 1)
        y = g.b.constant(by.astype(kind.np))
        g.exact.add(y)
        if name == "BitShift" and kind.kind != "uint":
            raise Decline
        attrs = {"direction": g.choice(("LEFT", "RIGHT"))} if name == "BitShift" else {}
        attrs |= {"fmod": 1} if name == "Mod" and g.chance(0.3) else {}
        g.for_onnxruntime &= name != "Pow"  # it goes through double, and saturates
        g.emit(name, x, y, keeps=True, **attrs)
    else:
        g.emit(name, x, partner(g, x), keeps=True)


@template(0.7)
def integer_unary(g: Generator) -> None:
    x = g.pick(is_int)
    signed = ("Abs", "Neg", "Sign") if x.tensor.dtype.kind == "int" else ()
    g.emit(g.choice(("BitwiseNot", *signed)), x, keeps=True)


@template(0.7)
def boolean_op(g: Generator) -> None:
    x = g.pick(lambda d: d is boolean)
    if g.chance(0.3):
        g.emit("Not", x, keeps=True)
    else:
        g.emit(g.choice(("And", "Or", "Xor")), x, partner(g, x), keeps=True)


@template(0.5)
def float_mod(g: Generator) -> None:
    x = g.pick(is_float, exact=True)
    y = g.b.constant(g.choice((0.75, -1.5, 3.0)), x.tensor.dtype)
    g.emit("Mod", x, y, fmod=1)


@template(2)
def cast(g: Generator) -> None:
    x = g.pick(anything, exact=g.chance(0.5))
    source = x.tensor.dtype
    to = g.choice((f32, f32, dtypes.f64, dtypes.f16, boolean, *INTEGERS))
    if source.is_float and not to.is_float:
        if x not in g.exact:
            raise Decline
        if to.kind == "uint" or to.is_integer and to.bits < 32:
            x = g.emit("Clip", x, 0.0, 100.0, keeps=True)
    exact = not source.is_float or not to.is_float or to.bits >= source.bits
    g.emit("Cast", x, to=to.onnx, keeps=exact)


@template(0.4)
def narrow_cast(g: Generator) -> None:
    x = g.pick(is_f32, exact=True)
    to = g.choice(("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "bf16", "i4", "u4", "f4e2m1"))
    kind = dtypes.of(to)
    if kind.is_integer:
        x = g.emit("Clip", x, float(kind.min), float(kind.max), keeps=True)
    y = g.b.op("Cast", x, to=kind.onnx)
    if g.chance(0.3) and kind is dtypes.bf16:
        y = g.b.op(g.choice(("Tanh", "Neg", "Abs")), y)
    g.for_onnxruntime = False
    z = g.emit("Cast", y, to=f32.onnx)
    g.exact.add(z)


@template(0.4, special=True)
def as_another(g: Generator) -> None:
    """CastLike, and the same bits as another type."""
    x = g.pick(lambda d: d in (f32, dtypes.i32, i64, dtypes.f64), exact=True)
    kind = x.tensor.dtype
    if g.chance(0.5):
        to = {f32: dtypes.i32, dtypes.i32: f32, i64: dtypes.f64, dtypes.f64: i64}[kind]
        g.for_onnxruntime = False
        g.emit("BitCast", x, to=to.onnx, keeps=True)
    elif kind.is_integer:
        like = g.operand(g.choice((f32, i64, dtypes.i32)), ())
        g.emit("CastLike", x, like, keeps=True)


@template(0.5, special=True)
def tests_of_floats(g: Generator) -> None:
    x = g.pick(is_float, exact=True)
    if g.chance(0.5):
        g.emit("IsInf", x, detect_negative=g.integer(0, 1), detect_positive=g.integer(0, 1),
               keeps=True)  # fmt: skip
    else:
        y = g.emit("IsNaN", x, keeps=True)
        g.emit("Where", y, g.b.constant(0.0, x.tensor.dtype), x, keeps=True)


@template(0.5, special=True)
def with_bfloat(g: Generator) -> None:
    """A few operators in bfloat16; ONNX Runtime lacks them."""
    x = g.pick(is_f32, exact=True)
    g.for_onnxruntime = False
    y = g.b.op("Cast", x, to=dtypes.bf16.onnx)
    for _ in range(g.integer(1, 2)):
        name = g.choice(("Neg", "Relu", "Abs", "Max", "Min"))
        y = g.b.op(name, y, y) if name in ("Max", "Min") else g.b.op(name, y)
    g.exact.add(g.emit("Cast", y, to=f32.onnx))
