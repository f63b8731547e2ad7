"""The types of instructions: what operands each of those in instructions.py takes.

An operand is a place (an element of an array, or a scalar variable), which the instruction reads,
writes or both; a value; or a number known when the kernel is compiled. Types are checked before a
kernel is printed, so that a wrong operand is an error of the kernel and not one of CUDA's compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.backends.cuda import bulk_instructions as bulk
from graphc.backends.cuda import warpgroup_instructions as warpgroup
from graphc.backends.cuda.instructions import (
    LARGEST,
    MATRICES,
    PACKS,
    POWER,
    PRODUCTS,
    ROUND,
    TRADE,
)
from graphc.ir.dtypes import DType, boolean, f32, i32, i64, u32, u64
from graphc.ir.expr import REDUCTIONS, Const, Expr, Load
from graphc.ir.kernel import Intrin

PLACES = ("reads", "writes", "updates")
Types = tuple[DType, ...]


@dataclass(frozen=True)
class Operand:
    """Its `role` ("reads", "writes" or "updates" a place, "value", "number") and the types it may
    have; none: any."""

    role: str
    types: Types = ()

    def problem(self, given: Expr) -> str:
        """What is wrong with what is given; empty if nothing."""
        wanted = "a place" if self.role in PLACES else f"a {self.role}"
        fits = not self.types or given.dtype in self.types
        fits = fits and (self.role not in PLACES or isinstance(given, Load))
        fits = fits and (self.role != "number" or isinstance(given, Const))
        names = " or ".join(map(str, self.types)) or "any type"
        kind = "place" if isinstance(given, Load) else "value"
        return "" if fits else f"{wanted} of {names}, found a {kind} of {given.dtype}: {given}"


def _places(role: str, count: int, *types: DType) -> tuple[Operand, ...]:
    return (Operand(role, types),) * count


WORD, NUMBER, WORDS = Operand("value", (u32,)), Operand("number", (i64,)), Operand("reads", (u32,))
ANY_PLACE = Operand("reads")
PHASE = Operand("updates", (u64,))
WARP_REDUCTIONS = {f"warp_{name}": operation for name, operation in REDUCTIONS.items()}
WARP_RUNNING = {f"running_{name}": REDUCTIONS[name] for name in ("sum", "prod")}


def _sum(type: str) -> DType:
    """What products of a type add up to."""
    return f32 if type in ("f16", "bf16", "tf32") else i32


SIGNATURES: dict[str, tuple[Operand, ...]] = {
    "copy16": (Operand("writes", (u32,)), ANY_PLACE, Operand("value", (boolean,)), WORD),
    "commit_copies": (),
    "wait_copies": (NUMBER,),
    **dict.fromkeys(WARP_RUNNING, (Operand("updates"),)),
    POWER: (Operand("writes", (f32,)), Operand("value", (f32,))),
    LARGEST: (Operand("updates", (i32,)), Operand("value", (i32,))),
    TRADE: _places("updates", 2, f32, i32),
    ROUND: _places("updates", 4, u32),
    **{name: (*_places("writes", 4, u32), WORDS) for name in MATRICES},
    **{name: (Operand("writes", (u32,)), *(Operand("value", (f32,)),) * 2) for name in PACKS},
    **{
        name: (*_places("updates", 4, _sum(name.removeprefix("mma_"))), *(WORD,) * 6)
        for name in PRODUCTS
    },
    **{
        name: (Operand("updates", (_sum(type),)), WORDS, WORDS, *(NUMBER,) * 4)
        for name, (type, _) in warpgroup.PRODUCTS.items()
    },
    **{
        name: (
            Operand("updates", (f32,)),
            *(WORD,) * 4,
            WORDS,
            *(NUMBER,) * (2 * (type in warpgroup.ACROSS_TYPES)),
        )
        for name, (type, _) in warpgroup.HELD.items()
    },
    **{name: (Operand("updates", (f32, i32)),) for name in warpgroup.TAKES},
    **dict.fromkeys(warpgroup.ORDERS, ()),
    warpgroup.WAIT: (NUMBER,),
    warpgroup.UNIFORM: (Operand("writes", (i32,)), Operand("value", (i64,))),
    **{
        name: (
            Operand("writes", (u32,)),
            PHASE,
            ANY_PLACE,
            *(Operand("value", (i64,)),) * rank,
            *(NUMBER,) * (3 * rank - 1 + (name in bulk.SHARED_BOXES)),
        )
        for name, rank in bulk.BOXES.items()
    },
    **dict.fromkeys(bulk.PHASES, (PHASE, Operand("value", (i64,)))),
    **dict.fromkeys((bulk.BACK, bulk.BACK_TO_BOTH, bulk.ARRIVE), (PHASE,)),
    bulk.MEET: (NUMBER,),
    bulk.FENCE: (),
    bulk.FROM_BLOCK: (
        Operand("reads", (f32,)),
        Operand("value", (i64,)),
        *_places("writes", 2, f32),
    ),
    bulk.MEET_WARP: (),
    bulk.TAKE: (NUMBER,),
    bulk.LEAVE: (NUMBER,),
}
VARIADIC: dict[str, tuple[Operand, Operand]] = {
    "load_vector": (ANY_PLACE, Operand("writes")),
    "store_vector": (Operand("writes"), Operand("value")),
    **dict.fromkeys(WARP_REDUCTIONS, (Operand("updates"), NUMBER)),
}
"""The first operand, and what each of any further ones is."""


def signature(stmt: Intrin) -> tuple[Operand, ...] | None:
    """What each operand should be; None if the instruction is not known."""
    if stmt.name in VARIADIC:
        first, other = VARIADIC[stmt.name]
        return (first, *(other,) * (len(stmt.args) - 1))
    return SIGNATURES.get(stmt.name)


def written(stmt: Intrin) -> set[str]:
    """The arrays that it may write: all it names if it is not known."""
    operands = signature(stmt) or (Operand("updates"),) * len(stmt.args)
    return {
        given.source
        for given, operand in zip(stmt.args, operands)
        if isinstance(given, Load) and operand.role in ("writes", "updates")
    }


def mismatch(stmt: Intrin) -> str:
    """What is wrong with the operands of an instruction, if it is known; empty if nothing."""
    operands = signature(stmt)
    return "" if operands is None else _mismatch(stmt, operands)


def _mismatch(stmt: Intrin, operands: Sequence[Operand]) -> str:
    if len(stmt.args) != len(operands):
        return f"{stmt.name} takes {len(operands)} operands, found {len(stmt.args)}"
    problems = (operand.problem(given) for operand, given in zip(operands, stmt.args))
    numbered = ((n, problem) for n, problem in enumerate(problems, 1) if problem)
    return next((f"operand {n} of {stmt.name} is {problem}" for n, problem in numbered), "")
