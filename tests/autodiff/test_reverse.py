"""Gradients of operators: cases of the official suite, in float64, against differences.

Each case is imported in float64 where the operator takes it. The gradient along a random direction
is compared with the difference of the interpreter's results on both sides, and with the tangent of
forward mode.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from test_conformance import cases, load

import graphc
from graphc import dsl
from graphc.autodiff.forward import tangents
from graphc.autodiff.reverse import gradients
from graphc.ir.build import Builder
from graphc.ir.graph import Graph, clone_graph
from graphc.ir.interp import interpret
from graphc.ir.text.printer import graph_constants
from graphc.passes.specialise import pin, specialise

STEP = 1e-6
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


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 in place of float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for info in (*wide.graph.input, *wide.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return wide


def prepared(name: str) -> tuple[Graph, list[np.ndarray]]:
    """A case as a graph of floats with their values; other inputs are constants."""
    case = load(cases()[f"test_{name}"])
    arrays = dict(zip((i.name for i in case.model.graph.input), case.data_sets[0][0]))
    wide = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in arrays.items()}
    known = {k: a for k, a in wide.items() if a.dtype != np.float64}
    graph = pin(graphc.import_onnx(widened(case.model)), None, known)
    graph = specialise(graph, {p.name: wide[p.name].shape for p in graph.params})
    graph.set_results([v for v in graph.results if v.tensor.dtype.is_float])
    graph.output_names = [f"y{n}" for n in range(len(graph.results))]
    return graph, [wide[p.name] for p in graph.params]


@pytest.mark.parametrize("name", SAMPLE)
def test_official_cases(name):
    if f"test_{name}" not in cases():
        pytest.skip("this version of onnx has no such case")
    graph, values = prepared(name)
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
    slopes = interpret(backward, values)

    for position, (value, slope) in enumerate(zip(values, slopes)):
        direction = rng.standard_normal(value.shape)
        found = float((slope * direction).sum())
        ahead, behind = (
            sum(float((w * y).sum()) for w, y in zip(weights, interpret(graph, moved)))
            for moved in (shifted(values, position, s * direction) for s in (STEP, -STEP))
        )
        assert found == pytest.approx((ahead - behind) / (2 * STEP), rel=1e-5, abs=1e-6)
        along = forward(graph, position, direction, values)
        assert found == pytest.approx(
            sum(float((w * t).sum()) for w, t in zip(weights, along)), rel=1e-9, abs=1e-9
        )


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
    def rois(x):
        boxes = np.array([[0, 0, 3, 3]], np.float32)
        return dsl.ReduceSum(dsl.RoiAlign(x, boxes, np.array([0])), keepdims=0)

    with pytest.raises(graphc.UnsupportedError, match="RoiAlign.*no derivative"):
        graphc.grad(rois)(np.ones((1, 1, 4, 4), np.float32))
