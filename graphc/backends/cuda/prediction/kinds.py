"""Kinds of instructions that PTX and machine code have one for one, so that counts of the one are
counts of the other."""

from __future__ import annotations

import re

from graphc.backends.cuda.prediction.sass import Instruction
from graphc.backends.cuda.ptx.text import SIZES

PRODUCT, GROUP_PRODUCT = "product", "product of a group"
BARRIER, COPY, LOAD, STORE = "barrier", "copy", "load", "store"
BOX, MEETING, REMOTE = f"{COPY} box", "cluster barrier", "cluster load"
SPECIAL = ("ex2", "rcp", "rsqrt", "lg2", "tanh", "sqrt", "sin", "cos")
_SASS = {
    "HMMA": PRODUCT, "IMMA": PRODUCT, "HGMMA": GROUP_PRODUCT, "IGMMA": GROUP_PRODUCT,
    "BAR": BARRIER, "SHFL": "shuffle", "LDSM": "matrices", "ATOM": "atomic", "ATOMG": "atomic",
    "ATOMS": "atomic", "RED": "atomic", "FFMA": "fma", "FADD": "add", "FMUL": "multiply",
    "MUFU": "special", "DFMA": "wide fma", "UTMALDG": BOX,
}  # fmt: skip
_SASS_ACCESSES = {
    "LDG": LOAD, "STG": STORE, "LDS": "shared load", "STS": "shared store", "LDGSTS": COPY,
}  # fmt: skip
_PTX = {
    "mma": PRODUCT, "wgmma.mma_async": GROUP_PRODUCT, "bar.sync": BARRIER, "bar.red": BARRIER,
    "barrier.sync": BARRIER, "shfl": "shuffle", "ldmatrix": "matrices", "atom": "atomic",
    "red": "atomic", "cp.async.bulk": BOX, "barrier.cluster.wait": MEETING,
    "fma.rn.f32": "fma", "add.f32": "add", "sub.f32": "add", "add.rn.f32": "add",
    "sub.rn.f32": "add", "mul.f32": "multiply", "mul.rn.f32": "multiply", "fma.rn.f64": "wide fma",
}  # fmt: skip


def kind_of_sass(instruction: Instruction) -> str | None:
    """The kind of an instruction; None if PTX need not have one for it."""
    access = _SASS_ACCESSES.get(instruction.base)
    return f"{access} {instruction.bytes}" if access else _SASS.get(instruction.base)


def kind_of_ptx(text: str) -> str | None:
    """The kind of an instruction as it is written."""
    opcode = re.sub(r"^@!?%\w+\s+", "", text.strip()).split()[0].rstrip(";")
    parts = opcode.split(".")
    if parts[0] in ("ld", "st") and len(parts) > 2 and parts[-1] in SIZES:
        return _access(parts)
    if parts[:2] == ["cp", "async"] and parts[2] in ("ca", "cg"):
        size = re.search(r"\],\s*\[.*?\],\s*(\d+)", text)
        return f"{COPY} {size[1]}" if size else None
    if parts[0] in SPECIAL and "approx" in parts:
        return "special"
    known = (".".join(parts[:count]) for count in (3, 2, 1))
    return next((_PTX[name] for name in known if name in _PTX), None)


def _access(parts: list[str]) -> str | None:
    vector = next((int(p[1:]) for p in parts if re.fullmatch(r"v\d", p)), 1)
    if "shared::cluster" in parts:
        return f"{REMOTE} {SIZES[parts[-1]] * vector}"
    shared = any(p.startswith("shared") for p in parts)
    if not shared and "global" not in parts:
        return None
    name = LOAD if parts[0] == "ld" else STORE
    return f"{'shared ' if shared else ''}{name} {SIZES[parts[-1]] * vector}"
