"""mbarriers and copies in bulk, decoded."""

from __future__ import annotations

import re

from graphc.backends.cuda.ptx.code import Reg
from graphc.backends.cuda.ptx.decode import Decoder, handles
from graphc.backends.cuda.ptx.text import BoxAddress, Immediate, Instruction, Operand, Register

PHASES = ("init", "inval", "arrive", "expect_tx", "arrive.expect_tx", "arrive_drop", "test_wait",
          "test_wait.parity", "try_wait", "try_wait.parity")  # fmt: skip
ORDERS = ("release", "relaxed", "acquire", "cta", "cluster", "shared", "b64")


@handles("mbarrier")
def _mbarrier(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    names = [p for p in parts[1:] if p.split("::")[0] not in ORDERS]
    what, operands = ".".join(names), list(instruction.operands)
    if what not in PHASES:
        raise d.unknown(instruction)
    if "shared" not in [p.split("::")[0] for p in parts]:
        raise d.unknown(instruction, "; it takes .shared")
    d.code.shared_width = min(d.code.shared_width, 8)
    results: list[Reg] = []
    if what.endswith(("wait", "parity")):
        results = d.exact(operands.pop(0), "pred")
        state = d.wide(d.reg(operands[1], "b32" if "parity" in what else "b64"))
        d.to.emit("PHASE", results, [d.place(operands[0]), state], PHASES.index(what))
        return
    if what.startswith("arrive"):
        first = operands.pop(0)
        results = d.exact(first, "b64") if isinstance(first, Register) else []
    wanted = {"init": (2,), "inval": (1,), "arrive": (1, 2), "arrive_drop": (1,)}.get(what, (2,))
    if len(operands) not in wanted:
        raise d.unknown(instruction, f"; it takes {wanted} operands")
    given = [d.place(operands[0]), *(r for o in operands[1:] for r in d.exact(o, "b32"))]
    d.to.emit("PHASE", results, given, PHASES.index(what))


def arrival_with_copies(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    """cp.async.mbarrier.arrive.noinc: an arrival once a thread's copies so far are there."""
    names = [p.split("::")[0] for p in parts[3:]]
    if names != ["arrive", "noinc", "shared", "b64"] or len(instruction.operands) != 1:
        raise d.unknown(instruction, "; it takes .arrive.noinc.shared.b64")
    d.code.shared_width = min(d.code.shared_width, 8)
    d.to.emit("ARRIVE_WITH_COPIES", [], [d.place(instruction.operands[0])])


def bulk_copy(d: Decoder, instruction: Instruction, parts: list[str]) -> None:
    """cp.async.bulk, with .tensor or not."""
    kind = parts[3]
    if kind == "commit_group":
        d.to.emit("COMMIT_BULK")
        return
    if kind == "wait_group":
        left = instruction.operands[0]
        if not isinstance(left, Immediate):
            raise d.unknown(instruction)
        d.to.emit("WAIT_BULK", [], [], left.value)
        return
    if kind == "prefetch":
        d.to.emit("NOTHING")
        return
    spaces = [p.split("::")[0] for p in parts if p.split("::")[0] in ("shared", "global")]
    counted = "mbarrier::complete_tx::bytes" in parts
    if spaces != (["shared", "global"] if counted else ["global", "shared"]) or (
        not counted and "bulk_group" not in parts
    ):
        raise d.unknown(instruction)
    operands = list(instruction.operands)
    if "L2::cache_hint" in parts:
        operands.pop()
    multicast = "multicast::cluster" in parts
    d.code.shared_width = min(d.code.shared_width, 16)
    d.code.global_width = min(d.code.global_width, 16)
    if kind == "tensor":
        _tensor(d, instruction, parts, operands, counted, multicast)
        return
    to, source, size, *rest = operands
    near, far = (to, source) if counted else (source, to)
    given = [
        d.place(near),
        d.place(far),
        d.reg(size, "b32"),
        *_counted(d, instruction, rest, multicast),
    ]
    d.to.emit("BULK_COPY", [], given, int(not counted), 0, int(multicast))


def _tensor(
    d: Decoder, instruction: Instruction, parts: list[str], operands: list[Operand], counted: bool,
    multicast: bool,
) -> None:  # fmt: skip
    rank = re.fullmatch(r"([1-5])d", parts[4])
    near, box, *rest = operands if counted else [operands[1], operands[0], *operands[2:]]
    known = "im2col" not in parts and "im2col_no_offs" not in parts
    if rank is None or not isinstance(box, BoxAddress) or not known:
        raise d.unknown(instruction)
    at = d.exact(box.at, "b32")
    if len(at) != int(rank[1]):
        raise d.unknown(instruction, f"; it takes {rank[1]} coordinates")
    given = [d.place(near), d.wide(d.reg(box.base, "b64")), *at]
    given += _counted(d, instruction, rest, multicast)
    d.to.emit("BULK_TENSOR", [], given, int(not counted), int(rank[1]), int(multicast))


def _counted(
    d: Decoder, instruction: Instruction, rest: list[Operand], multicast: bool
) -> list[Reg]:
    """The mbarrier, and the blocks that a copy goes to."""
    if not rest:
        return []
    if len(rest) != 1 + multicast:
        raise d.unknown(instruction)
    given = [d.place(rest[0])]
    for operand in rest[1:]:
        blocks = d.to.register(32)
        d.to.emit("cvt.u32.u16", [blocks], [d.reg(operand, "b16")])
        given.append(blocks)
    return given
