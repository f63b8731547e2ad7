"""C's functions of floats as LLVM IR, for platforms without its library.

float64 comes from math_bodies.py; float32 is rounded from it, which is right but for rare halves.
Angles are reduced modulo pi/2 by Cody and Waite's method up to 2**20, and beyond it by M. Payne and
R. Hanek's (Radian Reduction for Trigonometric Functions, 1983): of the bits of 2/pi, a product
modulo 4 needs only some 128. fmod is long division of the mantissas.
"""

from __future__ import annotations

import re
from functools import lru_cache

from graphc.backends.llvm_cpu import math_bodies
from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.spell import LIBM, Typed
from graphc.ir.dtypes import f64
from graphc.ir.expr import Expr, Ref

_WORDS = 19  # of 2/pi: as many as the largest float64 needs
_CALLED = re.compile(r"declare (?:double|float) @(\w+)\(")


def functions_needed(code: str) -> list[str]:
    """A module with the functions that a module declares."""
    named = {name for name in _CALLED.findall(code) if _plain(name) in (*LIBM, "fmod")}
    if not named:
        return []
    parts = {_plain(name): _double(_plain(name)) for name in sorted(named)}
    angles = {"sin", "cos", "tan"} & set(parts)
    singles = [_single(name) for name in sorted(named) if name.endswith("f") and name != "erf"]
    text = "\n".join(
        [_REDUCED.replace("TABLE", _table()) if angles else "", *parts.values(), *singles]
    )
    lines = list(dict.fromkeys(x for x in text.split("\n") if x.startswith("declare")))
    rest = [x for x in text.split("\n") if not x.startswith("declare")]
    return ["\n".join([*lines, *rest, ""])]


def _plain(name: str) -> str:
    """The name of the function of float64."""
    return name[:-1] if name.endswith("f") and name != "erf" else name


@lru_cache
def _double(name: str) -> str:
    """The function of float64."""
    if name == "fmod":
        return _FMOD
    if name in ("sin", "cos", "tan"):
        return _angular(name)
    body = math_bodies.BODIES[name]
    x, y = Ref("x", f64), Ref("y", f64)
    return (
        _function(name, ["x", "y"], body(x, y))
        if name == "pow"
        else _function(name, ["x"], body(x))
    )


def _single(name: str) -> str:
    plain = name[:-1]
    names = ["x", "y"] if plain in ("pow", "fmod") else ["x"]
    wide = [f"  %{n}.wide = fpext float %{n} to double" for n in names]
    kinds = ", ".join(f"float %{n}" for n in names)
    args = ", ".join(f"double %{n}.wide" for n in names)
    return "\n".join([
        f"define float @{name}({kinds}) {{", *wide, f"  %r = call double @{plain}({args})",
        "  %short = fptrunc double %r to float", "  ret float %short", "}",
    ])  # fmt: skip


class _Lines:
    """Emits expressions over named values of float64."""

    def __init__(self, names: list[str]):
        self.lines: list[str] = []
        self.declared: dict[str, None] = {}
        self.count = 0
        self.expr = ExprEmitter(self._line, self._fresh, self._declare, {})
        self.expr.names.update({Ref(n, f64): Typed(f"%{n}", f64) for n in names})

    def _line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def _fresh(self) -> str:
        self.count += 1
        return f"%e{self.count}"

    def _declare(self, text: str) -> None:
        self.declared[text] = None

    def value(self, node: Expr) -> str:
        return self.expr.value(node).text


def _function(name: str, names: list[str], body: Expr) -> str:
    lines = _Lines(names)
    result = lines.value(body)
    kinds = ", ".join(f"double %{n}" for n in names)
    return "\n".join([
        *lines.declared, f"define double @{name}({kinds}) {{", *lines.lines,
        f"  ret double {result}", "}",
    ])  # fmt: skip


def _angular(name: str) -> str:
    """sin, cos or tan, of what is left of the angle and the number of its quadrant."""
    lines, r = _Lines(["r"]), Ref("r", f64)
    sine, cosine = (lines.value(f(r)) for f in (math_bodies.sine, math_bodies.cosine))
    ending = {
        "sin": ["  %side = select i1 %odd, double COS, double SIN", "  %turned = and i64 %q, 2"],
        "cos": ["  %side = select i1 %odd, double SIN, double COS", "  %q1 = add i64 %q, 1",
                "  %turned = and i64 %q1, 2"],
        "tan": ["  %over = select i1 %odd, double COS, double SIN",
                "  %under = select i1 %odd, double SIN, double COS",
                "  %side = fdiv double %over, %under", "  %turned = and i64 %q, 1"],
    }[name]  # fmt: skip
    text = "\n".join([
        *lines.declared, f"define double @{name}(double %x) {{",
        "  %reduced = call { double, i64 } @graphc_reduced(double %x)",
        "  %r = extractvalue { double, i64 } %reduced, 0",
        "  %q = extractvalue { double, i64 } %reduced, 1",
        "  %low = and i64 %q, 1", "  %odd = icmp ne i64 %low, 0", *lines.lines, *ending,
        "  %minus = fneg double %side", "  %is.minus = icmp ne i64 %turned, 0",
        "  %result = select i1 %is.minus, double %minus, double %side", "  ret double %result", "}",
    ])  # fmt: skip
    return text.replace("COS", cosine).replace("SIN", sine)


@lru_cache
def _table() -> str:
    """The bits of 2/pi from the first after the point on, after 63 zeros and the bit before it, by
    Machin's formula."""
    bits = 64 * _WORDS
    one = 1 << (bits + 64)
    quarter = 4 * _arctangent(one, 5) - _arctangent(one, 239)
    two_over_pi = (one * one // (2 * quarter)) >> 64  # as a fraction of 2**bits
    words = [0] + [(two_over_pi >> (bits - 64 * (n + 1))) & ((1 << 64) - 1) for n in range(_WORDS)]
    return ", ".join(f"i64 {w - (1 << 64) if w >> 63 else w}" for w in words)


def _arctangent(one: int, x: int) -> int:
    """arctan(1 / x) times `one`."""
    total, term, n, sign = 0, one // x, 1, 1
    while term:
        total, term, n, sign = total + sign * (term // n), term // (x * x), n + 2, -sign
    return total


# An angle as what is left of it, in -pi/4..pi/4, and how many times pi/2 was taken off, modulo 4.
_REDUCED = """@two.over.pi = internal constant [20 x i64] [TABLE]
declare double @llvm.fabs.f64(double)
define internal i64 @graphc_high(i64 %a, i64 %b) {
  %a0 = and i64 %a, 4294967295
  %a1 = lshr i64 %a, 32
  %b0 = and i64 %b, 4294967295
  %b1 = lshr i64 %b, 32
  %p00 = mul i64 %a0, %b0
  %p01 = mul i64 %a0, %b1
  %p10 = mul i64 %a1, %b0
  %p11 = mul i64 %a1, %b1
  %c0 = lshr i64 %p00, 32
  %m0 = and i64 %p01, 4294967295
  %m1 = add i64 %p10, %c0
  %m2 = add i64 %m1, %m0
  %h0 = lshr i64 %m2, 32
  %h1 = lshr i64 %p01, 32
  %h2 = add i64 %p11, %h1
  %h3 = add i64 %h2, %h0
  ret i64 %h3
}
define internal { double, i64 } @graphc_reduced(double %x) {
entry:
  %size = call double @llvm.fabs.f64(double %x)
  %near = fcmp olt double %size, 0x4130000000000000
  br i1 %near, label %short, label %far
short:
  %turns = fmul double %x, 0x3FE45F306DC9C883
  %shifted = fadd double %turns, 0x4338000000000000
  %n = fsub double %shifted, 0x4338000000000000
  %q = bitcast double %shifted to i64
  %p1 = fmul double %n, 0x3FF921FB54400000
  %r1 = fsub double %x, %p1
  %p2 = fmul double %n, 0x3DD0B4611A600000
  %r2 = fsub double %r1, %p2
  %p3 = fmul double %n, 0x3BA3198A2E037073
  %r3 = fsub double %r2, %p3
  %is.zero = fcmp oeq double %x, 0.0
  %r4 = select i1 %is.zero, double %x, double %r3
  %s0 = insertvalue { double, i64 } poison, double %r4, 0
  %s1 = insertvalue { double, i64 } %s0, i64 %q, 1
  ret { double, i64 } %s1
far:
  %finite = fcmp olt double %size, 0x7FF0000000000000
  br i1 %finite, label %long, label %none
none:
  %nan = fsub double %x, %x
  %n0 = insertvalue { double, i64 } zeroinitializer, double %nan, 0
  ret { double, i64 } %n0
long:
  %bits = bitcast double %size to i64
  %field = lshr i64 %bits, 52
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %start = sub i64 %field, 1013
  %word = lshr i64 %start, 6
  %by = and i64 %start, 63
  %back = sub i64 63, %by
  %t0.p = getelementptr i64, ptr @two.over.pi, i64 %word
  %t1.p = getelementptr i64, ptr %t0.p, i64 1
  %t2.p = getelementptr i64, ptr %t0.p, i64 2
  %t0 = load i64, ptr %t0.p
  %t1 = load i64, ptr %t1.p
  %t2 = load i64, ptr %t2.p
  %a0 = shl i64 %t0, %by
  %b0 = lshr i64 %t1, 1
  %c0 = lshr i64 %b0, %back
  %w0 = or i64 %a0, %c0
  %a1 = shl i64 %t1, %by
  %b1 = lshr i64 %t2, 1
  %c1 = lshr i64 %b1, %back
  %w1 = or i64 %a1, %c1
  %p0 = mul i64 %m, %w0
  %high = call i64 @graphc_high(i64 %m, i64 %w1)
  %product = add i64 %p0, %high
  %left = shl i64 %product, 2
  %up = add i64 %product, 2305843009213693952
  %quadrant = lshr i64 %up, 62
  %rest = sitofp i64 %left to double
  %angle = fmul double %rest, 0x3BF921FB54442D18
  %negative = fcmp olt double %x, 0.0
  %minus = fneg double %angle
  %r = select i1 %negative, double %minus, double %angle
  %backwards = sub i64 0, %quadrant
  %turned = select i1 %negative, i64 %backwards, i64 %quadrant
  %l0 = insertvalue { double, i64 } poison, double %r, 0
  %l1 = insertvalue { double, i64 } %l0, i64 %turned, 1
  ret { double, i64 } %l1
}
"""
_FMOD = """declare double @llvm.fabs.f64(double)
declare i64 @llvm.ctlz.i64(i64, i1)
define double @fmod(double %x, double %y) {
entry:
  %a = call double @llvm.fabs.f64(double %x)
  %b = call double @llvm.fabs.f64(double %y)
  %finite = fcmp olt double %a, 0x7FF0000000000000
  %some = fcmp ogt double %b, 0.0
  %good = and i1 %finite, %some
  br i1 %good, label %sizes, label %none
none:
  %product = fmul double %x, %y
  %nan = fdiv double %product, %product
  ret double %nan
sizes:
  %below = fcmp olt double %a, %b
  br i1 %below, label %whole, label %divide
whole:
  ret double %x
divide:
  %a.bits = bitcast double %a to i64
  %b.bits = bitcast double %b to i64
  %a.parts = call { i64, i64 } @graphc_parts(i64 %a.bits)
  %b.parts = call { i64, i64 } @graphc_parts(i64 %b.bits)
  %a.m = extractvalue { i64, i64 } %a.parts, 0
  %a.e = extractvalue { i64, i64 } %a.parts, 1
  %b.m = extractvalue { i64, i64 } %b.parts, 0
  %b.e = extractvalue { i64, i64 } %b.parts, 1
  br label %step
step:
  %m = phi i64 [ %a.m, %divide ], [ %m.next, %more ]
  %e = phi i64 [ %a.e, %divide ], [ %e.next, %more ]
  %less = sub i64 %m, %b.m
  %fits = icmp sge i64 %less, 0
  %left = select i1 %fits, i64 %less, i64 %m
  %last = icmp eq i64 %e, %b.e
  br i1 %last, label %done, label %more
more:
  %m.next = shl i64 %left, 1
  %e.next = sub i64 %e, 1
  br label %step
done:
  %zero = icmp eq i64 %left, 0
  br i1 %zero, label %nothing, label %assemble
nothing:
  br label %signed
assemble:
  %empty = call i64 @llvm.ctlz.i64(i64 %left, i1 true)
  %wanted = sub i64 %empty, 11
  %room = sub i64 %b.e, 1
  %can = call i64 @llvm.smin.i64(i64 %wanted, i64 %room)
  %raised = shl i64 %left, %can
  %exponent = sub i64 %room, %can
  %field = shl i64 %exponent, 52
  %normal = add i64 %raised, %field
  %below.none = sub i64 0, %can
  %lowered = lshr i64 %left, %below.none
  %subnormal = icmp slt i64 %can, 0
  %bits = select i1 %subnormal, i64 %lowered, i64 %normal
  br label %signed
signed:
  %size.bits = phi i64 [ 0, %nothing ], [ %bits, %assemble ]
  %x.bits = bitcast double %x to i64
  %sign = and i64 %x.bits, -9223372036854775808
  %all = or i64 %size.bits, %sign
  %result = bitcast i64 %all to double
  ret double %result
}
declare i64 @llvm.smin.i64(i64, i64)
; A mantissa of 53 bits, and its exponent, which is 1 or more where the number is normal.
define internal { i64, i64 } @graphc_parts(i64 %bits) {
  %field = lshr i64 %bits, 52
  %fraction = and i64 %bits, 4503599627370495
  %tiny = icmp eq i64 %field, 0
  %with = or i64 %fraction, 4503599627370496
  %empty = call i64 @llvm.ctlz.i64(i64 %fraction, i1 false)
  %by = sub i64 %empty, 11
  %moved = shl i64 %fraction, %by
  %down = sub i64 1, %by
  %m = select i1 %tiny, i64 %moved, i64 %with
  %e = select i1 %tiny, i64 %down, i64 %field
  %p0 = insertvalue { i64, i64 } poison, i64 %m, 0
  %p1 = insertvalue { i64, i64 } %p0, i64 %e, 1
  ret { i64, i64 } %p1
}
"""
