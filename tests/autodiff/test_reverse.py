"""Gradients of operators: cases of the official suite, in float64, against differences.

Each case is imported in float64 where the operator takes it. The gradient along a random direction
is compared with the difference of the interpreter's results on both sides, and with the tangent of
forward mode. `GRAPHC_EVERY_DERIVATIVE=1` takes every case, not a sample.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from test_conformance import cases, load

import graphc
from graphc import dsl
from graphc.autodiff.forward import tangents
from graphc.autodiff.reverse import gradients
from graphc.autodiff.without import WITHOUT
from graphc.errors import NeedsValue
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import walk
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.infer import op_body
from graphc.ir.interp import interpret
from graphc.ir.text.printer import graph_constants
from graphc.ir.types import TensorType
from graphc.passes.specialise import pin, specialise

SAMPLE = [
    "add_bcast",
    "mul",
    "div_bcast",
    "pow",
    "tanh",
    "sigmoid",
    "softplus",
    "gelu_tanh_1",
    "erf",
    "clip",
    "leakyrelu",
    "prelu_broadcast",
    "where_example",
    "max_example",
    "min_example",
    "matmul_4d",
    "gemm_all_attributes",
    "einsum_batch_matmul",
    "einsum_batch_diagonal",
    "conv_with_strides_and_asymmetric_padding",
    "convtranspose_dilations",
    "averagepool_2d_pads_count_include_pad",
    "averagepool_2d_strides",
    "maxpool_2d_pads",
    "maxpool_2d_dilations",
    "lppool_2d_strides",
    "globalaveragepool",
    "globalmaxpool",
    "roialign_aligned_true",
    "lrn",
    "reduce_mean_keepdims_random",
    "reduce_l2_keep_dims_random",
    "reduce_log_sum_exp_keepdims_random",
    "reduce_prod_keepdims_random",
    "reduce_max_keepdims_random",
    "softmax_axis_1",
    "logsoftmax_axis_1",
    "group_normalization_epsilon",
    "rms_normalization_3d_axis1_epsilon",
    "instancenorm_epsilon",
    "batchnorm_example",
    "batchnorm_example_training_mode",
    "transpose_all_permutations_3",
    "slice_neg_steps",
    "concat_2d_axis_1",
    "split_variable_parts_2d_opset18",
    "tile",
    "expand_dim_changed",
    "edge_pad",
    "reflect_pad",
    "constant_pad",
    "depthtospace_crd_mode_example",
    "spacetodepth",
    "reshape_reordered_all_dims",
    "gather_1",
    "gather_elements_1",
    "gathernd_example_float32",
    "cumsum_2d_axis_0",
    "top_k",
    "resize_upsample_sizes_nearest",
    "resize_upsample_sizes_cubic",
    "sce_mean_weight_ii_3d",
    "nllloss_NCd1d2_with_weight",
    "rotary_embedding",
    "attention_4d_causal",
    "attention_4d_gqa",
    "scatternd",
    "scatternd_add",
    "scatter_elements_with_axis",
    "det_nd",
    "trilu_lower_4d",
    "reversesequence_time",
]


STEPS = (1e-4, 1e-5, 1e-6, 1e-7)  # the best one counts: there may be a kink, or a steep place


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 in place of float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for info in (*wide.graph.input, *wide.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    held = [a.t for node in wide.graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*wide.graph.initializer, *held):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for attribute in (a for node in wide.graph.node for a in node.attribute):
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
    return wide


HELD = ("rois",)  # inputs that get no gradient, as in torchvision: regions of interest


def prepared(name: str) -> tuple[Graph, list[np.ndarray]] | None:
    """A case as a graph of floats with their values; other inputs are constants, and so are those
    whose contents decide types. None if float64 goes nowhere."""
    case = load(cases()[f"test_{name}"])
    arrays = dict(zip((i.name for i in case.model.graph.input), case.data_sets[0][0]))
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        return None
    wide = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in arrays.items()}
    known = {k: a for k, a in wide.items() if a.dtype != np.float64 or k in HELD}
    imported = graphc.import_onnx(widened(case.model))
    imported.output_types = []
    while True:
        graph = pin(imported, None, known)
        try:
            graph = specialise(graph, {p.name: wide[p.name].shape for p in graph.params})
            break
        except NeedsValue as error:
            if error.value is None or error.value.name not in wide.keys() - known.keys():
                raise
            known[error.value.name] = wide[error.value.name]
    graph.set_results([v for v in graph.results if _is_double(v)])
    graph.output_names = [f"y{n}" for n in range(len(graph.results))]
    values = [wide[p.name] for p in graph.params]
    if not graph.results or not values or any(_is_unfit(value) for value in values):
        return None
    return graph, values


def _is_unfit(value: np.ndarray) -> bool:
    """Whether an array is large for the interpreter, or of numbers that nobody has set (some of the
    official cases that PyTorch has exported)."""
    return value.size > 100_000 or bool((np.abs(value) > 1e6).any())


def _is_double(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is dtypes.f64


def is_double(graph: Graph) -> bool:
    """Whether nothing is rounded to a type of fewer digits on the way."""
    made = [
        v.type.dtype for op in graph.walk() for v in op.outputs if isinstance(v.type, TensorType)
    ]
    for op in graph.walk():
        if op.defn.form in ("elementwise", "indexed"):
            bodies = [op_body(op, number) for number in range(len(op.outputs))]
            made += [node.dtype for body in bodies for node in walk(body)]
    return all(dtype is dtypes.f64 for dtype in made if dtype.is_float)


class Errors(NamedTuple):
    """How far the gradient along random directions is from differences (0 if something is rounded
    to fewer digits on the way), and from the tangents of forward mode, by the sum of its terms."""

    difference: float
    tangent: float
    is_double: bool


def gradient_errors(name: str) -> Errors | None:
    """The errors of a case; None if there is nothing to differentiate."""
    given = prepared(name)
    if given is None:
        return None
    graph, values = given
    rng = np.random.default_rng(0)
    values = [v + 1e-3 * rng.standard_normal(v.shape) for v in values]  # away from ties
    weights = [rng.standard_normal(y.shape) for y in interpret(graph, values)]

    backward = clone_graph(graph)
    b = Builder(backward)
    seeds = {v: b.constant(w) for v, w in zip(backward.results, weights)}
    made = gradients(backward, seeds, list(backward.params))
    backward.set_results(made)
    backward.output_names = [f"d{n}" for n in range(len(made))]
    assert graphc.parse(str(backward), graph_constants(backward)) == backward
    worst = [0.0, 0.0]
    for position, slope in enumerate(interpret(backward, values)):
        direction = rng.standard_normal(values[position].shape)
        found = float((slope * direction).sum())
        scale = max(float(np.abs(slope * direction).sum()), 1e-2)
        differences = (difference(graph, values, position, direction, weights, h) for h in STEPS)
        along = forward(graph, position, direction, values)
        tangent = sum(float((w * t).sum()) for w, t in zip(weights, along))
        if is_double(backward):
            worst[0] = max(worst[0], min(abs(found - d) for d in differences) / scale)
        worst[1] = max(worst[1], abs(found - tangent) / scale)
    return Errors(*worst, is_double(backward))


def difference(graph, values, position, direction, weights, step) -> float:
    """The difference quotient of the weighted results."""
    ahead, behind = (
        interpret(graph, shifted(values, position, s * direction)) for s in (step, -step)
    )
    parts = (float((w * (p - q)).sum()) for w, p, q in zip(weights, ahead, behind))
    return sum(parts) / (2 * step)


EVERY = sorted(
    name.removeprefix("test_")
    for name in (cases() if os.environ.get("GRAPHC_EVERY_DERIVATIVE") else ())
    if "_expanded" not in name
)


@pytest.mark.parametrize("name", EVERY or SAMPLE)
def test_official_cases(name):
    if f"test_{name}" not in cases():
        pytest.skip("this version of onnx has no such case")
    try:
        errors = gradient_errors(name)
    except (graphc.ModelError, graphc.UnsupportedError, NeedsValue) as error:
        if name in SAMPLE:
            raise
        without = any(f"{op} has no derivative" in str(error) for op in WITHOUT)
        pytest.skip(("no derivative: " if without else "not in float64: ") + str(error))
    if errors is None:
        pytest.skip("no result in float64 depends on floats")
    assert errors.difference <= 1e-6 and errors.tangent <= (1e-9 if errors.is_double else 1e-3)


def test_the_page_lists_what_has_no_derivative():
    page = (Path(__file__).parents[2] / "docs" / "differentiation.md").read_text()
    for name in sorted(WITHOUT):
        assert f"| {name} | {WITHOUT[name]} |" in page


def shifted(values: list[np.ndarray], position: int, by: np.ndarray) -> list[np.ndarray]:
    return [v + by if n == position else v for n, v in enumerate(values)]


def forward(graph: Graph, position: int, direction: np.ndarray, values: list) -> list[np.ndarray]:
    copy = clone_graph(graph)
    seeds = {copy.params[position]: Builder(copy).constant(direction)}
    made = tangents(copy, seeds, list(copy.results))
    copy.set_results(made)
    copy.output_names = [f"t{n}" for n in range(len(made))]
    return interpret(copy, values)


def test_what_has_no_derivative_is_named():
    def kept(x):
        return dsl.ReduceSum(dsl.Compress(x, np.array([True, False, True])), keepdims=0)

    with pytest.raises(graphc.UnsupportedError, match="Compress.*no derivative"):
        graphc.grad(kept)(np.ones(3, np.float32))
