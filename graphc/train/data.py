"""Samples in .npz files, and the batches of an epoch.

A file holds an array for each input of the model and one for the target; their first axes count
samples. Of a folder all .npz files are read, one after the other, and one at a time is kept. Which
samples a batch holds follows from the seed and the numbers of the epoch and of the batch alone, so
that a run can be taken up anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.errors import ModelError
from graphc.ir.graph import Value
from graphc.ir.types import TensorType
from graphc.train.state_files import read_state_dict


@dataclass
class Data:
    """Samples: the names of the arrays that make a batch, the files, and how many each has."""

    names: list[str]
    files: list[Path]
    sizes: list[int]

    def __post_init__(self) -> None:
        self._kept: tuple[int, list[np.ndarray]] | None = None
        self._types: list[np.dtype | None] = [None] * len(self.names)

    @staticmethod
    def open(
        path: str | os.PathLike, inputs: Sequence[Value], target: str | None = None,
        has_target: bool = True,
    ) -> Data:  # fmt: skip
        """The samples in a .npz file, or in those of a folder, for the inputs of a model.

        `target` names the array of targets: by default the one that is no input. Without
        `has_target` there is none. ModelError if an array is missing, or does not fit.
        """
        files = _files(Path(path))
        wanted = [value.name for value in inputs]
        names = list(wanted)
        if has_target:
            names.append(_target(files[0], read_state_dict(files[0]), wanted, target))
        data = Data(names, files, [])
        types = [value.type for value in inputs]
        data._types = [t.dtype.np if isinstance(t, TensorType) else None for t in types]
        data._types += [None] * (len(names) - len(wanted))
        for number, file in enumerate(files):
            arrays = data._read(number)
            for name, type, array in zip(wanted, types, arrays):
                if isinstance(type, TensorType):
                    _check(file, name, type, array)
            data.sizes.append(len(arrays[0]))
        if not sum(data.sizes):
            raise ModelError(f"{path}: there are no samples")
        return data

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(self.sizes)

    def steps(self, size: int, drop_last: bool = False) -> int:
        """How many batches of a size an epoch has."""
        return self.samples // size if drop_last else -(-self.samples // size)

    def batches(
        self,
        size: int,
        seed: int | None = None,
        epoch: int = 0,
        start: int = 0,
        drop_last: bool = False,
    ) -> Iterator[list[np.ndarray]]:
        """The batches of an epoch from number `start` on: of `size` samples, the last one of what
        is left (none, with `drop_last`). With a seed, files and the samples in each are taken in
        an order of chance."""
        order = np.arange(len(self.files))
        rng = None if seed is None else np.random.default_rng([seed, epoch])
        if rng is not None:
            order = rng.permutation(order)
        inside = [np.arange(n) if rng is None else rng.permutation(n) for n in self._in(order)]
        files = np.repeat(order, self._in(order))
        rows = np.concatenate(inside)
        for number in range(start, self.steps(size, drop_last)):
            part = slice(number * size, (number + 1) * size)
            yield self._gathered(files[part], rows[part])

    def _in(self, order: np.ndarray) -> list[int]:
        return [self.sizes[n] for n in order]

    def _gathered(self, files: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        edges = [0, *(np.flatnonzero(np.diff(files)) + 1), len(files)]
        pieces = []
        for low, high in zip(edges, edges[1:]):
            arrays = self._read(int(files[low]))
            pieces.append([array[rows[low:high]] for array in arrays])
        return pieces[0] if len(pieces) == 1 else [np.concatenate(p) for p in zip(*pieces)]

    def _read(self, number: int) -> list[np.ndarray]:
        """The arrays of a file, in order; those of the last one are kept."""
        if self._kept is None or self._kept[0] != number:
            file = self.files[number]
            arrays = read_state_dict(file)
            missing = [name for name in self.names if name not in arrays]
            if missing:
                raise ModelError(
                    f"{file}: there is no array {missing[0]!r}; needed are {self.names}, found "
                    f"are {list(arrays)}"
                )
            lengths = {name: arrays[name].shape[:1] for name in self.names}
            if len(set(lengths.values())) > 1 or () in lengths.values():
                shapes = {name: arrays[name].shape for name in self.names}
                raise ModelError(
                    f"{file}: the first axes of all arrays must count the same samples, found "
                    f"shapes {shapes}"
                )
            own = [_cast(file, n, arrays[n], t) for n, t in zip(self.names, self._types)]
            self._kept = number, own
        return self._kept[1]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise ModelError(f"{path}: there are no .npz files in this folder")
        return files
    if path.suffix != ".npz":
        raise ModelError(f"{path}: expected a .npz file or a folder of such files")
    return [path]


def _target(file: Path, arrays: dict[str, np.ndarray], inputs: list[str], name: str | None) -> str:
    """The name of the array of targets."""
    rest = [other for other in arrays if other not in inputs]
    missing = [other for other in inputs if other not in arrays]
    if missing:
        raise ModelError(
            f"{file}: there is no array {missing[0]!r}; the inputs of the model are {inputs}, "
            f"found are {list(arrays)}"
        )
    if name is None and len(rest) == 1:
        return rest[0]
    if name is None:
        found = f"several arrays that may be the target: {rest}" if rest else "no array beside"
        raise ModelError(f"{file}: besides the inputs {inputs} a target is needed; found {found}")
    if name not in arrays:
        raise ModelError(f"{file}: there is no array {name!r}; found are {list(arrays)}")
    return name


def _check(file: Path, name: str, type: TensorType, array: np.ndarray) -> None:
    """ModelError if samples have another shape than the model takes; the first axis is free."""
    dims = type.shape
    fits = dims is None or (
        len(dims) == array.ndim
        and all(not isinstance(d, int) or d == e for d, e in zip(dims[1:], array.shape[1:]))
    )
    if not fits:
        raise ModelError(f"{file}: {name!r} must be {type}, found shape {array.shape}")


def _cast(file: Path, name: str, array: np.ndarray, wanted: np.dtype | None) -> np.ndarray:
    if wanted is None or array.dtype == wanted:
        return array
    if array.dtype.kind != wanted.kind:
        raise ModelError(f"{file}: {name!r} must be of type {wanted}, found {array.dtype}")
    return array.astype(wanted)
