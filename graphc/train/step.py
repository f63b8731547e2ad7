"""A training step: forward pass, gradients and update of the parameters in one compiled program.

A program is compiled for each tuple of shapes of a batch, or, with bounds of open dimensions, for
all batches within them. Where gradients are added up before the
update (micro-batches, or several processes) there are two: one adds those of a batch to what was
given, one updates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.errors import ModelError, UnsupportedError, near_or_all
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.machine import PRECISIONS
from graphc.ir.types import TensorType
from graphc.passes.specialise import pin
from graphc.train.batches import Batches
from graphc.train.loss_scale import SCALE, LossScale
from graphc.train.losses import LOSSES
from graphc.train.memory import Again, Memory, nbytes_of, parsed, taken, within
from graphc.train.metrics import METRICS
from graphc.train.optimizers import Adam, Optimizer
from graphc.train.parameters import as_inference, discovered, statistics, with_own_names
from graphc.train.state_files import read_state_dict, save_state_dict
from graphc.train.step_graph import (
    DRAW,
    GRADIENT,
    RATE,
    SHARE,
    STEP,
    SUM,
    TARGET,
    Loss,
    Made,
    Recipe,
    evaluation_graph,
    gradients_graph,
    step_graph,
    update_graph,
)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Result:
    """What a step gives: the loss before the update, the 2-norm of all gradients together, before
    clipping (NaN if steps do not tell it), and the metrics by name. If the norm is infinite or no
    number, and the loss is scaled, no parameter was updated."""

    loss: float
    gradient_norm: float
    metrics: dict[str, float] = field(default_factory=dict)


class Step:
    """Trains a model: `step((x, y))` runs it on a batch, and updates its parameters.

    `source` is an ONNX model (path, bytes, ModelProto) or a graph, whose constants are the
    parameters. `parameters` are shell patterns of the names to train (None: all), `frozen` of those
    not to. `loss` is the name of one of `LOSSES`, or a function of the DSL from the first result
    and the target to a scalar; `metrics` are names of `METRICS`, or such functions by name.
    `clip_norm` scales gradients down to a 2-norm of at most that. With `train_mode`,
    BatchNormalization uses the statistics of the batch, and moves the running ones, and Dropout
    drops, by random numbers that follow from `seed` and the number of the step. With `accumulate`,
    a batch is computed in so many parts, one after the other, and updates parameters once. With
    `memory`, bytes or a text such as "2GiB", a step takes at most that: part of the forward pass is
    computed again in the backward pass, if need be; ModelError if that is not enough. Without
    `gradient_norm`, steps need not tell the norm of gradients, which then are not stored where a
    parameter is updated as its gradient is computed. `dims` bounds open dimensions of the model
    ({"N": (1, 32)}): one program then takes batches of all sizes within the bounds, or there is an
    UnsupportedError. Other open dimensions are those of a batch. With `exact`, convolutions and
    their gradients are computed by direct products alone, not by Winograd's algorithm, whose
    rounding errors are larger.

    With `precision` bf16 or f16 (or tf32), what matrix products and convolutions multiply, forward
    and backward, is rounded to that type. Sums, everything between (normalisations, softmax, the
    loss), gradients and parameters stay in float32. For f16 the loss is scaled (`loss_scale`, by
    default LossScale()): a step whose gradients are infinite or no numbers updates no parameter.
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
        metrics: Sequence[str] | Mapping[str, Loss] = (),
        seed: int = 0,
        accumulate: int = 1,
        memory: int | str | None = None,
        precision: str = "f32",
        loss_scale: LossScale | None = None,
        gradient_norm: bool = True,
        dims: Mapping[str, int | tuple[int, int]] | None = None,
        exact: bool = False,
    ):
        graph = with_own_names(as_inference(_imported(source)))
        self.graph = pin(graph, dims=dims)
        self._batches = Batches(self.graph, dims or {})
        self.optimizer = optimizer if optimizer is not None else Adam()
        if accumulate < 1:
            raise ModelError(f"accumulate must be 1 or more, found {accumulate}")
        if precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise ModelError(f"precision must be one of {known}, found {precision!r}")
        scale = LossScale() if loss_scale is None and precision == "f16" else loss_scale
        self.precision = precision
        self._limit = None if memory is None else parsed(memory)
        self.threads, self.accumulate, self.count = threads, accumulate, 0
        self.exact = exact
        chosen = tuple(discovered(self.graph, parameters, frozen))
        function = _named("loss", LOSSES, loss) if isinstance(loss, str) else loss
        if not isinstance(metrics, Mapping):
            metrics = {name: _named("metric", METRICS, name) for name in metrics}
        self.recipe = Recipe(
            function, self.optimizer, chosen, clip_norm, train_mode, dict(metrics), seed, scale,
            gradient_norm,
        )  # fmt: skip
        self._state: Arrays = {}
        for op in self.graph.ops:
            if op.name == "Constant" and op.output.name and op.output.tensor.dtype.is_float:
                self._state[op.output.name] = np.array(op.attrs["value"])  # which steps change
        self._let_graph_hold_state()
        self._slots = {
            f"{slot} of {name}": np.zeros_like(self._state[name])
            for name in chosen
            for slot in self.optimizer.slots
        }
        if scale is not None:
            self._slots.update(scale.state())
        self._compiled: dict[Any, _Program] = {}

    def __call__(self, batch: Sequence[Any]) -> Result:
        """One step on a batch: the model's inputs in order, then the target. Parameters and the
        optimiser's state are updated where they lie.

        ModelError if the batch does not fit, which changes nothing, or if it holds indices or
        labels out of range: then the update was made with others that are in range.
        """
        if self.accumulate > 1:
            result, gradients = self.gradients(batch)
            return Result(result.loss, self.apply(gradients), result.metrics)
        feeds = self._feeds(batch)
        program = self._program("step", feeds, step_graph)
        numbers = self._run(program, {**feeds, **self._numbers()}, {})
        self.count += 1
        return Result(numbers.pop("loss"), numbers.pop("norm", float("nan")), numbers)

    def gradients(
        self,
        batch: Sequence[Any],
        share: float = 1.0,
        sums: Mapping[str, np.ndarray] | None = None,
        part: int = 0,
    ) -> tuple[Result, Arrays]:
        """The gradients of the parameters for a batch, by name, times `share`, added to `sums`,
        with the loss and the metrics (the norm is that of the result). Running statistics move.
        `part` tells apart the parts of one step, so that Dropout draws other numbers in each.

        The loss must be a mean over samples if the batch is computed in parts (`accumulate`).
        """
        arrays = self._feeds(batch)
        made = {name: np.zeros_like(self._state[name]) for name in self.recipe.chosen}
        made.update(sums or {})
        total: dict[str, float] = {}
        for number, (own, fraction) in enumerate(_parts(arrays, self.accumulate)):
            draw = part * self.accumulate + number
            numbers = self._numbers(draw)
            numbers[SHARE] = np.asarray(share * fraction, np.float32)
            numbers.update({SUM + name: array for name, array in made.items()})
            program = self._program("gradients", own, gradients_graph)
            for name, value in self._run(program, {**own, **numbers}, made).items():
                total[name] = total.get(name, 0.0) + value * fraction
        norm = float(np.sqrt(sum(np.vdot(g, g).astype(np.float64) for g in made.values())))
        return Result(total.pop("loss"), norm, total), made

    def apply(self, gradients: Mapping[str, Any]) -> float:
        """Updates the parameters by gradients, which `gradients` gave; gives their 2-norm, or NaN
        without `gradient_norm`."""
        missing = [name for name in self.recipe.chosen if name not in gradients]
        if missing:
            raise ModelError(f"there is no gradient of {missing[0]!r}")
        feeds = {GRADIENT + n: self._fitting(self._state, n, g) for n, g in gradients.items()}
        program = self._program("update", {}, lambda r, _, __: update_graph(r, self._state))
        numbers = self._run(program, {**feeds, **self._numbers()}, {})
        self.count += 1
        return numbers.get("norm", float("nan"))

    def evaluate(self, batch: Sequence[Any]) -> dict[str, float]:
        """The loss and the metrics of a batch as in inference, by name; nothing is updated."""
        feeds = self._feeds(batch)
        return self._run(self._program("evaluation", feeds, evaluation_graph), feeds, {})

    # ------------------------------------------------------------ state

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step is multiplied by before it is differentiated."""
        return float(self._slots.get(SCALE, 1.0))

    def state_dict(self) -> Arrays:
        """Parameters and running statistics of now by name, as the model has them."""
        return {name: array.copy() for name, array in self._state.items()}

    def statistics(self) -> Arrays:
        """The running statistics by name: the arrays that steps move, not copies of them."""
        return {name: self._state[name] for name in statistics(self.graph)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes parameters by name; ModelError if one is unknown, or has another shape."""
        fitting = {name: self._fitting(self._state, name, value) for name, value in state.items()}
        self._state.update((name, array.copy()) for name, array in fitting.items())
        self._let_graph_hold_state()
        self._compiled.clear()  # some are constants of programs

    @staticmethod
    def _fitting(known: Mapping[str, np.ndarray], name: str, value: Any) -> np.ndarray:
        array = np.asarray(value)
        if name not in known:
            raise ModelError(f"there is no parameter {name!r}{near_or_all(name, sorted(known))}")
        if array.shape != known[name].shape:
            raise ModelError(f"{name} has shape {known[name].shape}, found {array.shape}")
        return array.astype(known[name].dtype, copy=False)

    def everything(self) -> Arrays:
        """Parameters, running statistics, the optimiser's state, and the number of the step."""
        kept = {name: array.copy() for name, array in {**self._state, **self._slots}.items()}
        return {**kept, STEP: np.array(self.count, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray], source: str = "the state") -> None:
        """Takes what `everything` gave, for the same model and optimiser."""
        if STEP not in state:
            raise ModelError(f"{source}: was not written by Step.save")
        known = {**self._state, **self._slots}
        missing = [name for name in known if name not in state]
        if missing:
            raise ModelError(
                f"{source}: lacks {missing[0]!r}; was it of another model, optimiser or precision?"
            )
        rest = {name: value for name, value in state.items() if name != STEP}
        fitting = {name: self._fitting(known, name, value) for name, value in rest.items()}
        self._state = {name: fitting[name].copy() for name in self._state}
        self._let_graph_hold_state()
        self._slots = {name: fitting[name].copy() for name in self._slots}
        self._compiled.clear()
        self.count = int(state[STEP])

    def save(self, path: str | os.PathLike) -> None:
        """Writes `everything` to a .npz or .safetensors file; a run that is loaded from it goes on
        to the same bits."""
        save_state_dict(self.everything(), path)

    def load(self, path: str | os.PathLike) -> None:
        """Reads what `save` wrote, for the same model and optimiser."""
        self.restore(read_state_dict(path), str(path))

    def trained(self) -> Graph:
        """The model with the parameters of now, for graphc.compile or graphc.export_onnx."""
        graph = clone_graph(self.graph)
        for op in graph.ops:
            if op.name == "Constant" and op.output.name in self._state:
                op.attrs["value"] = self._state[op.output.name].copy()
        return graph

    # ------------------------------------------------------------ programs

    def _let_graph_hold_state(self) -> None:
        """Has the graph's constants be the arrays that steps change: they are in memory once."""
        for op in self.graph.ops:
            if op.name == "Constant" and op.output.name in self._state:
                op.attrs["value"] = self._state[op.output.name]

    def _feeds(self, batch: Sequence[Any]) -> Arrays:
        """The arrays of a batch by name."""
        arrays = [np.asarray(array) for array in batch]
        names = [*(p.name for p in self.graph.params), TARGET]
        if len(arrays) != len(names):
            raise ModelError(f"a batch holds {names}, found {len(arrays)} arrays")
        return dict(zip(names, arrays))

    def _numbers(self, part: int = 0) -> Arrays:
        """The rate and the numbers of the step that a program may ask for."""
        rate = np.float32(self.optimizer.rate_of(self.count))
        draw = (self.count << 12) + part  # 4096 parts of a step draw other numbers
        return {RATE: rate, STEP: np.float32(self.count + 1), DRAW: np.array(draw, np.int64)}  # type: ignore[dict-item]

    def _program(
        self, kind: str, feeds: Mapping[str, np.ndarray], make: Callable[..., Made]
    ) -> _Program:
        from graphc.api import compile  # only a run needs it

        types = self._batches.types(feeds)
        key = kind, tuple(types.items())
        if key not in self._compiled:
            made, _ = self._made(make, types)
            tier = "exact" if all(t.is_static for t in types.values()) else "any"
            model = compile(
                made.graph, threads=self.threads, precision=self.precision, specialise=tier,
                exact=self.exact,
            )  # fmt: skip
            if tier == "any" and not model.prepare():
                raise UnsupportedError(f"there is no step for all sizes: {model.why_exact}")
            inputs = [p.name for p in made.graph.params]
            self._compiled[key] = _Program(model, inputs, made.numbers, made.updated)
        return self._compiled[key]

    def _made(
        self, make: Callable[..., Made], types: Mapping[str, TensorType]
    ) -> tuple[Made, Again]:
        """The graph of a program, and what it computes again."""
        made = make(self.recipe, self.graph, types)  # where all that steps change becomes an input
        if self._limit is None or make not in (step_graph, gradients_graph):
            return made, Again()
        held = nbytes_of(self._state) + nbytes_of(self._slots)
        return within(made, held, self._limit, self.precision)

    def memory(self, batch: Sequence[Any]) -> Memory:
        """What a step on such a batch takes, before one is run; print it for a table by layer."""
        make = step_graph if self.accumulate == 1 else gradients_graph
        (feeds, _), *_ = _parts(self._feeds(batch), self.accumulate)
        made, again = self._made(make, self._batches.types(feeds))
        held = nbytes_of(self._state), nbytes_of(self._slots)
        return taken(made, again, *held, self.precision)

    def _run(
        self, program: _Program, feeds: Mapping[str, np.ndarray], gradients: Arrays
    ) -> dict[str, float]:
        """Runs a program, which updates the state where it lies; gives its numbers by name."""
        known = {**self._state, **self._slots, **feeds}
        places = {name: known[name] for name in program.updated if not name.startswith(GRADIENT)}
        results = program.model.run({name: known[name] for name in program.inputs}, into=places)
        for name, array in zip(program.updated, results[len(program.numbers) :]):
            if name.startswith(GRADIENT):
                gradients[name.removeprefix(GRADIENT)] = array
        return {name: float(value) for name, value in zip(program.numbers, results)}


@dataclass(frozen=True)
class _Program:
    """A compiled graph, its inputs, and the names of its results."""

    model: Any
    inputs: list[str]
    numbers: list[str]
    updated: list[str]


def _parts(arrays: Arrays, count: int) -> list[tuple[Arrays, float]]:
    """A batch in so many parts along the first axis of all arrays, with the share of each."""
    if count == 1:
        return [(arrays, 1.0)]
    sizes = {array.shape[:1] for array in arrays.values()}
    if len(sizes) > 1 or sizes == {()}:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ModelError(f"accumulate splits axis 0, which must be the batch; found {shapes}")
    ((size,),) = sizes
    if size < count:
        raise ModelError(f"accumulate={count} needs a batch of {count} or more, found {size}")
    edges = [size * n // count for n in range(count + 1)]
    return [
        ({name: array[low:high] for name, array in arrays.items()}, (high - low) / size)
        for low, high in zip(edges, edges[1:])
    ]


def _named(what: str, known: Mapping[str, Loss], name: str) -> Loss:
    if name not in known:
        raise ModelError(f"there is no {what} {name!r}{near_or_all(name, known)}")
    return known[name]


def _imported(source: Any) -> Graph:
    """A model as a graph of its own."""
    if isinstance(source, Graph):
        return clone_graph(source)
    from graphc.frontend.models import import_model

    return import_model(source)
