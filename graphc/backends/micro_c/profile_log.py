"""The log of a build with -DNAME_PROFILE: `profile LAYER COUNT NAME`, anywhere in a line."""

from __future__ import annotations

import re

from graphc.backends.micro_c.hooks import layer_title, literal
from graphc.errors import ModelError
from graphc.ir.program import Program

LINE = re.compile(r"profile (\d+) (\d+)(?: (.*))?")


def read_profile(text: str, program: Program) -> list[list[int]]:
    """For each kernel call of a program the counts that its runs took. ModelError if the layers are
    not those of the program, or there are none."""
    names = [literal(layer_title(step)) for step in program.calls]
    counts: list[list[int]] = [[] for _ in names]
    for match in filter(None, map(LINE.search, text.splitlines())):
        layer, count, name = int(match[1]), int(match[2]), (match[3] or "").strip()
        if layer >= len(names) or name not in ("", names[layer]):
            known = names[layer] if layer < len(names) else f"none, of {len(names)}"
            raise ModelError(
                f"layer {layer} is {name!r} there, and {known!r} in the model: is it the log of "
                "this model, for the same --cpu, --opt and --io?"
            )
        counts[layer].append(count)
    if not any(counts):
        raise ModelError("no line has the form `profile LAYER COUNT NAME`")
    return counts
