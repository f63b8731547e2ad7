"""Resize against ONNX Runtime and PyTorch: every mode, coordinate transformation and 40 lengths.

A nearest neighbour is compared where rounding does not decide: ONNX Runtime computes positions in
float32, and one that lies on an integer (or halfway between two) may fall on either side of it.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from every_target import agree_everywhere
from onnx import TensorProto, helper, numpy_helper
from single_op import run_op

from graphc.frontend.onnx_import import import_onnx
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.interp import interpret
from graphc.ir.types import TensorType

onnxruntime.set_default_logger_severity(4)
COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
               "asymmetric", "tf_crop_and_resize")  # fmt: skip
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
WAYS = (
    *({"mode": "nearest", "nearest_mode": rounding} for rounding in ROUNDINGS),
    *({"mode": "linear", "antialias": n} for n in (0, 1)),
    *({"mode": "cubic", "antialias": n, "exclude_outside": m} for n in (0, 1) for m in (0, 1)),
    {"mode": "cubic", "cubic_coeff_a": -0.5},
)
# Lengths before and after: one at a time, both ways, of common factors and of none.
LENGTHS = (
    (1, 1), (1, 2), (1, 5), (2, 1), (2, 3), (2, 4), (3, 1), (3, 2), (3, 4), (3, 7),
    (4, 2), (4, 3), (4, 8), (4, 6), (5, 1), (5, 2), (5, 3), (5, 4), (5, 7), (5, 10),
    (5, 11), (6, 4), (6, 9), (7, 3), (7, 5), (7, 8), (7, 10), (7, 14), (8, 4), (8, 3),
    (8, 12), (9, 6), (9, 13), (10, 7), (10, 4), (11, 5), (12, 5), (13, 4), (16, 7), (17, 25),
)  # fmt: skip
HALF = len(LENGTHS) // 2
IMAGES = tuple(zip(LENGTHS[:HALF], LENGTHS[HALF:][::-1]))  # lengths of rows and of columns
ROI = ((0.125, 0.75), (-0.25, 0.875))  # starts and ends


def scale_of(before: int, after: int) -> float:
    """A factor that gives this length, every second time with a part of an element to spare."""
    return float(np.float32((after + (0.4 if after % 2 else 0.0)) / before))


def position(i, coordinates: str, before: int, after: int, scale: float, roi=(0.0, 1.0)):
    """Where outputs `i` lie in the input, by the standard, in float64."""
    span, last = max(after - 1, 1), before - 1
    if coordinates == "align_corners":
        return i * last / span
    if coordinates == "asymmetric":
        return i / scale
    if coordinates == "tf_crop_and_resize":
        start, end = roi
        return (start + (end - start) * (i / span if after > 1 else i + 0.5)) * last
    if coordinates == "pytorch_half_pixel" and after == 1:
        return i * 0.0
    spare = before - after / scale if coordinates == "half_pixel_symmetric" else 0.0
    return (i + 0.5) / scale - 0.5 + spare / 2


def undecided(way: dict, *where) -> np.ndarray:
    """The outputs whose nearest neighbour, or whether they lie outside, rounding decides."""
    at = position(np.arange(where[2]), *where)
    steps = 2 if "round" in way.get("nearest_mode", "") else 1
    on_edge = np.abs(at * steps - np.round(at * steps)) < 1e-4
    return on_edge if way["mode"] == "nearest" else np.zeros_like(on_edge)


def model_of(images, way: dict, coordinates: str, by: str, opset: int = 19):
    """A model of one Resize for each image, and its inputs."""
    rng = np.random.default_rng(5)
    nodes, constants, infos, outs, inputs = [], [], [], [], []
    for n, image in enumerate(images):
        shape = (1, 2, *(before for before, _ in image))
        infos.append(helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, shape))
        inputs.append(rng.standard_normal(shape).astype(np.float32))
        wanted = {
            "roi": np.array([0, 0, *ROI[0], 1, 1, *ROI[1]], np.float32),
            "scales": np.array([1, 1, *(scale_of(*pair) for pair in image)], np.float32),
            "sizes": np.array([1, 2, *(after for _, after in image)], np.int64),
        }
        names = [f"x{n}", *(f"{kind}{n}" if kind in ("roi", by) else "" for kind in wanted)]
        constants += [numpy_helper.from_array(v, f"{kind}{n}") for kind, v in wanted.items()]
        attrs = {"coordinate_transformation_mode": coordinates, **way}
        nodes.append(helper.make_node("Resize", names, [f"y{n}"], **attrs))
        outs.append(helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, [None] * 4))
    graph = helper.make_graph(nodes, "g", infos, outs, constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), inputs


def run_onnxruntime(model, inputs) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {f"x{n}": x for n, x in enumerate(inputs)})


def name_of(way: dict) -> str:
    return "-".join(str(v) for v in way.values())


@pytest.mark.parametrize("way", WAYS, ids=name_of)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_as_onnxruntime(coordinates, way):
    for by in ("scales", "sizes"):
        model, inputs = model_of(IMAGES, way, coordinates, by)
        ours = interpret(import_onnx(model), inputs)
        for image, got, want in zip(IMAGES, ours, run_onnxruntime(model, inputs)):
            assert got.shape == want.shape == (1, 2, *(after for _, after in image))
            factors = [scale_of(*p) if by == "scales" else p[1] / p[0] for p in image]
            if coordinates == "tf_crop_and_resize" and 1.0 in factors:
                continue  # ONNX Runtime leaves an axis whole then
            rows, columns = (
                ~undecided(way, coordinates, *pair, factor, bounds)
                for pair, factor, bounds in zip(image, factors, zip(*ROI))
            )
            got, want = (y[:, :, rows][..., columns] for y in (got, want))
            np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=f"{by} {image}")


def test_nearest_neighbours_are_those_of_exact_positions():
    """Also where positions lie on the edge between two."""
    for coordinates, rounding, (before, after) in itertools.product(
        COORDINATES[:5], ROUNDINGS, LENGTHS
    ):
        x = np.arange(before, dtype=np.float32)
        y = run_op("Resize", x, None, None, np.array([after]), nearest_mode=rounding,
                   coordinate_transformation_mode=coordinates)  # fmt: skip
        at = position(np.arange(after), coordinates, before, after, after / before)
        at = np.round(at * 2**20) / 2**20  # halves and integers that division misses by a rounding
        nearest = {"floor": np.floor(at), "ceil": np.ceil(at)}
        nearest["round_prefer_floor"] = np.ceil(at - 0.5)
        nearest["round_prefer_ceil"] = np.floor(at + 0.5)
        np.testing.assert_array_equal(y, np.clip(nearest[rounding], 0, before - 1))


# ---------------------------------------------------------------- other options


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("coordinates", COORDINATES[:5])
def test_kept_aspect_ratio(coordinates, policy):
    way = {"mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3]}
    for image in IMAGES:
        model, inputs = model_of([image], way, coordinates, "sizes")
        sizes = numpy_helper.from_array(np.array([after for _, after in image]), "sizes0")
        model.graph.initializer[2].CopyFrom(sizes)
        (got,) = interpret(import_onnx(model), inputs)
        (want,) = run_onnxruntime(model, inputs)
        np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=str(image))


def test_values_outside_a_crop():
    x = np.random.default_rng(1).standard_normal((1, 1, 4, 6)).astype(np.float32)
    way = {"mode": "linear", "extrapolation_value": 3.5}
    model, _ = model_of([((4, 9), (6, 13))], way, "tf_crop_and_resize", "sizes")
    for starts, ends in (
        ((0.2, 0.1), (0.7, 0.9)),
        ((-0.2, 0.3), (1.3, 0.6)),
        ((0.8,) * 2, (0.1,) * 2),
    ):
        roi = np.array([0, 0, *starts, 1, 1, *ends], np.float32)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(roi, "roi0"))
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
        model.graph.initializer[2].CopyFrom(
            numpy_helper.from_array(np.array([1, 1, 9, 13]), "sizes0")
        )
        (got,) = interpret(import_onnx(model), [x])
        np.testing.assert_allclose(got, run_onnxruntime(model, [x])[0], 1e-4, 1e-4)


def test_an_axis_of_scale_1_is_cropped_too():
    """By the standard; ONNX Runtime leaves it whole."""
    x = np.arange(5, dtype=np.float32)
    y = run_op("Resize", x, np.array([0.25, 0.75], np.float32), None, np.array([5]), mode="linear",
               coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
    np.testing.assert_allclose(y, [1, 1.5, 2, 2.5, 3])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_opsets(mode):
    """Upsample-9 and Resize-10 have scales only; Resize-11 a mode of TensorFlow's more."""
    for image in IMAGES:
        scales = numpy_helper.from_array(
            np.array([1, 1, *(scale_of(*pair) for pair in image)], np.float32), "s"
        )
        shape = (1, 2, *(before for before, _ in image))
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        infos = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)]
        outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)]
        grows = all(after >= before for before, after in image)
        shrinks = all(after <= before for before, after in image)
        for name, opset in (("Upsample", 9), ("Resize", 10)):
            if not (grows or name == "Resize" and (shrinks or mode == "linear")):
                continue
            nodes = [helper.make_node(name, ["x0", "s"], ["y"], mode=mode)]
            graph = helper.make_graph(nodes, "g", infos, outs, [scales])
            model = helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5
            )
            (got,), (want,) = interpret(import_onnx(model), [x]), run_onnxruntime(model, [x])
            np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=f"{name} {image}")
    if mode == "nearest":
        way = {"mode": mode, "nearest_mode": "floor"}
        images = [image for image in IMAGES if all(after % 3 for _, after in image)]
        model, inputs = model_of(images, way, "tf_half_pixel_for_nn", "scales", opset=11)
        ours = interpret(import_onnx(model), inputs)
        for got, want in zip(ours, run_onnxruntime(model, inputs)):
            np.testing.assert_allclose(got, want, 1e-4, 1e-4)


# ---------------------------------------------------------------- PyTorch

PYTORCH = [  # the name of a mode, whether corners are aligned, antialiased, and what Resize has
    ("nearest", None, False, {"coordinate_transformation_mode": "asymmetric",
                              "nearest_mode": "floor"}),
    ("nearest-exact", None, False, {"nearest_mode": "round_prefer_ceil"}),
    ("bilinear", False, False, {"mode": "linear"}),
    ("bilinear", True, False, {"mode": "linear",
                               "coordinate_transformation_mode": "align_corners"}),
    ("bilinear", False, True, {"mode": "linear", "antialias": 1, "exclude_outside": 1}),
    ("bicubic", False, False, {"mode": "cubic"}),
    ("bicubic", True, False, {"mode": "cubic",
                              "coordinate_transformation_mode": "align_corners"}),
    ("bicubic", False, True, {"mode": "cubic", "antialias": 1, "exclude_outside": 1,
                              "cubic_coeff_a": -0.5}),
]  # fmt: skip


@pytest.mark.parametrize("by", ["scales", "sizes"])
@pytest.mark.parametrize("name, align, antialias, attrs", PYTORCH)
def test_as_pytorch(name, align, antialias, attrs, by):
    """In float64, as PyTorch computes it there."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    for image in IMAGES:
        x = rng.standard_normal((1, 2, *(before for before, _ in image)))
        scales = [scale_of(*pair) for pair in image]
        sizes = [after for _, after in image]
        chosen = {"scale_factor": scales} if by == "scales" else {"size": sizes}
        want = torch.nn.functional.interpolate(
            torch.from_numpy(x), mode=name, align_corners=align, antialias=antialias, **chosen
        ).numpy()
        operands = (None, np.array(scales, np.float32), None)
        if by == "sizes":
            operands = (None, None, np.array(sizes))
        got = run_op("Resize", x, *operands, axes=[2, 3], **attrs)
        np.testing.assert_allclose(got, want, 1e-5, 1e-5, err_msg=str(image))


@pytest.mark.suite("all")
@pytest.mark.parametrize("mode, rank", [("linear", 1), ("linear", 2), ("linear", 3), ("cubic", 2)])
def test_odd_lengths_by_a_fractional_scale_with_aligned_corners(mode, rank):
    """nn.Upsample(scale_factor=1.5, align_corners=True), as exporters write it."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(4).standard_normal((2, 3, *(5, 7, 3)[:rank]))
    name = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank] if mode == "linear" else "bicubic"
    module = torch.nn.Upsample(scale_factor=1.5, mode=name, align_corners=True)
    scales = np.array([1, 1, *[1.5] * rank], np.float32)
    got = run_op("Resize", x, None, scales, mode=mode,
                 coordinate_transformation_mode="align_corners")  # fmt: skip
    np.testing.assert_allclose(got, module(torch.from_numpy(x)).numpy(), 1e-9, 1e-9)


# ---------------------------------------------------------------- targets


def test_a_sample_on_every_target():
    """One graph of many: what targets compute is what the interpreter does."""
    graph = new_graph(x=TensorType(dtypes.f32, (1, 2, 5, 7)))
    x = np.random.default_rng(6).standard_normal((1, 2, 5, 7)).astype(np.float32)
    b, results = Builder(graph), []
    for n, (way, coordinates) in enumerate(itertools.product(WAYS, COORDINATES)):
        if n % 4 != 1:
            continue
        scales = np.array([1, 1, (1.5, 0.6, 0.3)[n % 3], (1.7, 0.9, 2.0)[n // 3 % 3]], np.float32)
        roi = np.array([0, 0, *ROI[0], 1, 1, *ROI[1]], np.float32)
        results.append(b.Resize(graph.params[0], roi, scales,
                                coordinate_transformation_mode=coordinates, **way))  # fmt: skip
    graph.set_results(results)
    graph.output_names = [f"y{n}" for n in range(len(results))]
    graph.phase = "typed"
    agree_everywhere(graph, [x], interpret(graph, [x]), 1e-5, ("cpu", "c"))
