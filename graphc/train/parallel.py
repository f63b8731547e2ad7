"""Steps of several processes, each of which has a part of every batch.

The gradients of all parts are added up by torch.distributed (gloo), which torchrun or any other
launcher has set up by the usual variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). They travel
in buckets, so that while one is on its way the next one is packed. All processes then make the same
update.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.train.step import Result, Step

BUCKET = 25 << 20  # bytes of a bucket, as in PyTorch (Li et al., PyTorch Distributed, VLDB 2020)


class DataParallel:
    """A step that several processes take together: `parallel(batch)` is given this process's part
    of the batch. All start with the parameters of the first one.

    The gradients are those of the whole batch, whatever the sizes of the parts, if the loss is a
    mean over samples. Each BatchNormalization uses the statistics of its own part; running ones are
    averaged. `timeout` are the seconds after which a process that does not answer is given up,
    `meeting` those in which all must have started.
    """

    def __init__(
        self, step: Step, bucket: int = BUCKET, timeout: float = 300.0, meeting: float = 120.0
    ):
        try:
            import torch
            import torch.distributed as distributed
        except ImportError as error:
            raise UnsupportedError("training in several processes needs PyTorch") from error
        self.step, self.bucket, self.torch, self.distributed = step, bucket, torch, distributed
        if not distributed.is_initialized():
            missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if n not in os.environ]
            if missing:
                raise ModelError(f"{missing[0]} is not set: start the program by torchrun")
            with self._told():
                self._meet(*(datetime.timedelta(seconds=x) for x in (meeting, timeout)))
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        state = {name: array.copy() for name, array in step.everything().items()}
        for array in state.values():
            with self._told():
                distributed.broadcast(torch.from_numpy(array), 0)
        step.restore(state)

    def _meet(self, meeting: datetime.timedelta, timeout: datetime.timedelta) -> None:
        """Waits for all processes, and then connects them."""
        from torch.distributed.rendezvous import rendezvous

        try:
            store, rank, size = next(rendezvous("env://", timeout=meeting))
            names = [f"graphc/{number}" for number in range(size)]
            store.set(names[rank], "here")
            store.wait(names, meeting)
        except RuntimeError as error:
            raise ModelError(
                f"not all of {os.environ.get('WORLD_SIZE', 'the')} processes started within "
                f"{meeting.total_seconds():g} seconds; see why one ended, or give `meeting` more "
                f"({str(error).strip().splitlines()[0]})"
            ) from error
        self.distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timeout
        )

    def __call__(self, batch: Sequence[Any]) -> Result:
        """One step. ModelError if another process has ended: the last checkpoint is then the state
        to go on from."""
        samples = len(batch[0])
        counts = np.zeros(self.size)
        counts[self.rank] = samples
        self._add([counts])
        share = samples / float(counts.sum())
        result, gradients = self.step.gradients(batch, share, part=self.rank)
        moved = self.step.statistics()
        for array in moved.values():
            array *= share
        self.add_up({**gradients, **moved})
        numbers = np.array([result.loss, *result.metrics.values()]) * share
        self._add([numbers])
        norm = self.step.apply(gradients)
        return Result(float(numbers[0]), norm, dict(zip(result.metrics, numbers[1:].tolist())))

    def add_up(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Adds up the arrays of all processes, in place."""
        self._add(list(arrays.values()))

    def save(self, path: str | os.PathLike) -> None:
        """The first process writes the state of the step; the others wait for it."""
        if self.rank == 0:
            self.step.save(path)
        with self._told():
            self.distributed.barrier()

    def _add(self, arrays: Sequence[np.ndarray]) -> None:
        """Adds up arrays over all processes, in place."""
        under_way = []
        with self._told():
            for members in _buckets(arrays, self.bucket):
                flat = self.torch.from_numpy(np.concatenate([a.ravel() for a in members]))
                work = self.distributed.all_reduce(flat, async_op=True)
                under_way.append((members, flat, work))
            for members, flat, work in under_way:
                work.wait()
                ends = np.cumsum([a.size for a in members])[:-1]
                for array, part in zip(members, np.split(flat.numpy(), ends)):
                    array[...] = part.reshape(array.shape)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Failures of the other processes are told as what they are."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                "another process of the run has ended, or does not answer; start all of them again "
                f"from the last checkpoint ({reason})"
            ) from error


def _buckets(arrays: Sequence[np.ndarray], limit: int) -> Iterator[list[np.ndarray]]:
    """Arrays in groups of one type and of at most so many bytes, or of one array."""
    group: list[np.ndarray] = []
    for array in arrays:
        full = sum(a.nbytes for a in group) + array.nbytes > limit
        if group and (full or group[0].dtype != array.dtype):
            yield group
            group = []
        group.append(array)
    if group:
        yield group
