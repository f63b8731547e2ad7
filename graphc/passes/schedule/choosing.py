"""Which of several candidates a kernel is made from: what a cost model ranks first, unless a tuner
measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from graphc.ir.kernel import Kernel

T = TypeVar("T")


class Choose(Protocol):
    """What takes one of several candidates for what a text tells `about`; those come first that
    should be fastest, and `kernels_of` makes the kernels of each."""

    def __call__(
        self, about: str, ranked: Iterable[T], kernels_of: Callable[[T], Sequence[Kernel]]
    ) -> T: ...


def take_first(about: str, ranked: Iterable[T], kernels_of: Callable[[T], Sequence[Kernel]]) -> T:
    """The candidate that is taken for the fastest before anything is measured."""
    return next(iter(ranked))
