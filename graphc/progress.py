"""How far something is, for whoever waits. What takes long tells; somebody may listen, on the same
thread. Where nobody does, telling costs a look at a variable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
_heard: tuple[Listener, int] | None = None


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Has `listener` called with a phase, how many parts of it are done, and how many there are (0
    if that is not known), as long as the body lasts."""
    global _heard
    before, _heard = _heard, (listener, threading.get_ident())
    try:
        yield
    finally:
        _heard = before


def tell(phase: str, done: int = 0, total: int = 0) -> None:
    """Tells how far a phase is."""
    if _heard is not None and _heard[1] == threading.get_ident():
        _heard[0](phase, done, total)


def counted(phase: str, items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """The items, each told of before it is used; `total` where they have no length."""
    if total is None:
        items = list(items)
        total = len(items)
    for number, item in enumerate(items):
        tell(phase, number, total)
        yield item
