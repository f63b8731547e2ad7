"""Inference over data sets by Ray Data, and training in several processes by Ray Train.

Ray (`pip install 'graphc-compiler[ray]'`) starts the processes and moves the data. Each process has
the compiled model of a file, whose code and weights it maps: processes of one machine share them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphc.distribution import install
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.types import TensorType


class Predictor:
    """A model in a process of Ray Data: from a batch, arrays by column, to the batch with a column
    for each output.

        dataset.map_batches(graphc.ray.Predictor, fn_constructor_args=("model.gcm",),
                            batch_size=32, concurrency=2, num_cpus=1)

    `path` is a .gcm file, or an ONNX model, which is compiled by the first process that needs it.
    `columns` gives the column of an input where that has another name; `keep` are the columns that
    remain beside the outputs (None: all). A batch that is smaller than the first dimension of an
    input is filled up for the run.
    """

    def __init__(
        self, path: str | os.PathLike, columns: Mapping[str, str] | None = None,
        keep: tuple[str, ...] | None = None, threads: int = 1,
    ):  # fmt: skip
        from graphc.api import compile, load

        is_compiled = os.fspath(path).endswith(".gcm")
        self.model = load(path, threads=threads) if is_compiled else compile(path, threads=threads)
        names = [value.name for value in self.model.inputs]
        self.columns = {name: (columns or {}).get(name, name) for name in names}
        unknown = [name for name in columns or {} if name not in names]
        if unknown:
            raise ModelError(f"there is no input {unknown[0]!r}; the inputs are {names}")
        self.keep = keep

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with the outputs; ModelError if it lacks a column."""
        missing = [column for column in self.columns.values() if column not in batch]
        if missing:
            raise ModelError(f"there is no column {missing[0]!r}; the columns are {[*batch]}")
        count, feeds = 0, {}
        for value in self.model.inputs:
            if not isinstance(value.type, TensorType):
                raise ModelError(f"input {value.name!r} is {value.type}; a column holds tensors")
            array = np.asarray(batch[self.columns[value.name]]).astype(value.type.dtype.np)
            count, feeds[value.name] = len(array), _filled(array, value.type.dims[0])
        made = self.model.run(feeds)
        kept = batch if self.keep is None else {name: batch[name] for name in self.keep}
        names = [value.name for value in self.model.outputs]
        return {**kept, **{name: array[:count] for name, array in zip(names, made)}}


def _filled(array: np.ndarray, size: Any) -> np.ndarray:
    """Rows up to a fixed number, the last one repeated."""
    if not isinstance(size, int) or len(array) >= size:
        return array
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def predict(
    dataset: Any, path: str | os.PathLike, batch: int = 32, workers: int = 2, **options: Any
) -> Any:
    """A data set of Ray with a column for each output of a model, computed by so many processes of
    one thread each; `options` are those of `Predictor`."""
    _ray()
    return dataset.map_batches(
        Predictor, fn_constructor_args=(os.path.abspath(path),), fn_constructor_kwargs=options,
        batch_size=batch, concurrency=workers, num_cpus=options.get("threads", 1),
        batch_format="numpy",
    )  # fmt: skip


def fit(loop: Callable[[dict], None], workers: int = 2, config: dict | None = None) -> Any:
    """Runs `loop(config)` in so many processes of Ray Train, which gloo connects, and gives Ray's
    result. The loop makes a `graphc.train.parallel.DataParallel` of its step."""
    _ray()
    try:
        from ray.train import ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise UnsupportedError(f"Ray Train needs PyTorch and ray[train]: {error}") from error
    return TorchTrainer(
        loop, train_loop_config=config or {}, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
    ).fit()  # fmt: skip


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError(f"graphc.ray needs Ray: {install('ray')}") from error
    return ray
