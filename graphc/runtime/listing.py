"""What a model was compiled to, and why: what `executables()` of a model gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from graphc.records import dataclass

Run = Callable[[Sequence[Any]], list[Any]]
FROM_CACHE = "from the cache of models"
FROM_FILE = "from the file"


@dataclass(frozen=True)
class ExecutableInfo:
    """Something that a model was compiled to; or, if `run` is None, was not.

    `shapes` are the shapes of the inputs that it serves, in order. In those of a general program,
    which serves all shapes within bounds, open dims are expressions over sizes (their text, if it
    was loaded); `bounds` tells the least and largest value of each size by name. `contents` are the
    inputs whose contents it was compiled for as well. `why` says why it exists, or why there is
    none. `seconds` is the time that compiling took: 0 if it was loaded.
    """

    shapes: tuple
    run: Run | None = field(repr=False)
    why: str
    seconds: float = 0.0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    contents: tuple[str, ...] = ()

    @property
    def is_general(self) -> bool:
        """Whether it serves all shapes within bounds."""
        return any(not isinstance(d, int) for s in self.shapes if isinstance(s, tuple) for d in s)

    @property
    def serves(self) -> str:
        """The shapes, with the bounds of sizes, in words."""
        text = " ".join(map(_shape, self.shapes)) or "no inputs"
        limits = [f"{name} in {low}..{high}" for name, (low, high) in self.bounds.items()]
        text += f" where {', '.join(limits)}" if limits else ""
        return text + (f" for contents of {', '.join(self.contents)}" if self.contents else "")

    def __str__(self) -> str:
        kind = "general" if self.is_general else "exact"
        return f"{self.serves}: {kind if self.run is not None else 'none'}, {self.why}"


def _shape(shape: object) -> str:
    return f"[{', '.join(map(str, shape))}]" if isinstance(shape, tuple) else str(shape)
