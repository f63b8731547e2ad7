"""`graphc.quantise`: a float model, quantised after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphc.driver import Settings, load_graph, optimise, typed
from graphc.errors import ModelError
from graphc.ir.graph import Graph
from graphc.passes.integers import KEEP_INTEGERS
from graphc.passes.manager.context import Context
from graphc.passes.specialise import has_static_inputs, pin, type_symbolically
from graphc.quantisation import rewriting
from graphc.quantisation.budgets import Limits
from graphc.quantisation.options import Note, Options
from graphc.quantisation.process import Process
from graphc.quantisation.results import Quantised
from graphc.quantisation.running import Observed
from graphc.quantisation.samples import samples_of

PREPARING = "canonicalise, cse, dce"


def quantise(
    source: Any,
    data: Any,
    *,
    calibration: str = "mse",
    activations: str = "int8",
    weights: str = "int8",
    whole: bool = False,
    samples: int | None = None,
    equalise: bool = True,
    embeddings: str = "float",
    scales: str = "channel",
    left_out: Sequence[str] = (),
    every_layer: bool = False,
    keep_accuracy: float | None = None,
    mixture: Sequence[str] = (),
    labels: Any = None,
    ram: int | None = None,
    flash: int | None = None,
    cpu: str = "cortex-m4",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: Note | None = None,
) -> Quantised:
    """A model quantised to 8 bits after training, as standard QDQ ONNX.

    `source` is a float model as `graphc.compile` takes it, with `shapes`, `dims` and `values` to
    pin. `data` are samples of its inputs, of which at most `samples` are used: the path of a .npz
    file or of a folder of such files, arrays by the names of inputs whose first axes count samples,
    a list of inputs by name, or a function that gives an iterator over these.

    Weights become int8 with a scale per output channel, or with `scales` "tensor" one for all
    channels of a matrix product; what layers read becomes `activations`: "int8", "uint8" or
    "int16". With `weights` "int4", those of matrix products become int4 with a scale for
    32 of them, and all else stays float; with "float16" all constants of two dimensions or more are
    stored as that, and what is computed stays float32. With `embeddings` "int8", tables of which a
    Gather chooses rows are stored in 8 bits, with a scale for each row. `calibration` is how ranges
    are chosen: "minmax", "percentile", "mse" or "entropy". With `whole`, every operator with an
    integer form is quantised, and inputs and outputs are integers: what microcontrollers want.
    Layers named in `left_out` stay float. So do, unless `every_layer` or `whole` is asked for,
    output layers of at most 1 % of the weights and of the multiplications, where that brings 0.5 dB
    or more. With `equalise`, channels of small range are scaled up where they are made, and down
    where they are read, if that brings the outputs nearer to the float model's.

    With `keep_accuracy`, a share, so many more layers stay float that the model agrees with the
    float one on the largest element of that share of rows; or, with `labels` (a class for each row
    of the first output), that it has that share of the float model's accuracy. `mixture` names
    other levels that a layer may have then, of "int8", "int16" (what it reads, in 16 bits), "int4"
    and "float16" (its weights alone) and "float": the cheapest that keep the bound are searched
    for, by the sensitivity of each layer at each. With bytes of `ram`
    or `flash`, the model is made `whole`, and has to fit the processor `cpu` as C; where there is
    room, the layers that bring most noise stay float. `progress` is called
    with what is being done. ModelError if the model is quantised already or has no layer, or if the
    samples do not fit or are not finite.
    """
    classes = None if labels is None else np.asarray(labels)
    limits = None if ram is None and flash is None else Limits(ram, flash, cpu)
    whole = whole or limits is not None
    options = Options(
        calibration, activations, whole, samples, left_out, keep_accuracy, classes, limits, weights,
        mixture, equalise, embeddings, every_layer, scales,
    )  # fmt: skip
    graph = prepared(source, shapes=shapes, dims=dims, values=values)
    if limits is not None and graph.symbols:
        first = min(graph.symbols)
        raise ModelError(
            f"RAM and flash depend on sizes, and {', '.join(sorted(graph.symbols))} is open: give "
            f"each a size (--dim {first}=1, in Python dims={{{first!r}: 1}})"
        )
    stream = samples_of(data, graph, samples)
    model = Observed(graph, {} if threads is None else {"threads": threads})
    return Process(model, stream, options, progress or (lambda text: None)).result()


def prepared(source: Any, **pins: Any) -> Graph:
    """A model typed and folded, its values named apart; ModelError if it is quantised already."""
    graph = load_graph(source)
    if rewriting.is_quantised(graph):
        raise ModelError("the model is quantised already; give the float model it was made from")
    graph = pin(graph, pins.get("shapes"), pins.get("values"), pins.get("dims"))
    graph = typed(graph) if has_static_inputs(graph) else type_symbolically(graph, KEEP_INTEGERS)
    context = Context(options={"fold_policy": KEEP_INTEGERS})
    optimise(graph, Settings(passes=PREPARING, context=context))
    graph.phase = "typed"  # what is made of it has all passes of a target before it
    taken: set[str] = set()
    for value in graph.values():
        name, number = value.name or "value", 0
        while value.name in taken or not value.name:
            number += 1
            value.name = f"{name}.{number}"
        taken.add(value.name)
    return graph
