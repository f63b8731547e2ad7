"""dot4, dot4_codes and dot2_wide (graphc/ir/instructions.py) as LLVM IR: four products of bytes, or
two of int16, added to the sum of a lane.

* Where x86 has VNNI it is one instruction, which multiplies unsigned bytes by signed ones. Bytes
  less their centre are unsigned if they are uint8 less 0, or int8 less -128: the bits are then
  those of the byte, the highest flipped. Codes are unsigned as they are.
* Where AArch64 has dot products it is one instruction too: of signed bytes, for which unsigned ones
  less 128 have the highest bit flipped; of unsigned and signed ones it takes I8MM.
* Other x86, and WebAssembly, multiply pairs of 16 bits: bytes at even and at odd places are widened
  apart.
* Elsewhere it is four products.
* The two of int16 are one product of pairs where there is one, and an addition.

Lanes that fill no register are computed in the next larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphc.backends.llvm_cpu.emit_expr import ExprEmitter
from graphc.backends.llvm_cpu.spell import Typed, vector_of
from graphc.errors import InternalError
from graphc.ir.dtypes import DType, i8, i16, i32, u8
from graphc.ir.expr import Const, Load
from graphc.ir.instructions import LANES, PAIR
from graphc.ir.kernel import Intrin

FLIP = 0x80808080 - (1 << 32)  # the highest bit of each byte
PAIRS = (  # the feature, the lanes and the intrinsic of products of pairs
    ("sse2", 4, "llvm.x86.sse2.pmadd.wd"), ("simd128", 4, "llvm.wasm.dot"),
    ("avx2", 8, "llvm.x86.avx2.pmadd.wd"), ("avx512bw", 16, "llvm.x86.avx512.pmaddw.d.512"),
)  # fmt: skip
NEON = 4  # lanes of its registers


def emit_dot4(e: ExprEmitter, stmt: Intrin, features: frozenset[str]) -> None:
    """Emits dot4 for a CPU that has these features."""
    total, a, w, centre = stmt.args
    assert isinstance(total, Load) and isinstance(a, Load) and isinstance(centre, Const)
    assert isinstance(w, Load)
    _emit(e, total, a, w, _Dot(e, a.dtype, centre.value), features)


def emit_dot4_codes(e: ExprEmitter, stmt: Intrin, features: frozenset[str]) -> None:
    """Emits dot4_codes for a CPU that has these features."""
    total, a, w, shift, bits = stmt.args
    assert isinstance(total, Load) and isinstance(a, Load) and isinstance(w, Load)
    assert isinstance(shift, Const) and isinstance(bits, Const)
    _emit(e, total, a, w, _Dot(e, a.dtype, 0, (shift.value, bits.value)), features)


def emit_dot2_wide(e: ExprEmitter, stmt: Intrin, features: frozenset[str]) -> None:
    """Emits dot2_wide for a CPU that has these features."""
    total, a, w = stmt.args
    assert isinstance(total, Load) and isinstance(a, Load) and isinstance(w, Load)
    lanes = e.lanes if e.vector is not None else 1
    start = e.splat(e.value(total), lanes)
    word, words = _words(e, a, 1, PAIR), _words(e, w, lanes, PAIR)
    width, name = _pairs(features, lanes)
    start, words = e.part(start, 0, width), e.part(words, 0, width)
    whole = _pair_products(e, name, start, e.splat(word, width), words)
    e.put(e.storage[total.source], total.index[0], e.part(whole, 0, lanes))


def _pairs(features: frozenset[str], lanes: int) -> tuple[int, str]:
    """The lanes and the intrinsic of products of pairs; none ("") if there is none so wide."""
    for feature, width, name in PAIRS:
        if 1 < lanes <= width and feature in features:
            return width, name
    return lanes, ""


def _pair_products(e: ExprEmitter, name: str, start: Typed, a: Typed, w: Typed) -> Typed:
    """The products of two int16 in each lane, added to its sum."""
    if not name:
        for shifts in ((16, 16), (0, 16)):  # the low halves, the high ones
            x, y = (_half(e, v, *shifts) for v in (a, w))
            product = e.op(f"mul {x.type} {x.text}, {y.text}", i32, start.lanes)
            start = e.op(f"add {x.type} {start.text}, {product.text}", i32, start.lanes)
        return start
    kind = vector_of("i16", 2 * start.lanes)
    e.declare(f"declare {start.type} @{name}({kind}, {kind})")
    x, y = (e.op(f"bitcast {v.type} {v.text} to {kind}", i16, 2 * v.lanes) for v in (a, w))
    text = f"call {start.type} @{name}({kind} {x.text}, {kind} {y.text})"
    pairs = e.op(text, i32, start.lanes)
    return e.op(f"add {start.type} {start.text}, {pairs.text}", i32, start.lanes)


def _half(e: ExprEmitter, x: Typed, left: int, right: int) -> Typed:
    """Half of a word, signed."""
    for word, number in (("shl", left), ("ashr", right)):
        if number:
            other = e.splat(Typed(str(number), x.dtype), x.lanes)
            x = e.op(f"{word} {x.type} {x.text}, {other.text}", x.dtype, x.lanes)
    return x


def _emit(
    e: ExprEmitter, total: Load, a: Load, w: Load, dot: _Dot, features: frozenset[str]
) -> None:
    """Adds the products of four bytes of `a` and those of `w` in each lane."""
    lanes = e.lanes if e.vector is not None else 1
    start = e.splat(e.value(total), lanes)
    word, words = _words(e, a, 1), dot.unpacked(_words(e, w, lanes))
    width, form = dot.form(features, lanes)
    whole = form(e.part(start, 0, width), word, e.part(words, 0, width))
    e.put(e.storage[total.source], total.index[0], e.part(whole, 0, lanes))


def has_vnni(features: frozenset[str], width: int) -> bool:
    """Whether x86 multiplies bytes four at a time in registers of so many lanes."""
    wide = "avx512vnni" in features and (width == 16 or width < 16 and "avx512vl" in features)
    return wide or "avxvnni" in features and 4 <= width <= 8


def vnni_intrinsic(lanes: int) -> str:
    """What multiplies them: (sums, unsigned bytes, signed bytes), all as int32."""
    return f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"


def _words(e: ExprEmitter, load: Load, lanes: int, together: int = LANES) -> Typed:
    """Four bytes, or two int16, for each lane, as int32."""
    pointer, stride = e.address(e.storage[load.source], load.index[0])
    if stride != (together if lanes > 1 else 0):
        raise InternalError(f"the elements of {load} are not where products take them")
    return Typed(e.read(f"load {vector_of('i32', lanes)}, ptr {pointer}, align 1"), i32, lanes)


class _Dot:
    """The forms of the instruction; bytes of `a` have this type and centre, those of lanes are
    signed, or codes of (shift, bits)."""

    def __init__(
        self, e: ExprEmitter, dtype: DType, centre: int, codes: tuple[int, int] | None = None
    ):
        self.e, self.dtype, self.centre, self.codes = e, dtype, centre, codes

    @property
    def of_codes(self) -> bool:
        return self.codes is not None

    def unpacked(self, words: Typed) -> Typed:
        """The codes in words, each in a byte."""
        if self.codes is None:
            return words
        shift, bits = self.codes
        words = self.lanewise("lshr", words, shift)
        return words if bits == 8 else self.lanewise("and", words, ((1 << bits) - 1) * 0x01010101)

    @property
    def is_mixed(self) -> bool:
        """Whether unsigned bytes are multiplied by signed ones."""
        return self.of_codes or self.centre == (0 if self.dtype is u8 else -128)

    @property
    def is_signed(self) -> bool:
        """Whether signed bytes are multiplied by signed ones."""
        if self.codes is not None:
            return self.codes[1] < 8
        return self.centre == (128 if self.dtype is u8 else 0)

    # ---------------------------------------------------------------- forms

    def form(
        self, features: frozenset[str], lanes: int
    ) -> tuple[int, Callable[[Typed, Typed, Typed], Typed]]:
        """The lanes of the register that is used, and what computes the sum in it."""
        if 1 < lanes <= NEON:
            if "dotprod" in features and self.is_signed:
                return NEON, self.signed
            if "i8mm" in features and self.is_mixed:
                return NEON, self.mixed
        width, name = _pairs(features, lanes)
        if not name:
            return lanes, self.plain
        has_one = self.is_mixed and has_vnni(features, width)
        return width, self.fused if has_one else partial(self.paired, name)

    def signed(self, start: Typed, word: Typed, words: Typed) -> Typed:
        """sdot."""
        if self.dtype is u8:
            word = self.lanewise("xor", word, FLIP)
        return self._neon("sdot", start, self.e.splat(word, start.lanes), words)

    def mixed(self, start: Typed, word: Typed, words: Typed) -> Typed:
        """usdot."""
        if self.dtype is not u8 and not self.of_codes:
            word = self.lanewise("xor", word, FLIP)
        a = self.e.splat(word, start.lanes)
        return self._neon("usdot", start, *((words, a) if self.of_codes else (a, words)))

    def _neon(self, name: str, start: Typed, x: Typed, y: Typed) -> Typed:
        kind = vector_of("i8", 4 * start.lanes)
        x, y = (self.e.op(f"bitcast {z.type} {z.text} to {kind}", i8, 4 * z.lanes) for z in (x, y))
        full = f"llvm.aarch64.neon.{name}.v{start.lanes}i32.v{4 * start.lanes}i8"
        self.e.declare(f"declare {start.type} @{full}({start.type}, {kind}, {kind})")
        args = ", ".join(f"{z.type} {z.text}" for z in (start, x, y))
        return self.e.op(f"call {start.type} @{full}({args})", i32, start.lanes)

    def fused(self, start: Typed, word: Typed, words: Typed) -> Typed:
        """vpdpbusd."""
        a = self.e.splat(word, start.lanes)
        if self.dtype is not u8 and not self.of_codes:
            a = self.lanewise("xor", a, FLIP)
        unsigned, signed = (words, a) if self.of_codes else (a, words)
        name = vnni_intrinsic(start.lanes)
        self.e.declare(f"declare {start.type} @{name}({start.type}, {start.type}, {start.type})")
        args = ", ".join(f"{x.type} {x.text}" for x in (start, unsigned, signed))
        return self.e.op(f"call {start.type} @{name}({args})", i32, start.lanes)

    def paired(self, name: str, start: Typed, word: Typed, words: Typed) -> Typed:
        """Two pmaddwd, by the name of the intrinsic."""
        a, w = self._halves(self.e.splat(word, start.lanes)), self._halves(words)
        for odd in (False, True):
            x, y = self._byte(a, odd, self.dtype is u8), self._byte(w, odd, self.of_codes)
            start = _pair_products(self.e, name, start, self.lanewise("sub", x, self.centre), y)
        return start

    def plain(self, start: Typed, word: Typed, words: Typed) -> Typed:
        """Four products."""
        a = self.e.splat(word, start.lanes)
        for place in range(LANES):
            x = self.lanewise("sub", self._extended(a, place, self.dtype is u8), self.centre)
            y = self._extended(words, place, self.of_codes)
            product = self.e.op(f"mul {x.type} {x.text}, {y.text}", i32, start.lanes)
            start = self.e.op(f"add {x.type} {start.text}, {product.text}", i32, start.lanes)
        return start

    # ---------------------------------------------------------------- bytes

    def _halves(self, x: Typed) -> Typed:
        kind = vector_of("i16", 2 * x.lanes)
        return self.e.op(f"bitcast {x.type} {x.text} to {kind}", i16, 2 * x.lanes)

    def _byte(self, x: Typed, odd: bool, unsigned: bool) -> Typed:
        """One byte of each 16 bits, as 16 bits."""
        if not odd:
            x = self.lanewise("shl", x, 8)
        return self.lanewise("lshr" if unsigned else "ashr", x, 8)

    def _extended(self, x: Typed, place: int, unsigned: bool) -> Typed:
        """One byte of each 32 bits, as 32 bits."""
        x = self.lanewise("shl", x, 8 * (LANES - 1 - place))
        return self.lanewise("lshr" if unsigned else "ashr", x, 24)

    def lanewise(self, word: str, x: Typed, number: int) -> Typed:
        """An operation with the same number in every lane."""
        if number == 0:
            return x
        other = self.e.splat(Typed(str(number), x.dtype), x.lanes)
        return self.e.op(f"{word} {x.type} {x.text}, {other.text}", x.dtype, x.lanes)
