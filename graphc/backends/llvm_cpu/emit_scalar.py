"""Operations on scalars or lanes, to LLVM IR text: arithmetic, comparisons and conversions.

They take values that are already emitted. Semantics are those of graphc/ir/scalar/ops.py: integers
wrap, division by zero gives 0, conversions saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from graphc.backends.llvm_cpu import spell
from graphc.backends.llvm_cpu.processors.table import FUSED, RELAXED, RELAXED_BITS
from graphc.backends.llvm_cpu.spell import Typed
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.dtypes import DType, boolean, f32, i8, i32, i64
from graphc.ir.expr import Call, Const, Expr
from graphc.ir.simplify import bounds
from graphc.records import dataclass

ZEROS = ("0", "0x0000000000000000", "false")  # literals of which all bits are zero


@dataclass
class ScalarEmitter:
    """Emits into `line`; `fresh` makes names; `features` are the CPU's. `memo` holds what was
    emitted, a frame per branch; `numbered` the names of instructions without an effect, by their
    text, as far as they dominate what comes; `loaded` those that read memory which nobody has
    changed since."""

    line: Callable[[str], None]
    fresh: Callable[[], str]
    declare: Callable[[str], None]
    features: frozenset[str] = field(default=frozenset(), kw_only=True)
    memo: list[dict[Expr, Typed]] = field(default_factory=lambda: [{}], kw_only=True)
    numbered: dict[str, str] = field(default_factory=dict, kw_only=True)
    loaded: dict[str, str] = field(default_factory=dict, kw_only=True)
    is_stale: bool = field(default=True, kw_only=True)

    def name(self, text: str, known: dict[str, str] | None = None) -> str:
        """The name of the value of an instruction, which is emitted if it is not `known`."""
        known = self.numbered if known is None else known
        name = known.get(text)
        if name is None:
            name = known[text] = self.fresh()
            self.line(f"{name} = {text}")
        return name

    def op(self, text: str, dtype: DType, lanes: int) -> Typed:
        """The value of an instruction that reads no memory."""
        return Typed(self.name(text), dtype, lanes)

    def read(self, text: str) -> str:
        """The name of what an instruction reads from memory."""
        return self.name(text, self.loaded)

    def effect(self, text: str) -> None:
        """Emits an instruction that changes memory."""
        self.line(text)
        self.forget()

    def forget(self) -> None:
        """Tells that values may have changed: `memo` is stale from the next statement on."""
        self.loaded.clear()
        self.is_stale = True

    def enter_block(self) -> int:
        """Tells that what follows may be run after other instructions than those before it, but not
        without them; what `leave_block` takes at its end."""
        self.forget()
        return len(self.numbered)

    def leave_block(self, known: int) -> None:
        """Forgets what was emitted since the block was entered, which may not have been run."""
        self.forget()
        while len(self.numbered) > known:
            self.numbered.popitem()

    def splat(self, value: Typed, lanes: int) -> Typed:
        if value.lanes == lanes:
            return value
        if value.text in ZEROS:
            return Typed("zeroinitializer", value.dtype, lanes)
        if not value.text.startswith("%"):
            return Typed(f"splat ({value.element} {value.text})", value.dtype, lanes)
        kind = spell.vector_of(value.element, lanes)
        one = self.op(f"insertelement {kind} poison, {value.type} {value.text}, i32 0",
                      value.dtype, lanes)  # fmt: skip
        mask = f"<{lanes} x i32> zeroinitializer"
        text = f"shufflevector {kind} {one.text}, {kind} poison, {mask}"
        return self.op(text, value.dtype, lanes)

    def part(self, x: Typed, start: int, lanes: int) -> Typed:
        """Lanes of x from one on; what it has not is undefined."""
        if start == 0 and lanes == x.lanes:
            return x
        if x.lanes == 1:
            kind = spell.vector_of(x.element, lanes)
            text = f"insertelement {kind} poison, {x.type} {x.text}, i32 0"
            return self.op(text, x.dtype, lanes)
        places = [str(n) if n < x.lanes else "poison" for n in range(start, start + lanes)]
        picks = ", ".join(f"i32 {place}" for place in places)
        text = f"shufflevector {x.type} {x.text}, {x.type} poison, <{lanes} x i32> <{picks}>"
        return self.op(text, x.dtype, lanes)

    def joined(self, parts: list[Typed], lanes: int) -> Typed:
        """The first lanes of vectors of one size, one behind another."""
        while len(parts) > 1:
            if len(parts) % 2:
                parts = [*parts, Typed("poison", parts[0].dtype, parts[0].lanes)]
            parts = [self._pair(*parts[n : n + 2]) for n in range(0, len(parts), 2)]
        if lanes == 1 < parts[0].lanes:
            whole = parts[0]
            text = f"extractelement {whole.type} {whole.text}, i32 0"
            return self.op(text, whole.dtype, 1)
        return self.part(parts[0], 0, lanes)

    def _pair(self, a: Typed, b: Typed) -> Typed:
        """Two vectors as one."""
        lanes = 2 * a.lanes
        picks = ", ".join(f"i32 {n}" for n in range(lanes))
        text = f"shufflevector {a.type} {a.text}, {b.type} {b.text}, <{lanes} x i32> <{picks}>"
        return self.op(text, a.dtype, lanes)

    def align(self, values: list[Typed]) -> tuple[list[Typed], int]:
        lanes = max(v.lanes for v in values)
        return [self.splat(v, lanes) for v in values], lanes

    def _zero(self, lanes: int) -> str:
        return "0" if lanes == 1 else "zeroinitializer"

    # ---------------------------------------------------------------- operations

    def _typed_op(
        self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int
    ) -> Typed:
        if node.op.rule == "compare":
            return self._compare(name, args, lanes)
        if dtype is boolean:
            raise UnsupportedError(f"{name} of booleans")
        if dtype.is_float:
            return self._float_op(name, args, dtype, lanes)
        return self._int_op(name, node, args, dtype, lanes)

    def _logic(self, name: str, args: list[Typed], lanes: int) -> Typed:
        if name == "not":
            ones = self.splat(Typed("true", boolean), lanes)
            return self.op(f"xor {args[0].type} {args[0].text}, {ones.text}", boolean, lanes)
        a, b = args
        return self.op(f"{spell.LOGIC[name]} {a.type} {a.text}, {b.text}", boolean, lanes)

    def _compare(self, name: str, args: list[Typed], lanes: int) -> Typed:
        a, b = args
        if a.dtype.is_float:
            text = f"fcmp {spell.FLOAT_COMPARE[name]}"
        else:
            sign = "" if name in ("eq", "ne") else "s" if a.dtype.kind == "int" else "u"
            text = f"icmp {sign}{spell.INT_COMPARE[name]}"
        return self.op(f"{text} {a.type} {a.text}, {b.text}", boolean, lanes)

    def intrinsic(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        element = spell.register_type(dtype)
        full = f"{name}.{spell.suffix(element, lanes)}"
        kinds = ", ".join(a.type for a in args)
        result = spell.vector_of(element, lanes)
        self.declare(f"declare {result} @{full}({kinds})")
        flags = "nsz " if name in spell.SIGN_BLIND and _are_computed(args) else ""
        return self.op(f"call {flags}{result} @{full}({self._list(args)})", dtype, lanes)

    def _list(self, args: list[Typed]) -> str:
        return ", ".join(f"{a.type} {a.text}" for a in args)

    def _float_op(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a = args[0]
        if name in spell.FLOAT_BINARY:
            text = f"{spell.FLOAT_BINARY[name]} {a.type} {a.text}, {args[1].text}"
            return self.op(text, dtype, lanes)
        if name == "fma" and FUSED not in self.features:
            return self._product_and_sum(args, dtype, lanes)
        if name in spell.INTRINSICS:
            return self.intrinsic(spell.INTRINSICS[name], args, dtype, lanes)
        if name == "neg":
            return self.op(f"fneg {a.type} {a.text}", dtype, lanes)
        if name == "isnan":
            return self.op(f"fcmp uno {a.type} {a.text}, {a.text}", boolean, lanes)
        if name == "isinf":
            size = self.intrinsic("llvm.fabs", [a], dtype, lanes)
            infinity = self.splat(Typed(spell.literal(float("inf"), dtype), dtype), lanes)
            return self.op(f"fcmp oeq {a.type} {size.text}, {infinity.text}", boolean, lanes)
        if name == "scale":
            return self._scaled(args, lanes)
        if name in spell.LIBM or name == "rem":
            return self._per_lane(name, args, dtype, lanes)
        raise InternalError(f"{name} of {dtype} has no LLVM spelling; it must be decomposed first")

    def _product_and_sum(self, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        """a * b + c in two instructions: without one for it, LLVM calls a function. Relaxed vectors
        of WebAssembly have one, of whole vectors only."""
        a, b, c = args
        whole = dtype.bits >= 32 and lanes * dtype.bits == RELAXED_BITS
        if whole and RELAXED in self.features:
            return self.intrinsic("llvm.wasm.relaxed.madd", args, dtype, lanes)
        product = self.op(f"fmul {a.type} {a.text}, {b.text}", dtype, lanes)
        return self.op(f"fadd {a.type} {product.text}, {c.text}", dtype, lanes)

    def _scaled(self, args: list[Typed], lanes: int) -> Typed:
        """x * 2**n of float32 by the instruction of AVX-512: of whole registers, or of one whose
        upper lanes nobody reads."""
        width = next((n for n in (4, 8) if lanes <= n), 16)
        kind, bits = f"<{width} x float>", f"i{max(8, width)}"
        name = f"llvm.x86.avx512.mask.scalef.ps.{32 * width}"
        rounding = ", i32" if width == 16 else ""
        self.declare(f"declare {kind} @{name}({kind}, {kind}, {kind}, {bits}{rounding})")
        usual = f"{rounding} 4" if rounding else ""  # as the control register says
        parts = []
        for start in range(0, lanes, width):
            x, n = (self.part(a, start, width) for a in args)
            text = f"call {kind} @{name}({kind} {x.text}, {kind} {n.text}, "
            parts.append(self.op(f"{text}{kind} zeroinitializer, {bits} -1{usual})", f32, width))
        return self.joined(parts, lanes)

    def _per_lane(self, name: str, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        """A C library function, called once per lane."""
        element = spell.register_type(dtype)
        function = spell.libm_name(name, element)
        self.declare(f"declare {element} @{function}({', '.join([element] * len(args))})")
        if lanes == 1:
            return self.op(f"call {element} @{function}({self._list(args)})", dtype, 1)
        result = Typed("poison", dtype, lanes)
        for n in range(lanes):
            parts = [self.op(f"extractelement {a.type} {a.text}, i32 {n}", dtype, 1) for a in args]
            one = self.op(f"call {element} @{function}({self._list(parts)})", dtype, 1)
            result = self.op(f"insertelement {result.type} {result.text}, {element} {one.text}, "
                             f"i32 {n}", dtype, lanes)  # fmt: skip
        return result

    # ---------------------------------------------------------------- integers

    def _int_op(self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a = args[0]
        if name in spell.INT_BINARY:
            word = spell.INT_BINARY[name]
            return self.op(f"{word} {a.type} {a.text}, {args[1].text}", dtype, lanes)
        if name == "neg":
            return self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
        if name == "bnot":
            return self.op(f"xor {a.type} {a.text}, {self._const(-1, dtype, lanes)}", dtype, lanes)
        if name == "abs":
            return a if dtype.kind == "uint" else self._int_abs(a, dtype, lanes)
        if name in ("min", "max"):
            sign = "s" if dtype.kind == "int" else "u"
            return self.intrinsic(f"llvm.{sign}{name}", args, dtype, lanes)
        if name in ("shl", "shr"):
            return self._shift(name, node, args, dtype, lanes)
        if name in ("div", "floordiv", "mod", "rem"):
            return self._divide(name, node, args, dtype, lanes)
        if name == "fma":
            product = self.op(f"mul {a.type} {a.text}, {args[1].text}", dtype, lanes)
            return self.op(f"add {a.type} {product.text}, {args[2].text}", dtype, lanes)
        raise InternalError(f"{name} of {dtype} has no LLVM spelling; it must be decomposed first")

    def _const(self, value: int, dtype: DType, lanes: int) -> str:
        return self.splat(Typed(str(value), dtype), lanes).text

    def _int_abs(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        minus = self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
        negative = self.op(f"icmp slt {a.type} {a.text}, {self._zero(lanes)}", boolean, lanes)
        return self._pick(negative, minus, a)

    def _pick(self, condition: Typed, a: Typed, b: Typed) -> Typed:
        return self.op(f"select {condition.type} {condition.text}, {a.type} {a.text}, "
                       f"{b.type} {b.text}", a.dtype, a.lanes)  # fmt: skip

    def _shift(self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a, b = args
        signed = dtype.kind == "int"
        word = "shl" if name == "shl" else "ashr" if signed else "lshr"
        bits, by = dtype.size * 8, node.args[1]
        if isinstance(by, Const) and 0 <= by.value < bits:
            return self.op(f"{word} {a.type} {a.text}, {b.text}", dtype, lanes)
        high = self._const(bits - 1, dtype, lanes)
        over = self.op(f"icmp ugt {b.type} {b.text}, {high}", boolean, lanes)
        amount = self._pick(over, Typed(high, dtype, lanes), b)
        shifted = self.op(f"{word} {a.type} {a.text}, {amount.text}", dtype, lanes)
        if word == "ashr":
            return shifted
        return self._pick(over, Typed(self._const(0, dtype, lanes), dtype, lanes), shifted)

    def _divide(self, name: str, node: Call, args: list[Typed], dtype: DType, lanes: int) -> Typed:
        a, b = args
        divisor = node.args[1]
        positive = isinstance(divisor, Const) and divisor.value > 0
        unsigned = dtype.kind == "uint"
        if positive and dtype is i64 and bounds(node.args[0])[0] >= 0:
            unsigned = True
        quotient = name in ("div", "floordiv")
        if unsigned and dtype is i64 and isinstance(divisor, Const) and _fits_words(node, lanes):
            return self._divide_words("udiv" if quotient else "urem", a, divisor.value)
        if unsigned:
            b, zero = self._nonzero(b, positive, lanes)
            word = "udiv" if quotient else "urem"
            return self._zeroed(self.op(f"{word} {a.type} {a.text}, {b.text}", dtype, lanes), zero)
        return self._signed_divide(name, a, b, positive, lanes)

    def _divide_words(self, word: str, a: Typed, divisor: int) -> Typed:
        """A division of i64 that fit 32 bits, of which vectors have products."""
        low, wide = spell.vector_of("i32", a.lanes), a.type
        short = self.op(f"trunc {wide} {a.text} to {low}", i32, a.lanes)
        by = self._const(divisor, i32, a.lanes)
        result = self.op(f"{word} {low} {short.text}, {by}", i32, a.lanes)
        return self.op(f"zext {low} {result.text} to {wide}", i64, a.lanes)

    def _nonzero(self, b: Typed, positive: bool, lanes: int) -> tuple[Typed, Typed | None]:
        """A divisor that does not trap, and where it was zero."""
        if positive:
            return b, None
        zero = self.op(f"icmp eq {b.type} {b.text}, {self._zero(lanes)}", boolean, lanes)
        one = Typed(self._const(1, b.dtype, lanes), b.dtype, lanes)
        return self._pick(zero, one, b), zero

    def _zeroed(self, result: Typed, zero: Typed | None) -> Typed:
        if zero is None:
            return result
        nothing = Typed(self._const(0, result.dtype, result.lanes), result.dtype, result.lanes)
        return self._pick(zero, nothing, result)

    def _signed_divide(self, name: str, a: Typed, b: Typed, positive: bool, lanes: int) -> Typed:
        dtype, b0 = a.dtype, b
        b, zero = self._nonzero(b, positive, lanes)
        minus = None
        if not positive:  # MIN / -1 traps: divide by 1 and negate instead
            ones = self._const(-1, dtype, lanes)
            minus = self.op(f"icmp eq {b.type} {b.text}, {ones}", boolean, lanes)
            b = self._pick(minus, Typed(self._const(1, dtype, lanes), dtype, lanes), b)
        q = self.op(f"sdiv {a.type} {a.text}, {b.text}", dtype, lanes)
        r = self.op(f"srem {a.type} {a.text}, {b.text}", dtype, lanes)
        if minus is not None:
            negated = self.op(f"sub {a.type} {self._zero(lanes)}, {a.text}", dtype, lanes)
            q = self._pick(minus, negated, q)
        if name in ("floordiv", "mod"):
            q, r = self._floored(q, r, b0, lanes)
        return self._zeroed(q if name in ("div", "floordiv") else r, zero)

    def _floored(self, q: Typed, r: Typed, b: Typed, lanes: int) -> tuple[Typed, Typed]:
        dtype, zero = q.dtype, self._zero(lanes)
        some = self.op(f"icmp ne {r.type} {r.text}, {zero}", boolean, lanes)
        signs = self.op(f"xor {r.type} {r.text}, {b.text}", dtype, lanes)
        differ = self.op(f"icmp slt {r.type} {signs.text}, {zero}", boolean, lanes)
        fix = self._logic("and", [some, differ], lanes)
        lower = self.op(f"sub {q.type} {q.text}, {self._const(1, dtype, lanes)}", dtype, lanes)
        raised = self.op(f"add {r.type} {r.text}, {b.text}", dtype, lanes)
        return self._pick(fix, lower, q), self._pick(fix, raised, r)

    # ---------------------------------------------------------------- conversions

    def convert(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        source = a.dtype
        if source is dtype:
            return a
        if how == "bitcast":
            return self._bitcast(a, dtype, lanes)
        if source is boolean or dtype is boolean:
            return self._convert_boolean(a, dtype, lanes)
        if source.is_float and dtype.is_float:
            return self._float_to_float(how, a, dtype, lanes)
        if source.is_float:
            return self._float_to_int(a, dtype, lanes)
        if dtype.is_float:
            return self._int_to_float(how, a, dtype, lanes)
        return self._int_to_int(a, dtype, lanes)

    def _bitcast(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        target = spell.vector_of(spell.register_type(dtype), lanes)
        if a.type == target:
            return Typed(a.text, dtype, lanes)
        return self.op(f"bitcast {a.type} {a.text} to {target}", dtype, lanes)

    def _change(self, word: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        target = spell.vector_of(spell.register_type(dtype), lanes)
        return self.op(f"{word} {a.type} {a.text} to {target}", dtype, lanes)

    def _convert_boolean(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        if a.dtype is boolean:
            if dtype.is_float:
                return self.convert("cast", self._change("uitofp", a, f32, lanes), dtype, lanes)
            return self._change("zext", a, dtype, lanes)
        if a.dtype.is_float:
            wide = self.convert("cast", a, a.dtype.compute, lanes)
            zero = self.splat(Typed(spell.literal(0.0, wide.dtype), wide.dtype), lanes)
            return self.op(f"fcmp une {wide.type} {wide.text}, {zero.text}", boolean, lanes)
        return self.op(f"icmp ne {a.type} {a.text}, {self._zero(lanes)}", boolean, lanes)

    def _float_to_float(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        source = a.dtype
        native = ("f64", "f32", "f16", "bf16")
        if source.name not in native or dtype.name not in native or how == "cast_sat":
            raise InternalError(f"{how} from {source} to {dtype} must be decomposed first")
        if source.bits == dtype.bits == 16:
            return self._change("fptrunc", self._change("fpext", a, f32, lanes), dtype, lanes)
        return self._change("fpext" if dtype.bits > source.bits else "fptrunc", a, dtype, lanes)

    def _float_to_int(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        a = self.convert("cast", a, a.dtype.compute, lanes)
        unsigned = dtype.kind == "uint" and dtype.bits >= 32
        middle = dtype if dtype.bits >= 32 else i32
        if lanes > 1:
            whole = self._saturated(a, middle, "fptoui" if unsigned else "fptosi", lanes)
            return self._int_to_int(whole, dtype, lanes)
        name = f"llvm.fpto{'ui' if unsigned else 'si'}.sat"
        target = spell.register_type(middle)
        kind = spell.vector_of(target, lanes)
        full = f"{name}.{spell.suffix(target, lanes)}.{spell.suffix(a.element, lanes)}"
        self.declare(f"declare {kind} @{full}({a.type})")
        whole = self.op(f"call {kind} @{full}({a.type} {a.text})", middle, lanes)
        return self._int_to_int(whole, dtype, lanes)

    def _saturated(self, a: Typed, dtype: DType, word: str, lanes: int) -> Typed:
        """Lanes of floats to integers; what is beyond becomes the nearest one, NaN 0. LLVM takes
        vectors apart for its own saturating conversion."""
        ends = float(dtype.min), float(dtype.max + 1)  # powers of two, or 0
        low, high = (self.splat(Typed(spell.literal(x, a.dtype), a.dtype), lanes) for x in ends)
        below = self.op(f"fcmp olt {a.type} {a.text}, {low.text}", boolean, lanes)
        inside = self.op(f"fcmp olt {a.type} {a.text}, {high.text}", boolean, lanes)
        above = self.op(f"fcmp oge {a.type} {a.text}, {high.text}", boolean, lanes)
        zero = Typed("zeroinitializer", a.dtype, lanes)
        tame = self._pick(inside, self._pick(below, low, a), zero)
        whole = self._change(word, tame, dtype, lanes)
        return self._pick(
            above, Typed(self._const(int(dtype.max), dtype, lanes), dtype, lanes), whole
        )

    def _int_to_float(self, how: str, a: Typed, dtype: DType, lanes: int) -> Typed:
        word = "uitofp" if a.dtype.kind == "uint" else "sitofp"
        if dtype.name in ("f32", "f64"):
            return self._change(word, a, dtype, lanes)
        return self.convert(how, self._change(word, a, f32, lanes), dtype, lanes)

    def _int_to_int(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        if a.dtype is dtype:
            return a
        if dtype.size < a.dtype.size:
            a = self._change("trunc", a, dtype, lanes)
        elif dtype.size > a.dtype.size:
            a = self._change("zext" if a.dtype.kind == "uint" else "sext", a, dtype, lanes)
        else:
            a = Typed(a.text, dtype, lanes)
        return self._wrap_narrow(a, dtype, lanes)

    def _wrap_narrow(self, a: Typed, dtype: DType, lanes: int) -> Typed:
        """Keeps a sub-byte integer's value within its logical width."""
        if dtype.bits >= 8:
            return a
        amount = self._const(8 - dtype.bits, i8, lanes)
        left = self.op(f"shl {a.type} {a.text}, {amount}", dtype, lanes)
        word = "ashr" if dtype.kind == "int" else "lshr"
        return self.op(f"{word} {a.type} {left.text}, {amount}", dtype, lanes)


def _fits_words(node: Call, lanes: int) -> bool:
    """Whether a dividend in lanes, which is known not to be negative, and a divisor fit i32."""
    dividend, divisor = node.args
    return lanes > 1 and bounds(dividend)[1] <= i32.max and bounds(divisor)[1] <= i32.max


def _are_computed(args: list[Typed]) -> bool:
    """Whether no operand is a constant."""
    return all(a.text.startswith("%") for a in args)
