"""A training run: epochs of steps, validation, records and checkpoints.

Where a run stands follows from the number of steps it has done: checkpoints hold that, the state of
the step, and the sums of the epoch so far. All else is computed again from the seed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from graphc.errors import ModelError
from graphc.files import remove_drafts
from graphc.train.data import Data
from graphc.train.parallel import DataParallel
from graphc.train.state_files import read_state_dict, save_state_dict, suffix_of
from graphc.train.step import Result, Step

SUMS, RUN = "sums of the epoch", "description of the run"
Numbers = dict[str, float]


class Log(Protocol):
    """What records a run."""

    def write(self, step: int, values: Mapping[str, float | int]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Plan:
    """How a step is run over samples. `batch` samples make a step; `seed` None: in the order in
    which they lie. `checkpoint` is a file that is written after every `every` steps (None: after
    each epoch). `description` says what the run is of: a checkpoint of another is refused."""

    epochs: int
    batch: int
    seed: int | None = 0
    drop_last: bool = False
    checkpoint: str | os.PathLike | None = None
    every: int | None = None
    description: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Epoch:
    """What an epoch came to: means over its samples, of training and of validation."""

    number: int
    training: Numbers
    validation: Numbers


class Fitting:
    """Runs a step over samples as planned. `run` goes on from where the step stands.

    With `parallel`, which several processes have, each takes its part of every batch; the first
    one alone validates, records and keeps the checkpoint, which any number of processes takes up.
    """

    parallel: DataParallel | None = None

    def __init__(self, step: Step, data: Data, plan: Plan, validation: Data | None = None):
        self.step, self.data, self.plan, self.validation = step, data, plan, validation
        self.names = ["loss", *step.recipe.metrics]
        self.sums = np.zeros(len(self.names) + 1)  # the last one counts samples
        self.per_epoch = data.steps(plan.batch, plan.drop_last)
        if not self.per_epoch:
            raise ModelError(f"a batch of {plan.batch} is more than all {data.samples} samples")
        if plan.checkpoint is not None:
            suffix_of(plan.checkpoint)

    @property
    def columns(self) -> list[str]:
        """The columns of a record."""
        validated = [f"validation_{name}" for name in self.names] if self.validation else []
        return ["step", "epoch", "rate", *self.names, "gradient_norm", *validated]

    def resume(self) -> bool:
        """Goes on from the checkpoint, if there is one; ModelError if it is of another run. What
        runs left that were killed while they wrote it is removed."""
        path = self.plan.checkpoint
        if path is None:
            return False
        remove_drafts(path)
        if not Path(path).exists():
            return False
        state = read_state_dict(path)
        if RUN not in state or SUMS not in state:
            raise ModelError(f"{path}: is no checkpoint of graphc train")
        self._compare(str(path), json.loads(state.pop(RUN).tobytes()))
        self.sums = state.pop(SUMS)
        self.step.restore(state, str(path))
        return True

    def _compare(self, path: str, saved: Mapping[str, object]) -> None:
        for name, value in self._description().items():
            if saved.get(name) != value:
                raise ModelError(
                    f"{path}: is the checkpoint of a run with {name} {saved.get(name)}, this one "
                    f"has {value}"
                )

    def _description(self) -> dict[str, object]:
        plan = self.plan
        own = {"batch": plan.batch, "seed": plan.seed, "samples": self.data.samples}
        return json.loads(json.dumps({**own, "drop_last": plan.drop_last, **plan.description}))

    def save(self) -> None:
        """Writes the checkpoint, whole or not at all."""
        assert self.plan.checkpoint is not None
        text = json.dumps(self._description(), sort_keys=True).encode()
        state = {SUMS: self.sums, RUN: np.frombuffer(text, np.uint8)}
        save_state_dict({**self.step.everything(), **state}, self.plan.checkpoint)

    def run(
        self,
        logs: Sequence[Log] = (),
        tell: Callable[[int, int, Result], None] = lambda step, of, result: None,
        ended: Callable[[Epoch], None] = lambda epoch: None,
    ) -> None:
        """Runs what is left. `tell` hears of each step, `ended` of each epoch."""
        while self.step.count < self.plan.epochs * self.per_epoch:
            epoch, done = divmod(self.step.count, self.per_epoch)
            batches = self.data.batches(
                self.plan.batch, self.plan.seed, epoch, done, self.plan.drop_last
            )
            for batch in batches:
                self._step(batch, epoch, logs, tell, ended)
        for log in logs:
            log.close()

    def _step(
        self,
        batch: Sequence[np.ndarray],
        epoch: int,
        logs: Sequence[Log],
        tell: Callable[[int, int, Result], None],
        ended: Callable[[Epoch], None],
    ) -> None:
        step = self.step
        rate = step.optimizer.rate_of(step.count)
        result = self._taken(batch)
        numbers = {"loss": result.loss, **result.metrics}
        if not np.isfinite(result.loss):
            raise ModelError(
                f"the loss of step {step.count} is {result.loss}; a smaller rate or clip_norm may "
                "help"
            )
        self.sums += [*(value * len(batch[0]) for value in numbers.values()), len(batch[0])]
        row = {"step": step.count, "epoch": epoch + 1, "rate": rate, **numbers}
        row["gradient_norm"] = result.gradient_norm
        tell(step.count, self.plan.epochs * self.per_epoch, result)
        is_end = step.count % self.per_epoch == 0
        if is_end:
            training = dict(zip(self.names, (self.sums[:-1] / self.sums[-1]).tolist()))
            validated = self.validate() if self.is_first else {}
            row.update({f"validation_{name}": value for name, value in validated.items()})
            self.sums = np.zeros_like(self.sums)
        for log in logs:
            log.write(step.count, row)
        if self.plan.checkpoint is not None and self.is_first:
            if step.count % self.plan.every == 0 if self.plan.every else is_end:
                self.save()
        if is_end:
            ended(Epoch(epoch + 1, training, validated))

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of the run, or the only one."""
        return self.parallel is None or self.parallel.rank == 0

    def _taken(self, batch: Sequence[np.ndarray]) -> Result:
        """A step on a batch, of which this process has a part."""
        if self.parallel is None:
            return self.step(batch)
        rank, size, samples = self.parallel.rank, self.parallel.size, len(batch[0])
        if samples < size:
            raise ModelError(
                f"a batch of {samples} is too small for {size} processes; drop_last (--drop-last) "
                "leaves out the last one of an epoch"
            )
        part = slice(samples * rank // size, samples * (rank + 1) // size)
        return self.parallel([array[part] for array in batch])

    def validate(self) -> Numbers:
        """The loss and the metrics of the samples for validation, as in inference."""
        if self.validation is None:
            return {}
        sums = np.zeros(len(self.names))
        for batch in self.validation.batches(self.plan.batch):
            numbers = self.step.evaluate(batch)
            sums += [numbers[name] * len(batch[0]) for name in self.names]
        return dict(zip(self.names, (sums / self.validation.samples).tolist()))
