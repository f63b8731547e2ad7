"""Prints the steps of a program as C: loops, branches and copies, around calls of kernels.

A loop counts its trips in a variable of its own, tripN inside N others. Only a loop whose number of
trips is read from memory, or that has none, counts in 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.backends.cfamily.spell import storage_type
from graphc.ir.dtypes import DType, boolean, i32, i64
from graphc.ir.program import AnyStep, Copy, Count, If, Slot, Step, While
from graphc.ir.types import Dim, largest

INDENT = "    "
WIDTH = 100  # of a line; longer calls are broken


class StepPrinter:
    """Prints steps; subclasses say how kernels are called, and where slots are."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.around = 0  # loops around
        self.depth = 1

    def call(self, step: Step) -> None:
        """Prints the call of a kernel."""
        raise NotImplementedError

    def pointer(self, slot: Slot, c_type: str, is_const: bool) -> str:
        """A pointer to a slot."""
        raise NotImplementedError

    def note(self, step: AnyStep) -> None:
        """Prints what a step computes, as a comment."""
        raise NotImplementedError

    # ------------------------------------------------------------ lines

    def line(self, text: str) -> None:
        """Adds a line; directives of the preprocessor stand at its start."""
        self.lines.append(text if text.startswith("#") else INDENT * self.depth + text)

    def call_of(self, function: str, arguments: Sequence[str]) -> None:
        """Adds a call, an argument a line if it is long."""
        call = f"{function}({', '.join(arguments)});"
        if len(INDENT) * self.depth + len(call) <= WIDTH:
            self.line(call)
            return
        self.line(f"{function}(")
        for argument in arguments[:-1]:
            self.line(f"{INDENT}{argument},")
        self.line(f"{INDENT}{arguments[-1]});")

    def block(self, head: str, steps: Sequence[AnyStep], first: Sequence[str] = ()) -> None:
        """Steps between braces."""
        self.line(f"{head} {{")
        self.depth += 1
        for text in first:
            self.line(text)
        self.steps(steps)
        self.depth -= 1
        self.line("}")

    # ------------------------------------------------------------ steps

    def steps(self, steps: Sequence[AnyStep]) -> None:
        """Prints steps in order."""
        for step in steps:
            if isinstance(step, Step):
                self.call(step)
            elif isinstance(step, Copy):
                self.copy(step)
            elif isinstance(step, Count):
                self.count(step)
            elif isinstance(step, While):
                self.note(step)
                self.loop(step)
            else:
                self.note(step)
                self.branch(step)

    def count(self, step: Count) -> None:
        """Prints that a size is known from here on."""
        raise NotImplementedError

    def copy(self, step: Copy) -> None:
        if step.source.elements != 0:
            source = self.moved(step.source, step.source_stride, True)
            target = self.moved(step.target, step.target_stride, False)
            nbytes = self.nbytes(step.source.elements, step.source.dtype.size)
            copy = "memmove" if step.overlaps else "memcpy"
            self.line(f"{copy}({target}, {source}, {nbytes});")

    def nbytes(self, count: Dim, size: int) -> str:
        """The bytes of so many elements."""
        assert isinstance(count, int), "this form of C has no sizes"
        return f"{count * size}u"

    def number(self, dim: Dim) -> str:
        """A number over sizes, as a factor or an operand of a comparison."""
        assert isinstance(dim, int), "this form of C has no sizes"
        return str(dim)

    def moved(self, slot: Slot, stride: Dim, is_const: bool) -> str:
        """The bytes of a slot, which moves on with each trip of the loop around."""
        pointer = self.pointer(slot, "uint8_t", is_const)
        if stride == 0:
            return pointer
        is_back = isinstance(stride, int) and stride < 0
        apart = self.number(-stride if is_back else stride)
        return f"{pointer} {'-' if is_back else '+'} {self.trip(self.around - 1)} * {apart}"

    def trip(self, number: int) -> str:
        """The variable that counts the trips of a loop inside of so many others."""
        return f"trip{number}"

    def loop(self, step: While) -> None:
        trip, kind = self.trip(self.around), _counted_in(step)
        start, going = f"{kind} {trip} = 0", []
        if isinstance(step.trips, Slot):
            start += f", trips{self.around} = {self.value(step.trips, i64)}"
            going.append(f"{trip} < trips{self.around}")
        elif step.trips is not None:
            going.append(f"{trip} < {self.number(step.trips)}")
        if step.condition is not None:
            going.append(f"{self.value(step.condition, boolean)} != 0")
        first = []
        if step.counter is not None:
            first.append(f"{self.value(step.counter, i64, False)} = {trip};")
        self.around += 1
        self.block(f"for ({start}; {' && '.join(going)}; ++{trip})", step.body, first)
        self.around -= 1

    def branch(self, step: If) -> None:
        truth = self.value(step.condition, boolean)
        self.block(f"if ({truth} != 0)", step.then)
        if step.orelse:
            self.lines.pop()
            self.block("} else", step.orelse)

    def value(self, slot: Slot, dtype: DType, is_const: bool = True) -> str:
        """The one element of a slot."""
        pointer = self.pointer(slot, storage_type(dtype), is_const)
        return f"*({pointer})" if " + " in pointer and pointer[0] != "(" else f"*{pointer}"


def _counted_in(step: While) -> str:
    """The type that counts the trips of a loop: that of offsets as well."""
    if step.trips is None or isinstance(step.trips, Slot):
        return "int64_t"
    strides = [abs(s) if isinstance(s, int) else largest(s)
               for inner in step.body if isinstance(inner, Copy)
               for s in (inner.source_stride, inner.target_stride)]  # fmt: skip
    return "int32_t" if largest(step.trips) * max([*strides, 1]) <= i32.max else "int64_t"
