"""Candidates for kernels, chosen by measurement, and kept.

A `Tuner` measures the candidates that a model of costs ranks first, by turns, and takes the
fastest; the first one, unless another is faster by more than measurements differ. What is taken is
kept by machine and by what is computed: in the disk cache, and in a file (`Records`) if there is
one. A structure whose choice is known is not measured again, so that kernels are the same from then
on; a file may come from another machine of the same kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from graphc.backends.cache import DiskCache, cache_key
from graphc.errors import ModelError
from graphc.files import write_text
from graphc.ir.kernel import Kernel, sized
from graphc.ir.program import Program, program_of
from graphc.ir.types import TensorType

TRIED = 6  # candidates that are measured
MARGIN = 0.05  # by which one must be faster than the first
ABOUT = 200  # characters of a structure that records show
FORMAT = "graphc schedules 1"
T = TypeVar("T")
Measure = Callable[[Sequence[Sequence[Kernel]]], Sequence[float]]
"""The time of the kernels of each candidate, in any unit; infinite where a machine refuses them."""


def program_alone(kernels: Sequence[Kernel]) -> Program:
    """A program that calls kernels one after another, on inputs and outputs of their own."""
    return program_of(*(replace(k, name=f"{k.name}_{n}") for n, k in enumerate(kernels)))


def contents(type: TensorType) -> np.ndarray:
    """Random numbers; zeros in place of integers, which may be positions in other tensors."""
    dtype, shape = type.dtype.np, type.static_shape
    if not type.dtype.is_float:
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)


class Records:
    """Choices in a JSON file: by machine, then by the digest of a structure. The file may be
    missing. ModelError if it is damaged."""

    def __init__(self, path: Path):
        self.path = path
        self.machines: dict[str, dict[str, dict[str, Any]]] = {}
        if path.exists():
            self.machines = self._read()

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        wanted = f"a file of schedules ({FORMAT!r}), as --tune --tune-file writes it"
        try:
            data = json.loads(self.path.read_text())
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.path}: it must be {wanted}, found none: {error}") from error
        given = data.get("format") if isinstance(data, dict) else type(data).__name__
        if given != FORMAT:
            raise ModelError(f"{self.path}: it must be {wanted}, found {given!r}")
        machines = data.get("machines")
        kept = machines.values() if isinstance(machines, dict) else [None]
        for structures in kept:
            entries = structures.values() if isinstance(structures, dict) else [None]
            for entry in entries:
                if not isinstance(entry, dict) or not isinstance(entry.get("choice"), str):
                    raise ModelError(f"{self.path}: every structure must have a `choice`, a text")
        return machines

    def get(self, machine: str, structure: str) -> str | None:
        """The text of what was chosen; None if nothing was."""
        entry = self.machines.get(machine, {}).get(structure)
        return None if entry is None else entry["choice"]

    def put(self, machine: str, structure: str, entry: dict[str, Any]) -> None:
        """Adds a choice, and writes the file."""
        self.machines.setdefault(machine, {})[structure] = entry
        data = {"format": FORMAT, "machines": self.machines}
        write_text(self.path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def _open(kernels: Sequence[Kernel]) -> bool:
    """Whether kernels are of open shape."""
    return any(kernel.sizes for kernel in map(sized, kernels))


class Tuner:
    """Chooses on one `machine`. Without a `measure` it takes what is known, else the first."""

    def __init__(
        self,
        machine: str,
        measure: Measure | None,
        cache: DiskCache | None = None,
        records: Records | None = None,
    ):
        self.machine, self.measure = machine, measure
        self.cache, self.records = cache, records

    @property
    def state(self) -> str:
        """What choices depend on: what is known, and whether more is measured."""
        known = {} if self.records is None else self.records.machines.get(self.machine, {})
        told = sorted((structure, entry["choice"]) for structure, entry in known.items())
        digest = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
        return f"{digest} of {self.machine}{', measured' if self.measure else ''}"

    def choose(
        self, about: str, ranked: Iterable[T], kernels_of: Callable[[T], Sequence[Kernel]]
    ) -> T:
        """As `Choose` of passes/schedule/choosing.py: the fastest of the first candidates. Those of
        open shape are not measured, as no size stands for all."""
        structure = hashlib.sha256(about.encode()).hexdigest()[:32]
        candidates = iter(ranked)
        first = next(candidates)
        known = self._known(structure)
        if known is None and self.measure is None:
            return first
        tried = [first, *islice(candidates, TRIED - 1)]
        for candidate in tried:
            if str(candidate) == known:
                return candidate
        kernels = [kernels_of(candidate) for candidate in tried] if self.measure else []
        if self.measure is None or len(tried) == 1 or _open(kernels[0]):
            return first
        times = list(self.measure(kernels))
        fastest = min(range(len(times)), key=times.__getitem__)
        taken = fastest if times[fastest] < times[0] * (1 - MARGIN) else 0
        told = {str(c): t if isfinite(t) else None for c, t in zip(tried, times)}
        entry = {"about": about[:ABOUT], "choice": str(tried[taken]), "first": str(first),
                 "times": told}  # fmt: skip
        self._keep(structure, entry)
        return tried[taken]

    def _known(self, structure: str) -> str | None:
        known = None if self.records is None else self.records.get(self.machine, structure)
        if known is None and self.measure is not None and self.cache is not None:
            kept = self.cache.get(self._key(structure))
            known = None if kept is None else json.loads(kept)["choice"]
            if kept is not None and self.records is not None:
                self.records.put(self.machine, structure, json.loads(kept))
        return known

    def _keep(self, structure: str, entry: dict[str, Any]) -> None:
        if self.cache is not None:
            self.cache.put(self._key(structure), json.dumps(entry).encode())
        if self.records is not None:
            self.records.put(self.machine, structure, entry)

    def _key(self, structure: str) -> str:
        return cache_key("schedule", self.machine, structure)
