"""The steps of a plan with control flow as a C++ function: loops and branches of the host around
launches and copies (graphc_model.h has what it calls)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

HEAD = "void steps(graphc::Steps &run, const int64_t *{size})"
INDENT = "    "


class StepPrinter:
    """Prints steps; `place` and `number` spell places and numbers of the plan, `counts` numbers the
    sizes that data decides. A loop counts its trips in tripN inside N others."""

    def __init__(
        self, place: Callable[[Mapping], str], number: Callable[[Any], str],
        counts: Mapping[str, int],
    ):  # fmt: skip
        self.place, self.number, self.counts = place, number, counts
        self.lines: list[str] = []
        self.around = 0  # loops around
        self.depth = 0

    def function(self, steps: Sequence[Mapping]) -> list[str]:
        """The lines of the function."""
        self.block("", steps)
        uses_sizes = any("size[" in line for line in self.lines)
        return [HEAD.format(size="size" if uses_sizes else ""), *self.lines]

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text)

    def block(self, head: str, steps: Sequence[Mapping], first: str = "") -> None:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        if first:
            self.line(first)
        for step in steps:
            ((kind, what),) = step.items()
            getattr(self, f"_{kind}")(what)
        self.depth -= 1
        self.line("}")

    def _launch(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.line(f"run.launch({number});")

    def _copy(self, what: Mapping) -> None:
        source, target = (
            self._moved(what[side], stride)
            for side, stride in zip(("source", "target"), what["strides"])
        )
        self.line(f"run.copy({target}, {source}, {self.number(what['bytes'])});")

    def _moved(self, place: Mapping, stride: Any) -> str:
        spelt = self.place(place)
        if stride == 0:
            return spelt
        return f"graphc::moved({spelt}, trip{self.around - 1} * {self.number(stride)})"

    def _while(self, loop: Mapping) -> None:
        level, trips, going = self.around, loop["trips"], []
        trip, counter = f"trip{level}", loop["counter"]
        start = f"int64_t {trip} = 0"
        if isinstance(trips, Mapping):
            start += f", trips{level} = run.number({self.place(trips)})"
            going.append(f"{trip} < trips{level}")
        elif trips is not None:
            going.append(f"{trip} < {self.number(trips)}")
        if loop["condition"] is not None:
            going.append(f"run.holds({self.place(loop['condition'])})")
        first = "" if counter is None else f"run.launch({counter}, &{trip});"
        self.around += 1
        self.block(f"for ({start}; {' && '.join(going)}; ++{trip})", loop["body"], first)
        self.around -= 1

    def _if(self, what: Mapping) -> None:
        self.block(f"if (run.holds({self.place(what['condition'])}))", what["then"])
        if what["else"]:
            self.block("else", what["else"])

    def _count(self, what: Mapping) -> None:
        self.line(
            f"run.count({self.counts[what['size']]}, run.number({self.place(what['place'])}));"
        )
