"""Ways to break a line of PTX: each plants one error of a kind that people and compilers make."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Change = Callable[[str], str]
SWIZZLE, STRIDE, LEADING = 62, 32, 16  # bits of matrix descriptors
UNUSED = 1  # the leading offset where the depth is innermost
DESCRIPTOR = r"add\.s64 .*, (\d{15,});"


@dataclass(frozen=True)
class Mutation:
    """A kind of error: the lines it can be planted in, and what these become."""

    kind: str
    pattern: str
    change: Change
    everywhere: bool = False  # in all lines at once: some of them may not matter

    def mutated(self, line: str) -> str | None:
        """A line with the error; None where it has no place."""
        if line.startswith("//") or not re.search(self.pattern, line):
            return None
        changed = self.change(line)
        return None if changed == line else changed


def _removed(kind: str, pattern: str) -> Mutation:
    return Mutation(f"{kind} removed", pattern, lambda line: "")


def _replaced(
    kind: str, pattern: str, text: str | Callable[[re.Match[str]], str], everywhere: bool = False
) -> Mutation:
    return Mutation(kind, pattern, lambda line: re.sub(pattern, text, line, count=1), everywhere)


def _number(kind: str, pattern: str, change: Callable[[int], int]) -> Mutation:
    """Changes the number that a group of a pattern finds."""

    def changed(line: str) -> str:
        match = re.search(pattern, line)
        assert match is not None
        return f"{line[: match.start(1)]}{change(int(match[1]))}{line[match.end(1) :]}"

    return Mutation(kind, pattern, changed)


def _swapped(kind: str, pattern: str, vector: int, first: int, second: int) -> Mutation:
    """Two registers of a vector among the operands change places; of the operands, for -1."""

    def changed(line: str) -> str:
        lists = [*re.finditer(r"\{([^}]*)\}", line)]
        if vector >= 0:
            if len(lists) <= vector:
                return line
            start, end = lists[vector].span(1)
        else:
            start, end = re.search(r"\s", line.lstrip()).start() + 1, line.rindex(";")  # type: ignore[union-attr]
            start += len(line) - len(line.lstrip())
        parts = line[start:end].split(",")
        if len(parts) <= max(first, second):
            return line
        parts[first], parts[second] = parts[second], parts[first]
        return f"{line[:start]}{','.join(parts)}{line[end:]}"

    return Mutation(kind, pattern, changed)


def _operand(kind: str, pattern: str, number: int, text: str) -> Mutation:
    """An operand behind the last bracket becomes another one."""

    def changed(line: str) -> str:
        start = line.rindex("}") + 1
        parts = line[start : line.rindex(";")].split(",")
        if len(parts) <= number or parts[number].strip() == text:
            return line
        parts[number] = f" {text}"
        return f"{line[:start]}{','.join(parts)};"

    return Mutation(kind, pattern, changed)


def _flag(kind: str, number: int) -> Mutation:
    """A transpose at the end of a product of warp groups is turned over."""

    def changed(line: str) -> str:
        parts = line[: line.rindex(";")].split(",")
        parts[number] = f" {1 - int(parts[number])}"
        return ",".join(parts) + ";"

    return Mutation(kind, r"wgmma\.mma_async.*f16.* [01], [01];", changed)


ORDERING = (
    _removed("barrier", r"bar\.sync"),
    _removed("wait for copies", r"cp\.async\.wait_group"),
    _removed("commit of copies", r"cp\.async\.commit_group"),
    _removed("proxy fence", r"fence\.proxy\.async"),
    _removed("fence of products", r"wgmma\.fence"),
    _removed("commit of products", r"wgmma\.commit_group"),
    _removed("wait for products", r"wgmma\.wait_group"),
    _removed("barrier of a warp", r"bar\.warp\.sync"),
    _replaced("wait for a phase removed", r"^\s*@over bra DONE", "bra DONE"),
    _removed("arrival", r"mbarrier\.arrive\.(?!expect|noinc)"),
    _removed("expected bytes", r"mbarrier\.arrive\.expect_tx"),
    _removed("arrival with copies", r"cp\.async\.mbarrier\.arrive"),
    _removed("fence of mbarriers", r"fence\.mbarrier_init"),
    _removed("arrival at a cluster", r"barrier\.cluster\.arrive"),
    _removed("wait for a cluster", r"barrier\.cluster\.wait"),
)
"""What orders things: its removal must always be caught."""
MUTATIONS = (
    *ORDERING,
    _number("wait for one copy fewer", r"cp\.async\.wait_group (\d+)", lambda n: n + 1),
    _number("wait for one product fewer", r"wgmma\.wait_group\.sync\.aligned (\d+)",
            lambda n: n + 1),
    _removed("copy", r"cp\.async\.c[ag]"),
    _removed("copy of a box", r"cp\.async\.bulk\.tensor"),
    _swapped("coordinates of a box", r"cp\.async\.bulk\.tensor", 0, 0, 1),
    _number("bytes that are expected", r"expect_tx.*, (\d+);", lambda n: n // 2),
    _number("arrivals of a phase", r"mbarrier\.init.*, (\d+);", lambda n: n + 1),
    _replaced("parity of a phase", r"(try_wait.*), (%r\d+);", r"\1, 0;"),
    _replaced("block of a cluster", r"(mapa.*), %r\d+;", r"\1, 0;"),
    _removed("product", r"^\s*(?:mma\.|wgmma\.mma)"),
    _removed("store", r"st\.(?:shared|global)"),
    _number("swizzle of a descriptor", DESCRIPTOR, lambda n: n ^ 3 << SWIZZLE),
    _number("no swizzle in a descriptor", DESCRIPTOR, lambda n: n & ~(3 << SWIZZLE)),
    _number("stride of a descriptor", DESCRIPTOR, lambda n: n ^ 96 << STRIDE),
    _number("leading offset of a descriptor", DESCRIPTOR,
            lambda n: n if n >> LEADING & 0x3FFF == UNUSED else n ^ 24 << LEADING),
    _number("bits of a descriptor's address", r"shr\.u32 .*, (4);", lambda n: 3),
    _flag("transpose of a", -2), _flag("transpose of b", -1),
    _operand("scale of sums 0", r"wgmma\.mma_async", -1, "0"),
    _replaced("sign of a", r"(wgmma\.mma_async.*), 1, 1, (1.*;)$", r"\1, 1, -1, \2"),
    _replaced("sign of b", r"(wgmma\.mma_async.*, 1, 1), 1(, \d, \d)?;$", r"\1, -1\2;"),
    _replaced("type of products", r"\.f16\.f16|\.bf16\.bf16|\.s8\.s8|\.u8\.u8",
              lambda m: {".f16.f16": ".bf16.bf16", ".bf16.bf16": ".f16.f16", ".s8.s8": ".u8.u8",
                         ".u8.u8": ".s8.s8"}[m[0]]),
    _swapped("sums of products", r"^\s*w?g?mma\.", 0, 0, 1),
    _swapped("rows of the first operand", r"^\s*mma\.", 1, 0, 1),
    _swapped("depth of the first operand", r"^\s*mma\.", 1, 1, 2),
    _swapped("words of the second operand", r"^\s*mma\.", 2, 0, 1),
    _swapped("operands of a product", r"^\s*wgmma\.mma_async.*\}, %rd", -1, -8, -7),
    _replaced("transposed load", r"\.trans\.shared", ".shared"),
    _replaced("load of matrices transposed", r"x4\.shared", "x4.trans.shared"),
    _swapped("matrices of a load", r"ldmatrix", 0, 0, 1),
    _swapped("last matrices of a load", r"ldmatrix", 0, 2, 3),
    _number("place of a load of matrices", r"ldmatrix.*\[%r\d+\+(\d+)\]", lambda n: n + 16),
    _replaced("copy of fewer bytes", r"(cp\.async\.)cg(.*), 16, %r\d+;", r"\1ca\2, 8;"),
    _replaced("copy of all that is asked", r"(cp\.async\.c[ag].*), 16, %r\d+;", r"\1, 16;",
              everywhere=True),
    _replaced("copy of nothing", r"(cp\.async\.c[ag].*), 16, %r\d+;", r"\1, 16, 0;"),
    _replaced("place of a copy", r"(cp\.async.*\[%r\d+)(?:\+\d+)?\]", r"\1+32]"),
    _replaced("source of a copy", r"(cp\.async.*\[%rd\d+)(?:\+\d+)?\]", r"\1+16]"),
    _replaced("mode of a shuffle", r"shfl\.sync\.bfly", "shfl.sync.down"),
    _replaced("mask of a shuffle", r"(shfl\.sync.*), %r\d+;", r"\1, 65535;"),
    _replaced("guard negated", r"^\s*@(!?)%p", lambda m: m[0].replace("@!", "@") if m[1] else
              m[0].replace("@", "@!")),
    _removed("branch", r"^\s*@!?%p\d+ bra"),
    _number("bound of a comparison", r"setp\.[lg][te]\.[su]32 .*, (\d+);", lambda n: n // 2),
    _replaced("equality turned over", r"setp\.(eq|ne)\.",
              lambda m: f"setp.{'ne' if m[1] == 'eq' else 'eq'}."),
    _swapped("operands of a choice", r"^\s*selp\.", -1, 1, 2),
    _swapped("operands of a difference", r"^\s*sub\.[sf]32", -1, 1, 2),
    _replaced("sum for a difference", r"^(\s*)sub\.f32", r"\1add.f32"),
    _replaced("difference for a sum", r"^(\s*)add\.f32(.*%f\d+;)", r"\1sub.f32\2"),
    _replaced("product without a sum", r"fma\.rn\.f32 (\s*%f\d+, %f\d+, %f\d+), .*;",
              r"mul.f32 \1;"),
    _replaced("and for or", r"^(\s*)or\.", r"\1and."),
    _number("permutation of places", r"xor\.b32 .*, (\d+);", lambda n: n ^ 16),
    _number("mask of an index", r"and\.b32 .*, (\d{1,4});", lambda n: n & n - 1),
    _number("shift of an index", r"shl\.b32 .*, (\d);", lambda n: n + 1),
    _number("stride of an index", r"mul\.(?:wide|lo)\.[us]\d+ .*, (\d+);", lambda n: n + 1),
    _number("offset of an address", r"(?:ld|st)\.(?:global|shared).*\[%r?d?\d+\+(\d+)\]",
            lambda n: n + 16),
    _replaced("order of a vector", r"(st\.\S+\.v[24]\S* .*)\{(%\w+), (%\w+)", r"\1{\3, \2"),
    _replaced("order of a loaded vector", r"(ld\.\S+\.v[24]\S* .*)\{(%\w+), (%\w+)", r"\1{\3, \2"),
    _swapped("halves of a pair", r"cvt\.rn\.b?f16x2", -1, 1, 2),
    _replaced("exponential for a reciprocal", r"rcp\.approx", "ex2.approx"),
    _replaced("reciprocal for an exponential", r"ex2\.approx", "rcp.approx"),
    _replaced("sign of a constant", r"(?:mul|fma).*0f([0-7])([0-9A-F]{7})", lambda m:
              f"{m[0][:-8]}{int(m[1], 16) + 8:X}{m[2]}" if m[2] != "0000000" else m[0]),
    _replaced("thread for block", r"%ctaid\.x", "%tid.x"),
    _replaced("parameter", r"(\[\w+_param_)0\]", r"\g<1>1]"),
)  # fmt: skip
