"""Every rewrite of an older opset, against the meaning the operator had then."""

import numpy as np
import onnx
import pytest
from onnx_models import model, run, single

from graphc.errors import GraphcError, UnsupportedError
from graphc.frontend import upgrade

pytestmark = pytest.mark.suite("all")

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


X = floats(2, 3, 4, 5)


@pytest.mark.parametrize("axis,shape", [(1, (3,)), (1, (3, 4)), (-2, (4, 5)), (0, (2,)), (2, (4,))])
def test_broadcast_axis(axis, shape):
    b = floats(*shape)
    made = single("Sub", {"a": X, "b": b}, opset=6, axis=axis, broadcast=1)
    start = axis % 4
    wide = b.reshape(b.shape + (1,) * (4 - start - b.ndim))
    np.testing.assert_array_equal(run(made, X, b)[0], X - wide)


def test_broadcast_axis_after_an_op_of_unknown_rank():
    text = """g (float[2,3,4,5] x, float[3] b) => (float[2,3,4,5] y) {
        t = Neg(x)
        y = Mul<axis = 1, broadcast = 1>(t, b)
    }"""
    b = floats(3)
    np.testing.assert_array_equal(run(model(text, 6), X, b)[0], -X * b.reshape(3, 1, 1))


def test_broadcast_without_axis_matches_the_last_dims():
    b = floats(5)
    made = single("Add", {"a": X, "b": b}, opset=6, broadcast=1)
    np.testing.assert_array_equal(run(made, X, b)[0], X + b)


@pytest.mark.parametrize("shape", [(1,), (3,), (3, 4, 5)])
def test_prelu_slope_belongs_to_channels(shape):
    slope = floats(*shape)
    wide = slope.reshape(3, 1, 1) if shape == (3,) else slope
    made = single("PRelu", {"x": X, "slope": slope}, opset=6)
    np.testing.assert_allclose(run(made, X, slope)[0], np.where(X < 0, X * wide, X))


def test_gemm_broadcast():
    a, b, c = floats(2, 3), floats(3, 4), floats(4)
    made = single("Gemm", {"a": a, "b": b, "c": c}, opset=6, broadcast=1)
    np.testing.assert_allclose(run(made, a, b, c)[0], a @ b + c, rtol=1e-5)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1, -2])
def test_softmax_of_a_flattened_matrix(op, axis):
    made = single(op, {"x": X}, opset=11, **({} if axis is None else {"axis": axis}))
    start = 1 if axis is None else axis % 4
    rows = X.reshape(int(np.prod(X.shape[:start])), -1)
    e = np.exp(rows - rows.max(1, keepdims=True))
    share = e / e.sum(1, keepdims=True)
    want = {
        "Softmax": share,
        "LogSoftmax": np.log(share),
        "Hardmax": (rows == rows.max(1, keepdims=True)).astype(np.float32),
    }[op]
    np.testing.assert_allclose(run(made, X)[0], want.reshape(X.shape), rtol=1e-4, atol=1e-6)


def test_softmax_of_nothing_keeps_its_shape():
    x = np.zeros((2, 3, 0), np.float32)
    assert run(single("Softmax", {"x": x}, opset=11), x)[0].shape == (2, 3, 0)


def test_axes_become_an_operand():
    made = single("ReduceMean", {"x": X}, opset=13, axes=[1, -1], keepdims=0)
    np.testing.assert_allclose(run(made, X)[0], X.mean((1, 3)), rtol=1e-4, atol=1e-6)
    made = single("ReduceSum", {"x": X}, opset=11, axes=[0])
    np.testing.assert_allclose(run(made, X)[0], X.sum(0, keepdims=True), rtol=1e-4, atol=1e-6)
    assert run(single("Unsqueeze", {"x": X}, opset=11, axes=[0, 5]), X)[0].shape == (1, *X.shape, 1)
    y = X[:1]
    assert run(single("Squeeze", {"x": y}, opset=11, axes=[0]), y)[0].shape == (3, 4, 5)
    assert run(single("Squeeze", {"x": y}, opset=11), y)[0].shape == (3, 4, 5)


def test_shape_attribute():
    assert run(single("Reshape", {"x": X}, opset=1, shape=[2, 0, -1]), X)[0].shape == (2, 3, 20)


def test_slice_attributes():
    made = single("Slice", {"x": X}, opset=9, starts=[1, 0], ends=[9, -1], axes=[2, 3])
    np.testing.assert_array_equal(run(made, X)[0], X[:, :, 1:9, 0:-1])
    made = single("Slice", {"x": X}, opset=1, starts=[1, 0], ends=[2, 2])
    np.testing.assert_array_equal(run(made, X)[0], X[1:2, 0:2])


def test_top_k_attribute():
    values, indices = run(single("TopK", {"x": X}, 2, opset=9, k=2), X)
    np.testing.assert_array_equal(values, -np.sort(-X, -1)[..., :2])
    np.testing.assert_array_equal(indices, np.argsort(-X, -1)[..., :2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clip_attributes(dtype):
    x = X.astype(dtype)
    np.testing.assert_array_equal(
        run(single("Clip", {"x": x}, opset=10, min=-0.5, max=0.25), x)[0], np.clip(x, -0.5, 0.25)
    )
    np.testing.assert_array_equal(
        run(single("Clip", {"x": x}, opset=6, max=0.25), x)[0], np.minimum(x, 0.25)
    )


def test_pad_attributes():
    widths = [(0, 0), (1, 0), (0, 2), (0, 1)]
    pads = [0, 1, 0, 0, 0, 0, 2, 1]
    want = np.pad(X, widths, constant_values=1.5)
    np.testing.assert_array_equal(
        run(single("Pad", {"x": X}, opset=10, pads=pads, value=1.5), X)[0], want
    )
    np.testing.assert_array_equal(
        run(single("Pad", {"x": X}, opset=1, paddings=pads, value=1.5), X)[0], want
    )
    want = np.pad(X, widths, mode="edge")
    made = single("Pad", {"x": X}, opset=2, pads=pads, mode="edge")
    np.testing.assert_array_equal(run(made, X)[0], want)


def test_tile_along_one_axis():
    tiles, axis = np.array(3, np.float32), np.array(2, np.float32)
    made = single("Tile", {"x": X, "const_t": tiles, "const_a": axis}, opset=1)
    np.testing.assert_array_equal(run(made, X)[0], np.tile(X, (1, 1, 3, 1)))


def test_split_spellings():
    parts = np.split(X, [1], 1)
    for made in (
        single("Split", {"x": X}, 2, opset=2, axis=1, split=[1, 2]),
        single("Split", {"x": X, "const": np.array([1, 2], np.float32)}, 2, opset=1, axis=1),
    ):
        for got, want in zip(run(made, X), parts):
            np.testing.assert_array_equal(got, want)
    halves = run(single("Split", {"x": X}, 2, opset=11, axis=2), X)
    np.testing.assert_array_equal(halves[1], X[:, :, 2:])
    halves = run(single("Split", {"x": X}, 2, opset=13, axis=2), X)
    np.testing.assert_array_equal(halves[1], X[:, :, 2:])


def test_concat_default_axis():
    np.testing.assert_array_equal(
        run(single("Concat", {"a": X, "b": X}, opset=1), X, X)[0], np.concatenate([X, X], 1)
    )


def test_cast_by_name():
    assert run(single("Cast", {"x": X}, opset=1, to="INT32"), X)[0].dtype == np.int32
    with pytest.raises(GraphcError, match="not the name of an element type"):
        run(single("Cast", {"x": X}, opset=1, to="INTEGER"), X)


def test_selu_constants():
    x = np.array([-1e9, 2.0], np.float32)
    got = run(single("Selu", {"x": x}, opset=1), x)[0]
    np.testing.assert_allclose(got, [-1.0507 * 1.6732, 2 * 1.0507], rtol=1e-6)


def test_dropout_is_identity_outside_training():
    for opset, attrs in ((6, {"is_test": 1}), (7, {}), (10, {"ratio": 0.75})):
        np.testing.assert_array_equal(
            run(single("Dropout", {"x": X}, opset=opset, **attrs), X)[0], X
        )
    y, mask = run(single("Dropout", {"x": X}, 2, opset=7), X)
    assert mask.dtype == X.dtype and mask.all()
    assert run(single("Dropout", {"x": X}, 2, opset=10), X)[1].dtype == np.bool_


def batch_norm(x, scale, bias, mean, variance):
    wide = [a.reshape(-1, 1, 1) for a in (scale, bias, mean, variance)]
    return (x - wide[2]) / np.sqrt(wide[3] + 1e-5) * wide[0] + wide[1]


@pytest.mark.parametrize("opset,attrs", [(6, {"is_test": 1}), (7, {}), (9, {})])
def test_batch_normalization(opset, attrs):
    scale, bias, mean = floats(3), floats(3), floats(3)
    variance = np.abs(floats(3)) + 0.5
    inputs = {"x": X, "s": scale, "b": bias, "m": mean, "v": variance}
    got = run(single("BatchNormalization", inputs, opset=opset, **attrs), *inputs.values())[0]
    np.testing.assert_allclose(got, batch_norm(*inputs.values()), rtol=1e-4, atol=1e-5)


def test_batch_normalization_per_position():
    parts = [floats(3, 4, 5) for _ in range(3)]
    variance = np.abs(floats(3, 4, 5)) + 0.5
    inputs = dict(zip("xsbmv", [X, *parts, variance]))
    got = run(single("BatchNormalization", inputs, opset=7, spatial=0), *inputs.values())[0]
    want = (X - parts[2]) / np.sqrt(variance + 1e-5) * parts[0] + parts[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_batch_normalization_saved_statistics_are_refused():
    inputs = dict(zip("xsbmv", [X, *(np.ones(3, np.float32) for _ in range(4))]))
    with pytest.raises(UnsupportedError, match="saved_mean"):
        run(single("BatchNormalization", inputs, 5, opset=7), *inputs.values())


def test_group_normalization_per_group():
    x, scale, bias = floats(2, 6, 3), floats(2), floats(2)
    inputs = {"x": x, "s": scale, "b": bias}
    made = single("GroupNormalization", inputs, opset=18, num_groups=2)
    groups = x.reshape(2, 2, -1)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    want = (normal * scale.reshape(2, 1) + bias.reshape(2, 1)).reshape(x.shape)
    np.testing.assert_allclose(run(made, *inputs.values())[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "made",
    [
        single("Upsample", {"x": X}, opset=1, height_scale=2.0, width_scale=3.0),
        single("Upsample", {"x": X}, opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
        single("Upsample", {"x": X, "const": np.array([1, 1, 2, 3], np.float32)}, opset=9),
        single("Resize", {"x": X, "const": np.array([1, 1, 2, 3], np.float32)}, opset=10),
    ],
)
def test_nearest_upsampling(made):
    np.testing.assert_array_equal(run(made, X)[0], X.repeat(2, 2).repeat(3, 3))


def reference(made, *inputs):
    """What ONNX Runtime computes."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(made.SerializeToString())
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], inputs)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 1.7, 2.5), (1, 1, 0.6, 0.7), (1, 1, 1.5, 0.5)])
def test_resize_of_opset_10(mode, scales):
    made = single("Resize", {"x": X, "const": np.array(scales, np.float32)}, opset=10, mode=mode)
    made.graph.output[0].type.tensor_type.elem_type = 1
    np.testing.assert_allclose(run(made, X)[0], reference(made, X)[0], rtol=1e-5, atol=1e-6)


def test_roi_align_default_mode():
    rois, batch = np.array([[0, 0, 3, 2], [1, 1, 4, 3]], np.float32), ints(0, 1)
    inputs = {"x": X, "rois": rois, "batch": batch}
    made = single("RoiAlign", inputs, opset=10, output_height=2, output_width=2, sampling_ratio=2)
    made.graph.output[0].type.tensor_type.elem_type = 1
    got = run(made, *inputs.values())[0]
    np.testing.assert_allclose(got, reference(made, *inputs.values())[0], rtol=1e-4, atol=1e-6)


def test_grid_sample_modes():
    grid = floats(2, 3, 3, 2).clip(-1, 1)
    for old in ("bilinear", "bicubic", "nearest"):
        made = single("GridSample", {"x": X, "grid": grid}, opset=16, mode=old)
        made.graph.output[0].type.tensor_type.elem_type = 1
        want = reference(made, X, grid)[0]
        np.testing.assert_allclose(run(made, X, grid)[0], want, rtol=1e-4, atol=1e-5)


def test_norms_with_a_float_exponent():
    made = single("GlobalLpPool", {"x": X}, opset=1, p=2.0)
    want = np.sqrt((X**2).sum((2, 3), keepdims=True))
    np.testing.assert_allclose(run(made, X)[0], want, rtol=1e-4)
    with pytest.raises(UnsupportedError, match="not an integer"):
        run(single("GlobalLpPool", {"x": X}, opset=1, p=1.5), X)


def test_scatter_was_renamed():
    indices, updates = ints(1, 0, 2).reshape(1, 3), np.ones((1, 3), np.float32)
    x = np.zeros((3, 3), np.float32)
    made = single("Scatter", {"x": x, "i": indices, "u": updates}, opset=9)
    want = x.copy()
    np.put_along_axis(want, indices, updates, 0)
    np.testing.assert_array_equal(run(made, x, indices, updates)[0], want)


def test_scan_over_a_batch():
    text = """g (float[2,2] start, float[2,3,2] x) => (float[2,2] last, float[2,3,2] all) {
        last, all = Scan<num_scan_inputs = 1, body = step (float[2] s, float[2] v)
            => (float[2] t, float[2] u) {
            t = Add(s, v)
            u = Add(t, one)
        }>(, start, x)
    }"""
    made = model(text, 8)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "one"))
    start, x = floats(2, 2), floats(2, 3, 2)
    last, every = run(made, start, x)
    sums = start[:, None] + x.cumsum(1)
    np.testing.assert_allclose(last, sums[:, -1], rtol=1e-5)
    np.testing.assert_allclose(every, sums + 1, rtol=1e-5)


def test_label_encoder_of_the_first_version():
    x = np.array(["b", "a", "?"], object)
    attrs = {"classes_strings": ["a", "b"], "default_int64": -7}
    made = single("LabelEncoder", {"x": x}, domain="ai.onnx.ml", **attrs)
    np.testing.assert_array_equal(run(made, x)[0], [1, 0, -7])


def test_in_place_hints_are_dropped():
    made = single("Relu", {"x": X}, opset=1, consumed_inputs=[0])
    np.testing.assert_array_equal(run(made, X)[0], np.maximum(X, 0))


def test_a_future_opset_is_refused():
    with pytest.raises(UnsupportedError, match="opset 99"):
        run(single("Relu", {"x": X}, opset=99), X)


def test_every_attribute_that_vanished_is_rewritten():
    """Each attribute that ONNX dropped has a rewrite at that version or later."""
    history = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= upgrade.OPSETS[""]:
            history.setdefault(schema.name, []).append(schema)
    missing = []
    for name, schemas in history.items():
        schemas.sort(key=lambda s: s.since_version)
        lifts = {version for version, _ in upgrade.LIFTS.get(("", name), ())}
        for old, new in zip(schemas, schemas[1:]):
            for attribute in old.attributes:
                kept = attribute in new.attributes or attribute in upgrade.IGNORED
                if not kept and not any(version >= new.since_version for version in lifts):
                    missing.append((name, attribute, new.since_version))
    assert not missing
