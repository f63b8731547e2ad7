"""Answers as text: one layer in full, or a line for each of many."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from graphc.analysis.text import duration, nbytes, quantity, table
from graphc.report.answers import Answer, KernelAnswer
from graphc.report.groups import Group

WIDTH = 100
NAMED = 3  # layers of a kernel that a line of the overview names
LONGEST = 48  # characters of a name in a table


def full(answer: Answer) -> str:
    """All that is known of a layer."""
    layer = answer.layer
    lines = [f"{layer}, which gives {', '.join(layer.results) or 'nothing'}"]
    lines += _paragraph("", answer.fate[:1].upper() + answer.fate[1:] + ".")
    lines += _section("Rewrites, in order", answer.rewrites)
    lines += _section("Layout", answer.layouts)
    for number, members in enumerate(answer.groups, 1):
        several = f" {number} of {len(answer.groups)}" if len(answer.groups) > 1 else ""
        lines += _group(members, f"Fusion group{several}")
    lines += _section("Notes", answer.notes)
    for number, kernel in enumerate(answer.kernels, 1):
        several = f" {number} of {len(answer.kernels)}" if len(answer.kernels) > 1 else ""
        lines += _kernel(kernel, f"Kernel{several}: {kernel.kernel}")
    declined = [f"{rule}: {reason}" for rule, reason in answer.declined]
    return "\n".join([*lines, *_section("Rewrites that were tried and did not apply", declined)])


def _section(title: str, texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield f"\n  {title}"
        for text in texts:
            yield from _paragraph("- ", text)


def _paragraph(mark: str, text: str) -> list[str]:
    first, rest = f"    {mark}", " " * (4 + len(mark))
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest,
                         break_on_hyphens=False, break_long_words=False)  # fmt: skip


def _group(group: Group, title: str) -> Iterator[str]:
    many = (
        "one operator" if len(group.holds) == 1 else f"{len(group.holds)} operators in one kernel"
    )
    yield f"\n  {title}: {many}"
    for name in group.holds:
        yield f"      {name}"
    if group.neighbours:
        yield "    It is not larger, because"
    for side in dict.fromkeys(n.side for n in group.neighbours):
        for neighbour in (n for n in group.neighbours if n.side == side):
            yield from _paragraph("- ", f"it {side} {neighbour.name}: {neighbour.reason}")


def _kernel(kernel: KernelAnswer, title: str) -> Iterator[str]:
    yield f"\n  {title}"
    strategy = f"{kernel.strategy}: {kernel.about}" if kernel.about else kernel.strategy
    bound = "not known without the machine's peaks: give them with --machine GFLOPS,GB/S"
    if kernel.bound is not None and kernel.seconds is not None:
        bound = f"{_BOUNDS[kernel.bound]}; takes at least {duration(kernel.seconds)}"
    total = kernel.bytes_read + kernel.bytes_written
    per_byte = f", {kernel.operations / total:.3g} per byte" if total and kernel.operations else ""
    yield from _row("strategy", strategy)
    for name, reason in kernel.declined:
        yield from _row("", f"not {name}: {reason}")
    if kernel.steps:
        yield from _row("steps", kernel.steps)
    for number, line in enumerate(kernel.schedule):
        yield from _row("" if number else "schedule", line)
    yield from _row("operations", quantity(kernel.operations) + per_byte)
    yield from _row(
        "bytes", f"reads {nbytes(kernel.bytes_read)}, writes {nbytes(kernel.bytes_written)}"
    )
    yield from _row("bound", bound)


_BOUNDS = {
    "compute": "compute: the operations take longer than the bytes",
    "memory": "memory: the bytes do not fit the cache, and take longer than the operations",
    "cache": "cache: the bytes fit the cache, and take longer than the operations",
    "overhead": "overhead: starting the kernel takes longer than its work",
}


def _row(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"    {name:<12}", break_on_hyphens=False,
                         subsequent_indent=" " * 16, break_long_words=False)  # fmt: skip


# ---------------------------------------------------------------- overview


def overview(answers: Iterable[Answer]) -> str:
    """A line for each layer."""
    rows: list[tuple[str, ...]] = [
        ("layer", "operator", "kernels", "strategy", "bound", "at least", "with")
    ]
    rows += [_line(answer) for answer in answers if answer.layer.operator != "Constant"]
    return table(rows, left=7)


def _line(answer: Answer) -> tuple[str, ...]:
    layer = answer.layer
    others = dict.fromkeys(n for k in answer.kernels for n in k.layers if n != layer.name)
    beside = ", ".join(map(_short, list(others)[:NAMED]))
    beside += f" +{len(others) - NAMED}" if len(others) > NAMED else ""
    if not answer.kernels:
        why = "a view, without a kernel" if answer.groups else answer.fate
        return (_short(layer.name), layer.operator, "-", "-", "-", "-", _short(why, WIDTH))
    seconds = [k.seconds for k in answer.kernels if k.seconds is not None]
    return (
        _short(layer.name), layer.operator, _joined(k.kernel for k in answer.kernels),
        _joined(k.strategy for k in answer.kernels),
        _joined(k.bound or "-" for k in answer.kernels),
        duration(sum(seconds)) if seconds else "-", beside,
    )  # fmt: skip


def _joined(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:2]) + (f" +{len(unique) - 2}" if len(unique) > 2 else "")


def _short(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
