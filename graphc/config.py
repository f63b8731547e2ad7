"""Settings from the environment: GRAPHC_DEBUG (0..5), GRAPHC_FUEL and GRAPHC_CRASH_WEIGHTS.

GRAPHC_DEBUG: 1 timings, 2 passes, 3 graphs after each pass, 4 kernels and why strategies declined,
5 every rewrite.
"""

from __future__ import annotations

import os
import sys

from graphc.errors import ModelError


def _integer(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ModelError(f"{name} must be an integer, found {text!r}") from None


def debug() -> int:
    """The verbosity GRAPHC_DEBUG asks for; 0 by default."""
    return _integer("GRAPHC_DEBUG") or 0


def fuel() -> int | None:
    """The number of the first rewrite that must not happen (GRAPHC_FUEL); None: no limit."""
    return _integer("GRAPHC_FUEL")


def keeps_weights() -> bool:
    """Whether the directory that an internal error leaves may hold weights and data
    (GRAPHC_CRASH_WEIGHTS=1)."""
    return os.environ.get("GRAPHC_CRASH_WEIGHTS", "").strip() not in ("", "0")


def say(text: str) -> None:
    """Writes a line of debug output."""
    print(text, file=sys.stderr, flush=True)
