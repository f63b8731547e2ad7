"""Records of a run: a CSV file with a row for each step, and event files of TensorBoard.

A run that is taken up again from a checkpoint drops the rows of later steps, so that the file is
that of a run that nothing stopped.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphc.distribution import install
from graphc.errors import ModelError, UnsupportedError
from graphc.files import write_text, writing


class CsvLog:
    """A CSV file with these columns. `count` is the number of steps that are done."""

    def __init__(self, path: str | os.PathLike, columns: Sequence[str], count: int):
        self.path, self.columns = Path(path), list(columns)
        kept = self._rows(count) if count else []
        text = "".join(",".join(row) + "\n" for row in [self.columns, *kept])
        write_text(self.path, text)

    def _rows(self, count: int) -> list[list[str]]:
        """The rows that are there of the steps that are done."""
        if not self.path.is_file():
            return []
        with self.path.open(newline="") as file:
            rows = list(csv.reader(file))
        if rows and rows[0] != self.columns:
            raise ModelError(f"{self.path}: is the log of another run: it has columns {rows[0]}")
        whole = [row for row in rows[1:] if len(row) == len(self.columns) and row[0].isdecimal()]
        return [row for row in whole if int(row[0]) <= count]

    def write(self, step: int, values: Mapping[str, float | int]) -> None:
        """The row of a step; columns without a value stay empty."""
        row = [_text(values[name]) if name in values else "" for name in self.columns]
        with writing(self.path), self.path.open("a") as file:
            file.write(",".join(row) + "\n")

    def close(self) -> None:
        """Nothing is left to write."""


class EventLog:
    """Event files of TensorBoard in a folder, by the package tensorboardX."""

    def __init__(self, folder: str | os.PathLike, count: int):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise UnsupportedError(
                f"event files of TensorBoard need the package tensorboardX ({install('train')})"
            ) from error
        with writing(Path(folder)):
            self.writer: Any = SummaryWriter(str(folder), purge_step=count + 1 if count else None)

    def write(self, step: int, values: Mapping[str, float | int]) -> None:
        """A point of each curve."""
        for name, value in values.items():
            if name not in ("step", "epoch"):
                self.writer.add_scalar(name.replace("validation_", "validation/"), value, step)

    def close(self) -> None:
        """Writes what is held back."""
        self.writer.close()


def _text(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
