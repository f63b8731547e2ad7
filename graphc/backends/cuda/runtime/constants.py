"""Constants of models on a GPU. Large ones are there once, however many models of a driver have
them: a model that is compiled for several shapes is several launch plans with much the same
weights."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from .driver import Driver
from .memory import Memory

SHARED_BYTES = 1 << 20  # from here on a constant is looked up; smaller ones lie side by side


class Constants:
    """The constants of a launch plan, from the bytes of weights.bin; `pointers` by number."""

    def __init__(self, plan: Mapping[str, Any], weights: Any, memory: Memory, stream: object):
        data = np.frombuffer(weights, np.uint8)
        starts = [constant["offset"] for constant in plan["constants"]]
        pieces = [data[a:b] for a, b in pairwise([*starts, plan["weights_bytes"]])]
        small = [piece for piece in pieces if piece.nbytes < SHARED_BYTES]
        place = 0
        if small:
            together = np.concatenate(small)
            place = memory.allocate(together.nbytes)
            memory.driver.upload(place, together, stream)
            memory.driver.synchronize(stream)
        self._large: list[_Large] = []  # kept as long as this is
        self.pointers: list[int] = []
        for piece in pieces:
            if piece.nbytes < SHARED_BYTES:
                self.pointers.append(place)
                place += piece.nbytes
            else:
                self._large.append(_the_one(memory.driver, piece, stream))
                self.pointers.append(self._large[-1].pointer)


class _Large:
    """A constant that models may share; its memory is given back with the last of them."""

    def __init__(self, driver: Driver, data: np.ndarray, stream: object):
        memory = Memory(driver)
        weakref.finalize(self, memory.close)
        self.pointer = memory.allocate(data.nbytes)
        driver.upload(self.pointer, data, stream)
        driver.synchronize(stream)  # whoever shares it reads it on other streams


_known: weakref.WeakKeyDictionary[Driver, weakref.WeakValueDictionary[bytes, _Large]]
_known = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _the_one(driver: Driver, data: np.ndarray, stream: object) -> _Large:
    """The constant with these contents on a GPU."""
    digest = hashlib.sha256(data.data).digest()
    with _lock:
        there = _known.setdefault(driver, weakref.WeakValueDictionary())
        constant = there.get(digest)
        if constant is None:
            constant = there[digest] = _Large(driver, data, stream)
        return constant
