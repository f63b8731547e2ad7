"""The table of functions that build operators, which they enter themselves."""

from __future__ import annotations

from collections.abc import Callable

from graphc.frontend.tflite.node import Node

Handler = Callable[[Node], None]
HANDLERS: dict[str, Handler] = {}


def handles(*kinds: str) -> Callable[[Handler], Handler]:
    """Enters a function as what builds these operators."""

    def enter(function: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = function
        return function

    return enter
