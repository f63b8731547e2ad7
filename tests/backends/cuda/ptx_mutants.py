"""Mutation testing of what proves CUDA kernels: errors are planted one at a time; are they caught?

    python tests/backends/cuda/ptx_mutants.py [--each N] [--subject NAME] [--kind TEXT] [--ordering]

An error is planted in the PTX of a kernel, which the PTX machine then runs. It is caught if the
machine finds a fault, or results differ from those of the right kernel, in one of three orders of
warps. Errors that provably change nothing (ptx_equivalents.py) are counted apart. What survives is
listed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from cuda_programs import attention_of, graph_of, inputs_of
from hopper_programs import HOPPER, TILE, grouped
from ptx_equivalents import equivalent
from ptx_mutations import MUTATIONS, ORDERING, Mutation

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels
from graphc.backends.cuda.ptx.run import PtxRun
from graphc.backends.cuda.strategies.contraction.wgmma import GroupTile
from graphc.driver import program_for

PRODUCT = """graph @g(%x: f16[150,488], %w: f16[488,88]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
FLOATS = """graph @g(%x: f32[150,232]) -> ? {
  const %w : f32[232,72] = random(seed=1)
  const %b : f32[72] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}"""
ACROSS = """graph @g(%x: f16[632,72], %w: f16[632,200]) -> ? {
  %t = Transpose(%x) {perm=[1,0]}
  %y = MatMul(%t, %w)
  return %y
}"""
BYTES = """graph @g(%x: i8[70,1264]) -> ? {
  const %w : i8[1264,72] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}"""
CONVOLUTION = """graph @g(%x: f16[1,24,9,8]) -> ? {
  const %w : f16[24,24,3,3] = random(seed=1)
  %y = Conv(%x, %w) {pads=[1,0,1,2], strides=[1,2]}
  return %y
}"""
ROWS = """graph @g(%x: f32[9,300]) -> ? {
  const %s : f32[300] = random(seed=1)
  %n = LayerNormalization(%x, %s)
  %y = Softmax(%n)
  return %y
}"""
WINDOWS = """graph @g(%x: f32[1,8,9,9]) -> ? {
  const %w : f32[8,1,3,3] = random(seed=1)
  %y = Conv(%x, %w) {group=8, pads=[1,1,1,1]}
  return %y
}"""
SORTED = """graph @g(%x: f32[3,700]) -> (?, ?) {
  const %k : i64[1] = [9]
  %v, %i = TopK(%x, %k)
  return %v, %i
}"""
WINDOWED = """graph @g(%x: f16[1,9,8,64]) -> ? {
  const %w : f16[72,64,3,3] = random(seed=1)
  %a = Transpose(%x) {perm=[0,3,1,2]}
  %y = Conv(%a, %w) {pads=[1,0,1,2], strides=[1,2]}
  return %y
}"""
GROUPS = {
    "wgmma": PRODUCT.replace("488", "504"), "wgmma across": ACROSS,
    "wgmma s8": BYTES.replace("1264", "1008"),
    "wgmma convolution": WINDOWED, "wgmma split": PRODUCT.replace("488", "1160"),
    "wgmma pairs": ACROSS.replace("72]", "200]"),
    "wgmma attention": attention_of("f16", 2, 70, 382, 64),
}  # fmt: skip
SUBJECTS = {
    "mma f16": (PRODUCT, "f32"), "mma bf16": (FLOATS, "bf16"), "mma tf32": (FLOATS, "tf32"),
    "mma s8": (BYTES, "f32"), "convolution": (CONVOLUTION, "f32"), "tiles": (FLOATS, "f32"),
    "attention": (attention_of("f16", 2, 40, 126, 32), "f32"), "rows": (ROWS, "f32"),
    "decoding": (attention_of("f32", 2, 1, 301, 32), "f32"), "windows": (WINDOWS, "f32"),
    "sorting": (SORTED, "f32"),
    **{name: (text, "f32") for name, text in GROUPS.items()}, "wgmma held": (FLOATS, "tf32"),
}  # fmt: skip
TILES = {
    "wgmma held": GroupTile(128, 64, 128, 64, 32, 2),
    "wgmma across": GroupTile(128, 128, 64, 128, 32, 4, most=1),
    "wgmma convolution": replace(TILE, stages=2),
    "wgmma split": replace(TILE, parts=4),
    "wgmma pairs": GroupTile(64, 128, 64, 128, 32, 4, most=2, cluster=2),
}
_NOTHING = "the copy brings no bytes: its rows lie beyond the depth"
_ALIKE = "all lanes of a group have the same totals: whichever stores them"
_FIRST = "it decides which of two elements a thread reads first, against bank conflicts"
_EXPONENTIAL = "an exponential's whole part may be another number: the rest makes up for it"
_PARITY = "a parity is a bit of the number, which is the same for both tiles of the block"
_EXPLAINED = (
    ("convolution", "copy of all that is asked", "all",
     "what lies beyond the depth is multiplied by 0, beyond the columns it is not stored"),
    ("convolution", "source of a copy", "4 of 4", _NOTHING),
    ("convolution", "operands of a choice", "5 of 6", _NOTHING),
    ("convolution", "mask of an index", "5 of 9", "no window ends beyond the last column"),
    ("tiles", "branch removed", "4 of 17", "columns beyond the last are read, but not stored"),
    ("attention", "operands of a choice", "47 of 50",
     "both sides of a quotient are scaled by 2^64, or neither"),
    ("rows", "operands of a difference", "10 of 31", "the difference is squared"),
    ("rows", "product without a sum", "13 of 48", _EXPONENTIAL),
    ("decoding", "guard negated", "3 of 4", _ALIKE),
    ("decoding", "branch removed", "3 of 4", _ALIKE),
    ("decoding", "mask of an index", "1 of 1", _ALIKE),
    ("decoding", "product without a sum", "46 of 172", _EXPONENTIAL),
    ("sorting", "store removed", "1 of 26", "all of the first 512 places get an element"),
    ("sorting", "bits of a descriptor's address", "1 of 1", _FIRST),
    ("sorting", "equality turned over", "1 of 5", _FIRST),
    ("sorting", "mask of an index", "1 of 3", _FIRST),
    ("sorting", "bound of a comparison", "7 of 14", _FIRST),
    ("sorting", "bound of a comparison", "5 of 14", "no place is moved by 16 bits or more"),
    ("sorting", "and for or", "2 of 8", "later comparisons order numbers that are equal"),
    ("wgmma", "operands of a difference", "6 of 6",
     "a parity is the lowest bit, which 1 - n and n - 1 share"),
    ("wgmma across", "stride of an index", "1 of 8", _PARITY),
    ("wgmma across", "stride of an index", "2 of 8", _PARITY),
    ("wgmma across", "stride of an index", "5 of 8", _PARITY),
    ("wgmma convolution", "source of a copy", "4 of 4",
     "what lies beyond the last column is not stored"),
    ("wgmma attention", "equality turned over", "3 of 4", "no row has all its keys masked"),
)  # fmt: skip
EXPLAINED: dict[tuple[str, str, str], str] = {
    (name, kind, place): why for name, kind, place, why in _EXPLAINED
}
"""Why some errors survive: by subject, kind, and which of the places of that kind it is. For a
kernel with other places, reasons do not hold until they are looked at again."""
BUDGET = 1 << 19  # instructions of a block
ORDERS = (0, 1, 3)  # of warps, in which what nobody has noticed runs
NARROW, WIDE = 2e-3, 1e-5  # differences of results, relative to their range, that tests allow
SEED = 7


def _large(inputs: list[np.ndarray]) -> None:
    """One head whose exponentials are infinite, unless maxima are taken."""
    inputs[0][:, 0] *= 400


def _infinite(inputs: list[np.ndarray]) -> None:
    """The first value of each head is infinite: a weight of 0 for it makes no number."""
    inputs[2][0, :, 0, 0] = np.inf


def _alike(inputs: list[np.ndarray]) -> None:
    """Many equal numbers, with some that are none, or zeros with a sign."""
    inputs[0][:] = np.round(2 * inputs[0]) / 2
    inputs[0][:, 5::90], inputs[0][:, 11::90] = np.nan, -0.0


SHARPER = {"decoding": _large, "attention": _infinite, "wgmma attention": _infinite,
           "sorting": _alike}  # fmt: skip
"""Inputs of which random numbers have too few."""


@dataclass(frozen=True)
class Mutant:
    """A line of a subject's PTX with an error."""

    subject: str
    kind: str
    line: int
    before: str
    after: str
    place: str  # which of the places of the kind
    others: tuple[tuple[int, str], ...] = ()  # further lines, of an error that is everywhere

    @property
    def changes(self) -> dict[int, str]:
        """Lines by their number, as they become."""
        return dict([(self.line, self.after), *self.others])


class Subject:
    """A graph's kernels as PTX, inputs, and the right outputs."""

    def __init__(self, name: str):
        text, precision = SUBJECTS[name]
        self.name = name
        self.arch = HOPPER if name.startswith("wgmma") else "sm_80"
        self.source = _source(name, text, precision)
        self.lines = machine_code(self.source.text, self.arch, "ptx").decode().splitlines()
        self.inputs = inputs_of(self.source.program)
        SHARPER.get(name, lambda inputs: None)(self.inputs)
        narrow = "f16" in text
        self.tolerance = NARROW if narrow else WIDE
        self.wanted = self.outputs(self.lines)

    def outputs(self, lines: Sequence[str], order: int = 0) -> list[np.ndarray]:
        kernels = PtxKernels("\n".join(lines), BUDGET)
        return PtxRun(self.source, kernels, self.inputs, order).outputs()

    def mutants(self, mutations: Iterable[Mutation]) -> Iterator[Mutant]:
        """All errors of some kinds."""
        for mutation in mutations:
            changed = [(n, mutation.mutated(line)) for n, line in enumerate(self.lines)]
            places = [(n, text) for n, text in changed if text is not None]
            if mutation.everywhere and places:
                (first, text), *others = places
                yield Mutant(
                    self.name, mutation.kind, first, self.lines[first], text, "all", (*others,)
                )
            for n, (number, text) in enumerate([] if mutation.everywhere else places, 1):
                place = f"{n} of {len(places)}"
                yield Mutant(self.name, mutation.kind, number, self.lines[number], text, place)

    def caught(self, mutant: Mutant) -> str:
        """How a mutant is caught; nothing, if it survives."""
        changes = mutant.changes
        return self.fault([changes.get(n, line) for n, line in enumerate(self.lines)])

    def equivalent(self, mutant: Mutant) -> str:
        """By which criterion a mutant changes nothing; nothing if by none."""
        return equivalent(self.lines, mutant.changes, self.arch, self.fault)

    def fault(self, lines: Sequence[str]) -> str:
        """What is wrong with a text, in some order of warps; nothing if it is right."""
        return next(filter(None, (self._noticed(lines, order) for order in ORDERS)), "")

    def _noticed(self, lines: Sequence[str], order: int) -> str:
        """What is wrong with a run."""
        try:
            found = self.outputs(lines, order)
        except (PtxFault, PtxError) as error:
            return str(error)
        except Exception as error:  # of the launch plan: what was never written, say
            return f"{type(error).__name__}: {error}"
        for a, b in zip(self.wanted, found):
            if not _agree(np.asarray(a, np.float64), np.asarray(b, np.float64), self.tolerance):
                return "results differ"
        return ""


def _agree(wanted: np.ndarray, found: np.ndarray, tolerance: float) -> bool:
    """Whether results are alike, relative to their range; what is not finite must be the same."""
    finite = wanted[np.isfinite(wanted)]
    bound = tolerance * max(np.ptp(finite) if finite.size else 0, 1e-30)
    with np.errstate(invalid="ignore"):
        alike = (np.abs(wanted - found) <= bound) | (wanted == found)
    return bool((alike | np.isnan(wanted) & np.isnan(found)).all())


def _source(name: str, text: str, precision: str) -> CudaSource:
    if not name.startswith("wgmma"):
        return emit(program_for(graph_of(text), "cuda", precision=precision))
    return grouped(text, TILES.get(name, TILE), precision)


def explanation(mutant: Mutant) -> str:
    """Why a mutant may survive; nothing if no reason is known."""
    return EXPLAINED.get((mutant.subject, mutant.kind, mutant.place), "")


def sampled(subject: Subject, each: int, mutations: Sequence[Mutation] = MUTATIONS) -> list[Mutant]:
    """Mutants of a subject: of each kind at most so many, the same in every run."""
    chosen: list[Mutant] = []
    for mutation in mutations:
        known = [*subject.mutants([mutation])]
        rng = random.Random(f"{SEED} {subject.name} {mutation.kind}")
        chosen += rng.sample(known, min(each, len(known)))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--each", type=int, default=3, help="mutants of a kind and subject")
    parser.add_argument("--subject", help="one of: " + ", ".join(SUBJECTS))
    parser.add_argument("--kind", default="", help="kinds that hold this text")
    parser.add_argument("--ordering", action="store_true", help="every fence, wait and barrier")
    given = parser.parse_args()
    planted: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    survivors: list[Mutant] = []
    mutations = ORDERING if given.ordering else MUTATIONS
    mutations = tuple(m for m in mutations if given.kind in m.kind)
    for name in [given.subject] if given.subject else SUBJECTS:
        subject = Subject(name)
        for mutant in sampled(subject, 1 << 30 if given.ordering else given.each, mutations):
            planted[mutant.kind] += 1
            if subject.caught(mutant):
                continue
            criterion = subject.equivalent(mutant)
            text = re.sub(r"\s+", " ", f"{mutant.before} -> {mutant.after}")
            why = criterion if criterion else explanation(mutant) or "unexplained"
            print(f"{'equivalent' if criterion else 'survived'}: {name}, line {mutant.line + 1}, "
                  f"{mutant.kind}, {mutant.place}: {text[:230]}; {why}", flush=True)  # fmt: skip
            if criterion:
                equal[criterion] += 1
            else:
                survivors.append(mutant)
        print(f"{name}: {planted.total()} planted so far", flush=True)
    total = planted.total() - equal.total()
    open_ones = sum(not explanation(mutant) for mutant in survivors)
    criteria = ", ".join(f"{count} by {name}" for name, count in equal.items()) or "none"
    print(f"{planted.total()} errors of {len(planted)} kinds planted, equivalent: {criteria}")
    print(f"of the other {total} {len(survivors)} survived ({len(survivors) / max(total, 1):.1%}), "
          f"{open_ones} of them unexplained")  # fmt: skip
    return int(open_ones > 0)


if __name__ == "__main__":
    sys.exit(main())
