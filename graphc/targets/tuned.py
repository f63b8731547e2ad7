"""What targets have in common that choose schedules of kernels by measuring them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from graphc.errors import ModelError
from graphc.records import dataclass
from graphc.targets.base import Target, option

if TYPE_CHECKING:
    from graphc.backends.tuning import Measure, Tuner
    from graphc.passes.schedule.choosing import Choose


@dataclass(frozen=True)
class Tuned(Target):
    """A target whose kernels can be tuned."""

    tune: bool = option(
        False, "choose how kernels are computed (tiles, loops, packing) by measuring the best "
        "candidates on the machine at hand, or by cycles of instructions counted in QEMU (--target "
        "c); choices are kept in the disk cache", type=bool, what="true or false",
    )  # fmt: skip
    tune_file: str | None = option(
        None, "take choices from this file of an earlier --tune, on a machine of the same kind; "
        "with --tune, add what is measured", metavar="FILE", type=str, what="the name of a file",
    )  # fmt: skip

    def tuned_machine(self) -> str:
        """The name of the machine that choices are for."""
        raise NotImplementedError

    def measured(self) -> Measure:
        """What measures candidates on the machine at hand."""
        raise NotImplementedError

    @cached_property
    def tuner(self) -> Tuner | None:
        """What chooses, if candidates are measured, or were before."""
        if not self.tune and self.tune_file is None:
            return None
        from graphc.backends.cache import default_cache
        from graphc.backends.tuning import Records, Tuner

        records = None if self.tune_file is None else Records(Path(self.tune_file))
        if records is not None and not self.tune and not records.path.exists():
            raise ModelError(
                f"tune_file: it must be a file of schedules, found none at {self.tune_file}; "
                "--tune makes one"
            )
        measure = self.measured() if self.tune else None
        return Tuner(self.tuned_machine(), measure, default_cache(), records)

    def choose(self) -> Choose:
        """What takes one of several schedules."""
        from graphc.passes.schedule.choosing import take_first

        return take_first if self.tuner is None else self.tuner.choose

    def variant(self) -> str:
        return "" if self.tuner is None else f"schedules {self.tuner.state}"
