"""A training step: forward pass, gradients and update of the parameters in one compiled program.

The model's constants to train become inputs of the graph, and what they are updated to results, as
are running statistics and the state of the optimiser. A program is compiled for each tuple of
shapes of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.files import atomic
from graphc.ir.graph import Graph, clone_graph
from graphc.train.losses import LOSSES
from graphc.train.optimizers import Adam, Optimizer
from graphc.train.parameters import discovered
from graphc.train.step_graph import RATE, STEP, TARGET, Loss, Recipe, StepGraph


@dataclass(frozen=True)
class Result:
    """What a step gives: the loss before the update, and the 2-norm of all gradients together,
    before clipping."""

    loss: float
    gradient_norm: float


class Step:
    """Trains a model: `step((x, y))` runs it on a batch, and updates its parameters.

    `source` is an ONNX model (path, bytes, ModelProto) or a graph, whose constants are the
    parameters. `parameters` are shell patterns of the names to train (None: all), `frozen` of those
    not to. `loss` is the name of one of `LOSSES`, or a function of the DSL from the first result
    and the target to a scalar. `clip_norm` scales gradients down to a 2-norm of at most that. With
    `train_mode`, BatchNormalization uses the statistics of the batch, and moves the running ones.
    """

    def __init__(
        self,
        source: Any,
        loss: str | Loss = "cross_entropy",
        optimizer: Optimizer | None = None,
        parameters: Sequence[str] | None = None,
        frozen: Sequence[str] = (),
        clip_norm: float | None = None,
        train_mode: bool = True,
        threads: int | None = None,
    ):
        self.graph = _imported(source)
        if isinstance(loss, str) and loss not in LOSSES:
            raise ModelError(f"there is no loss {loss!r}; choose one of {', '.join(LOSSES)}")
        self.optimizer = optimizer if optimizer is not None else Adam()
        self.threads, self.count = threads, 0
        chosen = tuple(discovered(self.graph, parameters, frozen))
        function = LOSSES[loss] if isinstance(loss, str) else loss
        self.recipe = Recipe(function, self.optimizer, chosen, clip_norm, train_mode)
        self._state: dict[str, np.ndarray] = {}
        for op in self.graph.ops:
            if op.name == "Constant" and op.output.tensor.dtype.is_float:
                self._state[op.output.name] = op.attrs["value"]
        shapes = {name: self._state[name] for name in chosen}
        self._slots = {
            f"{slot} of {name}": np.zeros_like(array)
            for name, array in shapes.items()
            for slot in self.optimizer.slots
        }
        self._compiled: dict[Any, _Program] = {}

    def __call__(self, batch: Sequence[Any]) -> Result:
        """One step on a batch: the model's inputs in order, then the target.

        ModelError if the batch does not fit.
        """
        arrays = [np.asarray(array) for array in batch]
        names = [*(p.name for p in self.graph.params), TARGET]
        if len(arrays) != len(names):
            raise ModelError(f"a batch holds {names}, found {len(arrays)} arrays")
        key = tuple((a.dtype.str, a.shape) for a in arrays)
        if key not in self._compiled:
            self._compiled[key] = self._compile(dict(zip(names, arrays)))
        program = self._compiled[key]
        rate = np.float32(self.optimizer.rate_of(self.count))
        feeds = {**dict(zip(names, arrays)), **self._state, **self._slots}
        feeds.update({RATE: rate, STEP: np.float32(self.count + 1)})
        loss, norm, *updated = program.model.run({n: feeds[n] for n in program.inputs})
        for name, array in zip(program.updated, updated):
            (self._slots if name in self._slots else self._state)[name] = array
        self.count += 1
        return Result(float(loss), float(norm))

    # ------------------------------------------------------------ state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Parameters and running statistics by name, as the model has them."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes parameters by name; ModelError if one is unknown, or has another shape."""
        for name, value in state.items():
            self._state[name] = self._fitting(self._state, name, value)

    @staticmethod
    def _fitting(known: Mapping[str, np.ndarray], name: str, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if name not in known:
            raise ModelError(f"there is no parameter {name!r}; there are {sorted(known)}")
        if array.shape != known[name].shape:
            raise ModelError(f"{name} has shape {known[name].shape}, found {array.shape}")
        return array.astype(known[name].dtype)

    def save(self, path: str | os.PathLike) -> None:
        """Writes parameters, the optimiser's state and the number of the step to an .npz file; a
        run that is loaded from it goes on to the same bits."""
        state = {**self._state, **self._slots, STEP: np.int64(self.count)}
        with atomic(path) as draft, open(draft, "wb") as file:
            np.savez(file, **state)  # type: ignore[arg-type]

    def load(self, path: str | os.PathLike) -> None:
        """Reads what `save` wrote, for the same model and optimiser."""
        with np.load(path, allow_pickle=False) as file:
            state = {name: file[name] for name in file.files}
        if STEP not in state:
            raise ModelError(f"{path}: was not written by Step.save")
        count = int(state.pop(STEP))
        missing = [name for name in (*self._state, *self._slots) if name not in state]
        if missing:
            raise ModelError(f"{path}: lacks {missing[0]!r}; was it of another model or optimiser?")
        everything = {**self._state, **self._slots}
        fitting = {name: self._fitting(everything, name, value) for name, value in state.items()}
        self._state = {name: fitting[name] for name in self._state}
        self._slots = {name: fitting[name] for name in self._slots}
        self.count = count

    def trained(self) -> Graph:
        """The model with the parameters of now, for graphc.compile or graphc.export_onnx."""
        graph = clone_graph(self.graph)
        for op in graph.ops:
            if op.name == "Constant" and op.output.name in self._state:
                op.attrs["value"] = self._state[op.output.name]
        return graph

    # ------------------------------------------------------------ the program

    def _compile(self, batch: Mapping[str, np.ndarray]) -> _Program:
        from graphc.api import compile  # only a run needs it

        made = StepGraph(self.recipe, self.trained(), batch)
        model = compile(made.graph, threads=self.threads)
        return _Program(model, [p.name for p in made.graph.params], made.updated)


@dataclass(frozen=True)
class _Program:
    """A compiled step, its inputs, and the names of the state that its results are."""

    model: Any
    inputs: list[str]
    updated: list[str]


def _imported(source: Any) -> Graph:
    """A model as a graph of its own."""
    if isinstance(source, Graph):
        return clone_graph(source)
    from graphc.frontend.onnx_import import import_onnx

    return import_onnx(source)
