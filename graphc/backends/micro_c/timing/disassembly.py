"""Instructions as objdump shows them, and the classes that take the same cycles.

What an instruction writes is its first operand (both of a long product, all of a list), and what it
reads are the others: enough to see which of two instructions waits for the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"^\s*([0-9a-f]+):\t([0-9a-f ]+?)\s*\t(\S+)(?:\s+(.*))?$")
_REGISTER = re.compile(r"\b(?:r\d+|[sdq]\d+|sp|lr|pc|ip|fp|sl|sb|ra|gp|tp|a\d|t\d|zero)\b")
_SPAN = re.compile(r"\b([a-z])(\d+)\s*-\s*[a-z](\d+)")

ALU, MUL, MAC, LONG, DIV = "alu", "mul", "mac", "long mul", "div"
LOAD, STORE, LOADS, STORES = "load", "store", "load multiple", "store multiple"
BRANCH, JUMP, CALL, LOOP = "branch", "jump", "call", "loop end"
FLOAT, FMUL, FMA, FDIV = "float", "float mul", "float mac", "float div"
VALU, VMAC, VLOAD, VSTORE = "vector", "vector mac", "vector load", "vector store"
CLASSES = (
    ALU, MUL, MAC, LONG, DIV, LOAD, STORE, LOADS, STORES, BRANCH, JUMP, CALL, LOOP, FLOAT, FMUL,
    FMA, FDIV, VALU, VMAC, VLOAD, VSTORE,
)  # fmt: skip

_CONDITIONS = "eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|hs|lo"
# The first pattern that matches a whole mnemonic (less .n and .w) decides.
_ARM = [
    (VLOAD, r"vld[r24]\w*(\.\w+)?"), (VSTORE, r"vst[r24]\w*(\.\w+)?"),
    (LOADS, r"v?ldm\w*|v?pop|ldrd"), (STORES, r"v?stm\w*|v?push|strd"),
    (LOAD, r"v?ldr\w*(\.\w+)?"), (STORE, r"v?str\w*(\.\w+)?"),
    (LOOP, r"le|letp"), (CALL, r"blx?"), (JUMP, r"bx\w*|b|tb[bh]|wls\w*"),
    (BRANCH, rf"b({_CONDITIONS})|cbn?z|bf\w*"),
    (DIV, r"[su]div\w*"), (LONG, r"[su]m(ull|lal)\w*|umaal|smlal\w+|smlsl\w+"),
    (MAC, r"ml[as]\w*|sml[as]\w+|smml[as]\w*"), (MUL, r"muls?\w*|smul\w+|smmul\w*|smu[as]d\w*"),
    (FDIV, r"v(div|sqrt)\w*\.f\w+"),
    (FMA, r"vn?f?n?ml[as]\w*\.f\w+|vfn?m[as]\w*\.f\w+"), (FMUL, r"vn?mul\w*\.f\w+"),
    (VMAC, r"vr?ml[as]\w*\.[sui]\w+|vq?r?d?mul\w*\.[sui]\w+|vq?r?dml\w+\.\w+"),
    (VALU, r"v\w+\.(s8|u8|i8|s16|u16|i16|i32|8|16)|v(and|orr|eor|bic|mvn|psel|pst|pt)\w*"),
    (FLOAT, r"v\w+(\.\w+)*"),
]  # fmt: skip
_VECTOR = (VLOAD, VSTORE, VALU, VMAC)
_OF_VECTORS = {FLOAT: VALU, FMUL: VMAC, FMA: VMAC}
_RISCV = [
    (LOAD, r"(c\.)?l[bhw]u?(sp)?"), (STORE, r"(c\.)?s[bhw](sp)?"), (MUL, r"mul\w*"),
    (DIV, r"(div|rem)u?"), (BRANCH, r"(c\.)?b(eq|ne|lt|ge|gt|le)u?z?"),
    (CALL, r"jal|call|c\.jal|c\.jalr|jalr"), (JUMP, r"(c\.)?(j|jr|ret|tail)"),
]  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """An instruction: its place and size in bytes, its class, the registers that it writes and
    reads, how many it moves to or from memory, and whether an operand is a shifted register or an
    address the sum of two."""

    address: int
    size: int
    mnemonic: str
    kind: str
    writes: frozenset[str]
    reads: frozenset[str]
    count: int = 1
    indexed: bool = False
    jumps: bool = False  # loads the program counter


def kind_of(mnemonic: str, operands: str, riscv: bool) -> str:
    """The class of an instruction."""
    plain = re.sub(r"\.[nw]$", "", mnemonic)
    vector = "q" in {r[0] for r in _REGISTER.findall(operands)}
    for kind, pattern in _RISCV if riscv else _ARM:
        if kind in _VECTOR and not vector and not plain.startswith("vp"):
            continue
        if re.fullmatch(pattern, plain):
            return _OF_VECTORS.get(kind, kind) if vector else kind
    return ALU


def read_disassembly(text: str, riscv: bool = False) -> dict[int, Instruction]:
    """The instructions of an image by address."""
    instructions = {}
    for line in text.splitlines():
        parsed = _LINE.match(line)
        if parsed and not parsed[3].startswith("."):
            address = int(parsed[1], 16)
            size = len(parsed[2].replace(" ", "")) // 2
            operands = re.split(r"[;@<#]\s*(?=\()|\s[;@<]", parsed[4] or "")[0]
            instructions[address] = _instruction(address, size, parsed[3], operands, riscv)
    return instructions


def _instruction(address: int, size: int, mnemonic: str, operands: str, riscv: bool) -> Instruction:
    kind = kind_of(mnemonic, operands, riscv)
    spread = _SPAN.sub(lambda m: ", ".join(f"{m[1]}{n}" for n in range(int(m[2]), int(m[3]) + 1)),
                       operands)  # fmt: skip
    names = _REGISTER.findall(spread)
    listed = _REGISTER.findall(spread[spread.find("{") :]) if "{" in spread else []
    count = len(listed) or (2 if kind in (LOADS, STORES) else 1)
    if kind in (STORE, STORES, BRANCH, JUMP, VSTORE) or mnemonic.startswith(("cmp", "tst", "cmn")):
        writes: list[str] = []
    elif kind == LOADS and listed:
        writes = listed
    else:
        writes = names[: 2 if kind in (LONG, LOADS) else 1]
    accumulates = kind in (LONG, FMA, VMAC) or len(names) < 3 and kind == ALU
    reads = names if accumulates or not writes else names[len(writes) :]
    address_part = operands[operands.find("[") :] if "[" in operands else ""
    return Instruction(
        address, size, mnemonic, kind, frozenset(writes), frozenset(reads), count,
        len(_REGISTER.findall(address_part.split("]")[0])) > 1, kind in (LOAD, LOADS)
        and "pc" in writes,
    )  # fmt: skip
