"""Mutation testing of what proves CUDA kernels: errors are planted one at a time; are they caught?

    python tests/backends/cuda/ptx_mutants.py [--each N] [--subject NAME] [--kind TEXT] [--ordering]

An error is planted in the PTX of a kernel, which the PTX machine then runs. It is caught if the
machine finds a fault, or results differ from those of the right kernel, in one of two orders of
warps. What survives is listed.
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
from ptx_mutations import MUTATIONS, ORDERING, Mutation

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels
from graphc.backends.cuda.ptx.run import PtxRun
from graphc.backends.cuda.strategies.contraction.wgmma import GroupTile
from graphc.driver import program_for

PRODUCT = """graph @g(%x: f16[150,328], %w: f16[328,88]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
FLOATS = """graph @g(%x: f32[150,136]) -> ? {
  const %w : f32[136,72] = random(seed=1)
  const %b : f32[72] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}"""
ACROSS = """graph @g(%x: f16[632,72], %w: f16[632,136]) -> ? {
  %t = Transpose(%x) {perm=[1,0]}
  %y = MatMul(%t, %w)
  return %y
}"""
BYTES = """graph @g(%x: i8[70,1264]) -> ? {
  const %w : i8[1264,72] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}"""
CONVOLUTION = """graph @g(%x: f16[1,16,9,8]) -> ? {
  const %w : f16[24,16,3,3] = random(seed=1)
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
    "wgmma": PRODUCT.replace("328", "504"), "wgmma across": ACROSS,
    "wgmma s8": BYTES.replace("1264", "1008"),
    "wgmma convolution": WINDOWED, "wgmma split": PRODUCT.replace("328", "1160"),
    "wgmma pairs": ACROSS.replace("72]", "200]"),
    "wgmma attention": attention_of("f16", 2, 70, 270, 64),
}  # fmt: skip
SUBJECTS = {
    "mma f16": (PRODUCT, "f32"), "mma bf16": (FLOATS, "bf16"), "mma tf32": (FLOATS, "tf32"),
    "mma s8": (BYTES, "f32"), "convolution": (CONVOLUTION, "f32"), "tiles": (FLOATS, "f32"),
    "attention": (attention_of("f16", 2, 40, 70, 32), "f32"), "rows": (ROWS, "f32"),
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
_FENCE = (
    "products that add to the same sums need no fence after the first (PTX ISA, wgmma.fence); "
    "it is there for ptxas, which serialises products without"
)
_FENCES = [(name, "2 of 2") for name in ("wgmma", "wgmma s8", "wgmma convolution", "wgmma split")]
_FENCES += [(name, f"{n} of 9") for name in ("wgmma across", "wgmma pairs") for n in range(2, 10)]
_STAGE = "the first stage begins at 0"
_BETWEEN = "no group of columns starts between the two bounds"
_NO_SHARE = "the last groups of threads have no share of the depth: their sums are 0"
_ALIKE = "all lanes of a group have the same totals: whichever stores them"
_EARLY = (
    "a phase that ends too early does harm if the producer runs before the other warps have "
    "arrived, which it does in neither order"
)
_FIRST = "it decides which of two elements a thread reads first, against bank conflicts"
_EXPLAINED = (
    ("attention", "copy of all that is asked", "all", "weights of keys beyond the last are 0"),
    ("convolution", "copy of all that is asked", "all", "columns beyond the last are not stored"),
    ("convolution", "offset of an address", "24 of 24", _NO_SHARE),
    ("tiles", "difference for a sum", "15 of 16", _NO_SHARE),
    ("decoding", "guard negated", "3 of 4", _ALIKE),
    ("decoding", "mask of an index", "1 of 1", _ALIKE),
    ("decoding", "product without a sum", "46 of 172",
     "an exponential's whole part may be another number: the rest makes up for it"),
    ("sorting", "store removed", "1 of 26", "all of the first 512 places get an element"),
    ("sorting", "equality turned over", "1 of 5", _FIRST),
    ("sorting", "bits of a descriptor's address", "1 of 1", _FIRST),
    ("wgmma", "bits of a descriptor's address", "1 of 4", _STAGE),
    ("wgmma s8", "bits of a descriptor's address", "1 of 4", _STAGE),
    ("wgmma", "bound of a comparison", "9 of 9", _BETWEEN),
    ("wgmma s8", "bound of a comparison", "11 of 17", _BETWEEN),
    ("wgmma held", "bound of a comparison", "12 of 33", _BETWEEN),
    ("wgmma pairs", "and for or", "6 of 7", "columns beyond the last are not stored"),
    ("wgmma across", "guard negated", "6 of 36", _EARLY),
    ("wgmma across", "stride of an index", "2 of 8", "10 and 11 share the bit that is taken"),
    ("wgmma split", "parity of a phase", "1 of 3", "the parity of the first slice is 0"),
    ("wgmma", "operands of a difference", "6 of 6",
     "a parity is the lowest bit, which 1 - n and n - 1 share"),
)  # fmt: skip
EXPLAINED: dict[tuple[str, str, str], str] = {
    **{(name, "fence of products removed", place): _FENCE for name, place in _FENCES},
    **{(name, kind, place): why for name, kind, place, why in _EXPLAINED},
}
"""Why some errors change nothing: by subject, kind, and which of the places of that kind it is. For
a kernel with other places, reasons do not hold until they are looked at again."""
BUDGET = 1 << 19  # instructions of a block
ORDERS = 2  # of warps, in which what nobody has noticed runs
NARROW, WIDE = 2e-3, 1e-5  # differences of results, relative to their range, that tests allow
SEED = 7
LARGE = 400.0


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


class Subject:
    """A graph's kernels as PTX, inputs, and the right outputs."""

    def __init__(self, name: str):
        text, precision = SUBJECTS[name]
        self.name = name
        self.arch = HOPPER if name.startswith("wgmma") else "sm_80"
        self.source = _source(name, text, precision)
        self.lines = machine_code(self.source.text, self.arch, "ptx").decode().splitlines()
        self.inputs = inputs_of(self.source.program)
        if name == "decoding":  # one head whose exponentials are infinite, unless maxima are taken
            self.inputs[0][:, 0] *= LARGE
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
        lines = [*self.lines]
        for number, text in ((mutant.line, mutant.after), *mutant.others):
            lines[number] = text
        return next(filter(None, (self._noticed(lines, order) for order in range(ORDERS))), "")

    def _noticed(self, lines: Sequence[str], order: int) -> str:
        """What is wrong with a run."""
        try:
            found = self.outputs(lines, order)
        except (PtxFault, PtxError) as error:
            return str(error)
        except Exception as error:  # of the launch plan: what was never written, say
            return f"{type(error).__name__}: {error}"
        for a, b in zip(self.wanted, found):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            with np.errstate(invalid="ignore"):
                if not (np.abs(a - b) <= self.tolerance * max(np.ptp(a), 1e-30)).all():
                    return "results differ"
        return ""


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
    survivors: list[Mutant] = []
    mutations = ORDERING if given.ordering else MUTATIONS
    mutations = tuple(m for m in mutations if given.kind in m.kind)
    for name in [given.subject] if given.subject else SUBJECTS:
        subject = Subject(name)
        for mutant in sampled(subject, 1 << 30 if given.ordering else given.each, mutations):
            planted[mutant.kind] += 1
            if not subject.caught(mutant):
                survivors.append(mutant)
                text = re.sub(r"\s+", " ", f"{mutant.before} -> {mutant.after}")
                print(f"survived: {name}, line {mutant.line + 1}, {mutant.kind}, "
                      f"{mutant.place}: {text[:230]}; "
                      f"{explanation(mutant) or 'unexplained'}", flush=True)  # fmt: skip
        print(f"{name}: {sum(planted.values())} planted so far", flush=True)
    total = sum(planted.values())
    open_ones = sum(not explanation(mutant) for mutant in survivors)
    print(f"{total} errors of {len(planted)} kinds planted, {len(survivors)} survived "
          f"({len(survivors) / max(total, 1):.1%}), {open_ones} of them unexplained")  # fmt: skip
    return int(open_ones > 0)


if __name__ == "__main__":
    sys.exit(main())
