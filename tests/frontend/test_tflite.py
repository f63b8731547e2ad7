"""TensorFlow Lite models in: results against TensorFlow Lite Micro, and against what its reference
kernels are documented to compute, written here once more in plain integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphc

tflite = pytest.importorskip("tflite")

from tests.frontend.tflite_cases import CASES  # noqa: E402  (needs package tflite)
from tests.frontend.tflite_models import RELU, SAME, Op, T, one, tflite_model  # noqa: E402

PUBLISHED = Path(__file__).parents[3] / "shared" / "models" / "mlperf_tiny" / "tflite"
ROUNDING = 1e-5  # of sums of float32 in another order, next to the largest result


def feeds(graph: graphc.Graph, rng: np.random.Generator) -> list[np.ndarray]:
    """Values for the inputs: all there are, of 8 bits, if they are 256."""
    made = []
    for param in graph.params:
        dtype, shape = param.tensor.dtype.np, param.tensor.static_shape
        if dtype == np.float32:
            made.append(rng.standard_normal(shape).astype(dtype) * 2)
        elif shape == (1, 256):
            made.append(np.arange(-128, 128).astype(dtype).reshape(shape))
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            made.append(rng.integers(low, high + 1, shape).astype(dtype))
    return made


def by_micro(data: bytes, arrays: list[np.ndarray]) -> np.ndarray:
    """What TensorFlow Lite Micro gives."""
    micro = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = micro.Interpreter.from_bytes(data, arena_size=500_000)
    for position, array in enumerate(arrays):
        interpreter.set_input(array, position)
    interpreter.invoke()
    return interpreter.get_output(0)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, expected, atol=ROUNDING * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_tensorflow_lite_micro(name):
    rng = np.random.default_rng(3)
    data = CASES[name](rng)
    graph = graphc.import_tflite(data)
    arrays = feeds(graph, rng)
    same(graphc.interpret(graph, arrays)[0], by_micro(data, arrays))


@pytest.mark.parametrize("target", ["cpu", "c"])
@pytest.mark.parametrize("name", ["conv", "conv_relu", "add", "average_pool", "softmax", "mean"])
def test_compiled_code_gives_what_the_interpreter_gives(name, target):
    rng = np.random.default_rng(4)
    graph = graphc.import_tflite(CASES[name](rng))
    arrays = feeds(graph, rng)
    names = [p.name for p in graph.params]
    (expected,) = graphc.interpret(graph, arrays)
    got = graphc.compile(graph, target=target).run(dict(zip(names, arrays)))
    same(np.asarray(next(iter(got.values())) if isinstance(got, dict) else got[0]), expected)


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*int8.tflite")), ids=lambda p: p.stem)
def test_published_models_give_what_tensorflow_lite_micro_gives(path):
    rng = np.random.default_rng(5)
    data = path.read_bytes()
    graph = graphc.import_tflite(data)
    arrays = feeds(graph, rng)
    (param,) = graph.params
    got = graphc.compile(graph, target="c").run({param.name: arrays[0]})
    same(np.asarray(got[0]), by_micro(data, arrays))


# ---------------------------------------------------------------- the arithmetic, once more


def multiplier(real: float) -> tuple[int, int]:
    fraction, exponent = np.frexp(real)
    whole = int(np.floor(fraction * 2.0**31 + 0.5))
    return (whole // 2, int(exponent) + 1) if whole == 1 << 31 else (whole, int(exponent))


def rounded_product(a: int, b: int) -> int:
    """gemmlowp's SaturatingRoundingDoublingHighMul, with C's division toward zero."""
    total = a * b + (1 << 30 if a * b >= 0 else 1 - (1 << 30))
    return total >> 31 if total >= 0 else -(-total >> 31)


def divided(x: int, exponent: int) -> int:
    """gemmlowp's RoundingDivideByPOT."""
    mask = (1 << exponent) - 1
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))


def scaled(x: int, real: float) -> int:
    whole, exponent = multiplier(real)
    return divided(rounded_product(x << max(exponent, 0), whole), max(-exponent, 0))


def clipped(x: int, low: int = -128, high: int = 127) -> int:
    return min(max(x, low), high)


def dense(sx, zx, w, sw, bias, sy, zy, low=-128):
    """A model of one fully connected layer, and what it computes."""
    units, depth = w.shape
    data = one("FULLY_CONNECTED", [
        T((4, depth), scale=sx, zero=zx), T(data=w, scale=sw), T(data=bias, scale=sx * sw),
        T((4, units), scale=sy, zero=zy),
    ], FusedActivationFunction=RELU if low > -128 else 0)  # fmt: skip
    sx, sw, sy = (np.float32(s) for s in (sx, sw, sy))

    def expected(x):
        sums = (x.astype(int) - zx) @ w.T.astype(int) + bias
        real = float(sx * sw) / float(sy)
        return np.array([[clipped(scaled(int(s), real) + zy, low) for s in row] for row in sums])

    return data, expected


@pytest.mark.suite("all")
@pytest.mark.parametrize("zy, low", [(3, -128), (-128, -128), (-20, -20)])
@pytest.mark.parametrize("seed", range(4))
def test_sums_are_rounded_twice(zy, low, seed):
    rng = np.random.default_rng(seed)
    w = rng.integers(-127, 128, (20, 16)).astype(np.int8)
    bias = rng.integers(-2000, 2000, 20).astype(np.int32)
    sx, sw, sy = rng.uniform(0.02, 0.1), rng.uniform(0.002, 0.02), rng.uniform(0.05, 0.3)
    data, expected = dense(sx, -7, w, sw, bias, sy, zy, low)
    graph = graphc.import_tflite(data)
    x = rng.integers(-128, 128, (4, 16)).astype(np.int8)
    np.testing.assert_array_equal(graphc.interpret(graph, [x])[0], expected(x))


def test_a_quarter_becomes_a_half_which_becomes_one():
    """A factor of 1/4 is 1/2 twice: 1 is rounded up to 1, and again; -1 is rounded up to 0."""
    w, bias = np.eye(2, dtype=np.int8), np.zeros(2, np.int32)
    data, expected = dense(0.5, 0, w, 0.5, bias, 1.0, 0)
    x = np.array([[-2, 2], [-6, 6], [-1, 1], [-3, 3]], np.int8)
    got = graphc.interpret(graphc.import_tflite(data), [x])[0]
    assert got.tolist() == [[-1, 1], [-2, 2], [0, 1], [-1, 1]] == expected(x).tolist()


def pairs_of_bytes():
    """All pairs of two values of 8 bits, as two images."""
    every = np.arange(-128, 128).astype(np.int8)
    a, b = (part.reshape(1, 256, 256, 1) for part in np.meshgrid(every, every))
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def binary(kind, scales, zeros, **options):
    shape = (1, 256, 256, 1)
    return one(kind, [T(shape, scale=s, zero=z) for s, z in zip(scales, zeros)], 2, **options)


@pytest.mark.parametrize("sa, sb, sy", [(0.05, 0.031, 0.07), (0.02, 0.02, 0.04), (0.1, 0.003, 0.1)])
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL"])
def test_all_pairs_of_two_bytes(kind, sa, sb, sy):
    zeros = (3, -20, 7)
    graph = graphc.import_tflite(binary(kind, (sa, sb, sy), zeros))
    a, b = pairs_of_bytes()
    got = graphc.interpret(graph, [a, b])[0].reshape(-1)
    real = np.float32 if kind == "SUB" else np.float64  # as the kernels have their factors
    sa, sb, sy = (real(np.float32(s)) for s in (sa, sb, sy))
    for place in np.random.default_rng(1).integers(0, a.size, 2000):
        x, y = int(a.flat[place]) - zeros[0], int(b.flat[place]) - zeros[1]
        if kind == "MUL":
            whole = scaled(x * y, float(sa * sb / sy))
        else:
            twice = real(2) * max(sa, sb)
            parts = [scaled(v << 20, float(s / twice)) for v, s in ((x, sa), (y, sb))]
            total = parts[0] + parts[1] if kind == "ADD" else parts[0] - parts[1]
            whole = scaled(total, float(twice / (real(1 << 20) * sy)))
        assert got[place] == clipped(whole + zeros[2]), (kind, x, y)


def test_means_round_halves_away_from_zero_and_leave_out_padding():
    data = one("AVERAGE_POOL_2D", [
        T((1, 3, 3, 1), scale=0.1, zero=3), T((1, 2, 2, 1), scale=0.1, zero=3),
    ], Padding=SAME, StrideH=2, StrideW=2, FilterHeight=2, FilterWidth=2)  # fmt: skip
    x = np.array([-3, 0, -3, 2, -1, 4, 5, 6, -7], np.int8).reshape(1, 3, 3, 1)
    got = graphc.interpret(graphc.import_tflite(data), [x])[0]
    # -2/4 and 1/2 are halves, 11/2 is one, and the last window holds one number
    assert got.reshape(-1).tolist() == [-1, 1, 6, -7]


def test_softmax_is_within_a_step_of_the_real_one():
    rng = np.random.default_rng(2)
    graph = graphc.import_tflite(CASES["softmax"](rng))
    (x,) = feeds(graph, rng)
    power = np.exp((x.astype(float) - 5) * 0.09)
    expected = power / power.sum(-1, keepdims=True) * 256 - 128
    assert np.abs(graphc.interpret(graph, [x])[0] - np.clip(expected, -128, 127)).max() <= 1


def test_space_to_batch_pads_with_what_means_zero():
    data = one("SPACE_TO_BATCH_ND", [
        T((1, 3, 4, 1), scale=0.1, zero=-4), T(data=np.array([2, 2], np.int32)),
        T(data=np.array([[1, 0], [0, 2]], np.int32)), T((4, 2, 3, 1), scale=0.1, zero=-4),
    ])  # fmt: skip
    x = np.arange(12, dtype=np.int8).reshape(1, 3, 4, 1)
    padded = np.pad(x[0, :, :, 0], ((1, 0), (0, 2)), constant_values=-4)
    expected = np.stack([padded[a::2, b::2] for a in range(2) for b in range(2)])
    got = graphc.interpret(graphc.import_tflite(data), [x])[0]
    np.testing.assert_array_equal(got[..., 0], expected)


# ---------------------------------------------------------------- graphs


def two_convolutions() -> bytes:
    rng = np.random.default_rng(0)
    weights = [rng.integers(-127, 128, (4, 3, 3, 4)).astype(np.int8) for _ in range(2)]
    bias = np.zeros(4, np.int32)
    tensors = [T((1, 6, 6, 4), scale=0.05, zero=-128)]
    for w in weights:
        tensors += [T(data=w, scale=0.01), T(data=bias, scale=0.0005),
                    T((1, 6, 6, 4), scale=0.1, zero=-128)]  # fmt: skip
    tensors += [T((1, 6, 6, 4), scale=0.15, zero=-128)]
    window = {"Padding": SAME, "StrideH": 1, "StrideW": 1, "FusedActivationFunction": RELU}
    ops = [
        Op("CONV_2D", [0, 1, 2], [3], window), Op("CONV_2D", [3, 4, 5], [6], window),
        Op("ADD", [3, 6], [7], {"FusedActivationFunction": RELU}),
    ]  # fmt: skip
    return tflite_model(tensors, ops, [0], [7])


def test_transposes_are_at_the_ends_alone_and_are_no_kernels():
    graph = graphc.import_tflite(two_convolutions())
    assert sum(op.name == "Transpose" for op in graph.ops) == 2
    names = []
    graphc.compile(
        graph, target="c", cpu="cortex-m4",
        observe=lambda program: names.extend(program.kernels)
    )  # fmt: skip
    assert len(names) == 2, "one for each convolution, the sum with the second"


def test_floats_with_weights_of_8_bits_are_computed_in_floats():
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, (3, 5)).astype(np.int8)
    scale = np.array([0.1, 0.02, 0.3], np.float32)
    data = one("FULLY_CONNECTED", [
        T((2, 5), np.float32), T(data=w, scale=scale), T((2, 3), np.float32)
    ])  # fmt: skip
    x = rng.standard_normal((2, 5)).astype(np.float32)
    got = graphc.interpret(graphc.import_tflite(data), [x])[0]
    np.testing.assert_allclose(got, x @ (w * scale[:, None]).T, rtol=1e-5)


def test_weights_of_4_bits_are_unpacked():
    packed = np.array([0x1F, 0x80, 0x07], np.uint8)  # -1, 1, 0, -8, 7, and a half that is not used
    data = one("FULLY_CONNECTED", [
        T((1, 5), scale=1.0), T(data=packed, scale=1.0, kind="INT4"), T((1, 1), scale=1.0)
    ])  # fmt: skip
    with pytest.raises(graphc.ModelError, match="needs 2 bytes, its buffer has 3"):
        graphc.import_tflite(data)
    tensor = T(data=packed, scale=1.0, kind="INT4")
    tensor.shape = (1, 5)
    data = one("FULLY_CONNECTED", [T((1, 5), scale=1.0), tensor, T((1, 1), scale=1.0)])
    graph = graphc.import_tflite(data)
    results = [
        int(graphc.interpret(graph, [row])[0][0, 0]) for row in np.eye(5, dtype=np.int8)[:, None]
    ]
    assert results == [-1, 1, 0, -8, 7]


def test_names_are_made_unique_and_may_be_anything():
    names = ["", "x y;z", "x y;z", "int"]
    tensors = [T((1, 4), scale=0.1, name=name) for name in names]
    ops = [Op("RELU", [0], [1]), Op("RELU", [1], [2]), Op("RELU", [2], [3])]
    graph = graphc.import_tflite(tflite_model(tensors, ops, [0], [1, 2, 3, 3]))
    assert [p.name for p in graph.params] == ["tensor_0"]
    assert graph.output_names == ["x y;z", "x y;z_2", "int", "int_"]
    x = np.array([[-1, 2, -3, 4]], np.int8)
    results = graphc.compile(graph, target="c").run({"tensor_0": x})
    assert len(results) == 4


def test_bytes_and_paths_are_told_from_onnx(tmp_path):
    data = CASES["relu"](np.random.default_rng(0))
    path = tmp_path / "m.tflite"
    path.write_bytes(data)
    x = np.arange(-128, 128).astype(np.int8).reshape(1, 256)
    results = [graphc.compile(source, target="c").run({"t0": x})[0] for source in (data, path)]
    np.testing.assert_array_equal(*results)


def test_the_command_line_takes_files(tmp_path, capsys):
    from graphc.cli import main

    path = tmp_path / "m.tflite"
    path.write_bytes(CASES["conv_relu"](np.random.default_rng(0)))
    assert main(["verify", str(path), "--target", "c"]) == 0
    assert main(["compile", str(path), "--target", "c", "-o", str(tmp_path / "net")]) == 0
    assert (tmp_path / "net" / "m.c").is_file()
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr()
    assert "ConvInteger" in told.out and "passed" in told.out and "Traceback" not in told.err
