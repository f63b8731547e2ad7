"""Models over windows of time as steps: what a step gives, hop by hop, against ONNX Runtime, which
runs the windowed model on the same signal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from commands import ok, refused, save

import graphc
from graphc import dsl

rng = np.random.default_rng(0)
TIME = "time"


def weights(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def reference(model: bytes):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays)))


def steps(streamed, signals: dict[str, tuple[np.ndarray, int]]):
    """What each step gives: the state is carried by hand."""
    run = graphc.compile(streamed.graph, threads=1).run
    state = {
        p.name: np.zeros(p.tensor.dims, p.tensor.dtype.np)
        for p in streamed.graph.params
        if p.name in streamed.state
    }
    total = next(signal.shape[axis] for signal, axis in signals.values())
    for start in range(0, total - streamed.hop + 1, streamed.hop):
        frames = {
            name: signal.take(range(start, start + streamed.hop), axis)
            for name, (signal, axis) in signals.items()
        }
        outputs = dict(zip(streamed.graph.output_names, run({**frames, **state})))
        state = {name: outputs.pop(output) for name, output in streamed.state.items()}
        yield start + streamed.hop, list(outputs.values())


def check_window(graph, axis: int, hop: int | None = None, tolerance: float = 1e-5, **options):
    """Compares every step once the window is filled; of outputs with frames, the newest ones."""
    model = graphc.export_onnx(graph).SerializeToString()
    streamed = graphc.stream(model, f"x:{axis}", hop, **options)
    run, window = reference(model), streamed.window
    type = graphc.import_onnx(model).params[0].tensor
    shape = list(type.dims)
    shape[axis] = window + 6 * streamed.hop
    signal = rng.standard_normal(shape).astype(np.float32)
    compared = 0
    for end, outputs in steps(streamed, {"x": (signal, axis)}):
        if end < window:
            continue
        for given, wanted in zip(outputs, run(signal.take(range(end - window, end), axis))):
            for dim in range(wanted.ndim):  # frames: the newest
                wanted = wanted.take(
                    range(wanted.shape[dim] - given.shape[dim], wanted.shape[dim]), dim
                )
            np.testing.assert_allclose(given, wanted, rtol=tolerance, atol=tolerance)
            compared += 1
    assert compared > 3
    return streamed


# ---------------------------------------------------------------- windows

W1, W2, D3 = weights(6, 4, 3), weights(8, 6, 3), weights(8, 1, 4)
DENSE = weights(5, 8 * 8)


@pytest.mark.parametrize("hop", [None, 2, 6])
def test_convolutions_keep_their_last_frames(hop):
    @dsl.graph
    def net(x: dsl.f32[1, 4, 24]):
        y = dsl.Relu(dsl.Conv(x, W1))
        y = dsl.Conv(y, W2, dilations=[2], strides=[1])
        y = dsl.Tanh(dsl.Conv(y, D3, group=8, strides=[2]))
        return dsl.Gemm(dsl.Reshape(y, np.array([1, -1])), DENSE, transB=1)

    step = check_window(net, 2, hop)
    states = [w.state for w in step.work if w.state]
    assert step.hop == (hop or 2) and step.window == 24
    assert states[0] == 4 * 4 * (2 + step.hop)  # of the input: kernel - 1 frames and the new ones
    assert sum(states) == step.state_bytes
    assert max(w.frames for w in step.work if w.name.startswith("Conv")) == step.hop


def test_pooling_norms_and_products_per_frame():
    scale, shift, w = np.ones(4, np.float32), np.zeros(4, np.float32), weights(4, 4)

    @dsl.graph
    def net(x: dsl.f32[1, 20, 4]):
        y = dsl.LayerNormalization(x @ w, scale, shift, axis=-1)
        y = dsl.Softmax(y, axis=-1) + x
        y = dsl.Transpose(y, perm=[0, 2, 1])
        y = dsl.MaxPool(y, kernel_shape=[3], strides=[2])
        y = dsl.AveragePool(y, kernel_shape=[2])
        return {"mean": dsl.GlobalAveragePool(y), "frames": y, "last": y[:, :, -1]}

    step = check_window(net, 1)
    assert step.hop == 2


def test_whole_windows_are_computed_from_kept_frames():
    """What a value is scaled by depends on all frames: the frames themselves are not made anew."""
    w = weights(6, 4, 3)

    @dsl.graph
    def net(x: dsl.f32[1, 4, 16]):
        y = dsl.Conv(x, w)
        return dsl.ReduceMax(y * dsl.Sigmoid(dsl.GlobalAveragePool(y)), np.array([2]), keepdims=0)

    step = check_window(net, 2)
    assert [w.frames for w in step.work if w.name.startswith("Conv")] == [1]


def test_causal_padding_that_no_result_reads_needs_nothing():
    w = weights(4, 4, 3)

    @dsl.graph
    def net(x: dsl.f32[1, 4, 16]):
        y = dsl.Relu(dsl.Conv(x, w, pads=[2, 0]))
        y = dsl.Conv(dsl.Pad(y, np.array([0, 0, 4, 0, 0, 0])), w, dilations=[2])
        return y[:, :, -1]

    step = check_window(net, 2)
    assert all(w.frames == 1 for w in step.work if w.name.startswith("Conv"))


@dsl.graph
def padded(x: dsl.f32[1, 4, 16, 3]):
    w = weights(4, 4, 3, 3)
    y = dsl.Relu(dsl.Conv(x, w, pads=[1, 1, 1, 1]))
    y = dsl.Conv(y, w, auto_pad="SAME_UPPER", strides=[2, 1])
    y = dsl.AveragePool(y, kernel_shape=[3, 1], pads=[1, 0, 1, 0])
    return dsl.GlobalMaxPool(y)


def test_borders_are_computed_anew_where_asked():
    step = check_window(padded, 2, recompute=True)
    computed = {w.name: (w.frames, w.all) for w in step.work if w.name.startswith("Conv")}
    assert all(frames < whole for frames, whole in computed.values()), computed


def test_borders_are_refused():
    with pytest.raises(graphc.UnsupportedError, match=r"Conv .*pads time.*borders recompute"):
        graphc.stream(padded, "x:2")


def test_positions_are_no_frames():
    table = weights(1, 4, 12)

    @dsl.graph
    def net(x: dsl.f32[1, 4, 12]):
        return dsl.ReduceSum(dsl.Tanh(x + table), np.array([2]))

    check_window(net, 2)


def test_several_inputs_and_one_that_does_not_move():
    w = weights(3, 3, 4)

    @dsl.graph
    def net(x: dsl.f32[1, 3, TIME], z: dsl.f32[1, 3, TIME], c: dsl.f32[1, 3, 1]):
        return dsl.Conv(x * c + z, w)

    model = graphc.export_onnx(net).SerializeToString()
    streamed = graphc.stream(model, "time", 3, dims={"time": 9})
    x, z = (rng.standard_normal((1, 3, 30)).astype(np.float32) for _ in range(2))
    c = np.float32([[[1], [2], [3]]])
    run = reference(model)
    compiled = graphc.compile(streamed.graph)
    state = np.zeros(streamed.graph.params[-1].tensor.dims, np.float32)
    for t in range(0, 30, 3):
        y, state = compiled.run(
            {"x": x[:, :, t : t + 3], "z": z[:, :, t : t + 3], "c": c, "state1_in": state}
        )
        if t >= 6:
            wanted = run(x[:, :, t - 6 : t + 3], z[:, :, t - 6 : t + 3], c)[0][:, :, -3:]
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


def test_integers_to_the_bit():
    """State of a quantised model is quantised, and results are those of the whole window."""
    w1, w2 = weights(6, 4, 3), weights(4, 6, 2)

    @dsl.graph
    def net(x: dsl.f32[1, 4, 12]):
        y = dsl.Relu(dsl.Conv(x, w1))
        return dsl.GlobalAveragePool(dsl.Conv(y, w2, strides=[2]))

    data = [{"x": rng.standard_normal((1, 4, 12)).astype(np.float32)} for _ in range(8)]
    model = graphc.quantise(graphc.export_onnx(net), data).to_onnx().SerializeToString()
    streamed = graphc.stream(model, "x:2")
    kinds = {str(p.tensor.dtype) for p in streamed.graph.params if p.name in streamed.state}
    assert "i8" in kinds or "u8" in kinds
    whole = graphc.compile(model, threads=1)
    signal = rng.standard_normal((1, 4, 40)).astype(np.float32)
    for end, (given,) in steps(streamed, {"x": (signal, 2)}):
        if end >= 12:
            np.testing.assert_array_equal(given, whole.run({"x": signal[:, :, end - 12 : end]})[0])


# ---------------------------------------------------------------- since the start of a signal


def opened(graph, axis: int) -> bytes:
    """The model with an axis of its input open."""
    model = graphc.export_onnx(graph)
    model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "time"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString()


def check_start(graph, axis: int, length: int = 12, hop: int | None = None):
    model = opened(graph, axis)
    streamed = graphc.stream(model, "time", hop, since="start")
    run = reference(model)
    shape = [
        length if not isinstance(d, int) else d
        for d in graphc.import_onnx(model).params[0].tensor.dims
    ]
    signal = rng.standard_normal(shape).astype(np.float32)
    for end, outputs in steps(streamed, {"x": (signal, axis)}):
        for given, wanted in zip(outputs, run(signal.take(range(end), axis))):
            for dim in range(wanted.ndim):
                wanted = wanted.take(
                    range(wanted.shape[dim] - given.shape[dim], wanted.shape[dim]), dim
                )
            np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    return streamed


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("hop", [1, 3])
def test_recurrent_layers_go_on(kind, hop):
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], 5
    w, r, b = (
        weights(1, gates * hidden, 3),
        weights(1, gates * hidden, hidden),
        weights(1, 2 * gates * hidden),
    )
    conv = weights(4, hidden, 3)

    @dsl.graph
    def net(x: dsl.f32[4, 1, 3]):
        y = getattr(dsl, kind)(x, w, r, b, hidden_size=hidden, outputs=2)
        h = dsl.Transpose(dsl.Squeeze(y[0], np.array([1])), perm=[1, 2, 0])
        z = dsl.Conv(h, conv, pads=[2, 0])
        return {"z": z, "last": y[1], "newest": z[:, :, -1]}

    streamed = check_start(net, 0, hop=hop)
    assert len(streamed.state) == (3 if kind == "LSTM" else 2)


def test_causal_convolutions_from_the_start():
    w1, w2, b = weights(4, 3, 3), weights(4, 4, 2), weights(4)

    @dsl.graph
    def net(x: dsl.f32[1, 3, 8]):
        y = dsl.Relu(dsl.Conv(x, w1, b, pads=[4, 0], dilations=[2]))
        y = dsl.Conv(dsl.Pad(y, np.array([0, 0, 1, 0, 0, 0])), w2, b)
        return dsl.Sigmoid(y)

    streamed = check_start(net, 2, hop=2)
    assert streamed.window is None


W = weights(3, 3, 3)
TWO_WAYS = weights(2, 4, 3), weights(2, 4, 4)


def from_start(body):
    @dsl.graph
    def net(x: dsl.f32[1, 3, 8]):
        return body(x)

    return opened(net, 2)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (lambda x: dsl.Conv(x, W, pads=[1, 1]), "yet to come"),
        (lambda x: dsl.GlobalAveragePool(x), "no frames of its own"),
        (lambda x: dsl.Conv(dsl.Relu(dsl.Conv(x, W)), W, pads=[2, 0]), "fewer than have passed"),
        (lambda x: dsl.MaxPool(x, kernel_shape=[3], pads=[2, 0]), "something else than zeros"),
        (lambda x: dsl.AveragePool(x, kernel_shape=[3], pads=[2, 0]), "something else than zeros"),
        (lambda x: x[:, :, 0], "no frames of its own"),
        (
            lambda x: dsl.RNN(
                dsl.Transpose(x, perm=[2, 0, 1]),
                *TWO_WAYS,
                hidden_size=4,
                direction="bidirectional",
            )[0],
            "more than one direction",
        ),
    ],
    ids=["future", "global", "unfilled", "max", "average", "first", "two ways"],
)
def test_what_has_no_stream_from_the_start(body, told):
    with pytest.raises(graphc.UnsupportedError, match=told):
        graphc.stream(from_start(body), "time", since="start")


def test_a_layer_that_quantises_all_steps_as_one_is_refused_and_its_step_is_not():
    w, r, b = weights(1, 20, 4), weights(1, 20, 5), weights(1, 40)

    @dsl.graph
    def net(x: dsl.f32[8, 1, 4]):
        return dsl.LSTM(x, w, r, b, hidden_size=5)

    signal = rng.standard_normal((8, 1, 4)).astype(np.float32)
    whole = graphc.quantise(graphc.export_onnx(net), [{"x": signal}])
    with pytest.raises(graphc.UnsupportedError, match="quantises all steps as one"):
        graphc.stream(whole.graph, "x:0", since="start")
    streamed = graphc.stream(net, "x:0", 1, since="start")
    fed: list[dict[str, np.ndarray]] = []

    def through(graph) -> np.ndarray:
        run = graphc.compile(graph).run
        state = {name: np.zeros((1, 1, 5), np.float32) for name in streamed.state}
        given = []
        for frame in signal:
            fed.append({"x": frame[None], **state})
            outputs = dict(zip(streamed.graph.output_names, run(fed[-1])))
            state = {name: outputs[output] for name, output in streamed.state.items()}
            given.append(outputs[streamed.graph.output_names[0]])
        return np.concatenate(given)

    wanted = reference(graphc.export_onnx(net).SerializeToString())(signal)[0]
    np.testing.assert_allclose(through(streamed.graph), wanted, rtol=1e-4, atol=1e-5)
    given = through(graphc.quantise(streamed.graph, fed[:8]).graph)
    assert np.abs(given - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_recurrent_layer_starts_anew_in_each_window():
    w, r = weights(1, 4, 3), weights(1, 4, 4)

    @dsl.graph
    def net(x: dsl.f32[8, 1, 3]):
        return dsl.RNN(dsl.Tanh(x), w, r, hidden_size=4, outputs=2)[1]

    with pytest.raises(graphc.UnsupportedError, match=r"RNN.*starts anew.*--stream-since start"):
        graphc.stream(net, "x:0")
    check_window(net, 0, recompute=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": "x:7"}, "has axes 0 to 3"),
        ({"dim": "y:2"}, "no input has such a dimension"),
        ({"dim": "x:2", "hop": 1, "recompute": True}, "a multiple of 2"),
        ({"dim": "x:2", "hop": 18, "recompute": True}, "the window has 16 frames"),
        ({"dim": "x:2", "hop": 0}, "a positive number"),
        ({"dim": "x:2", "since": "then"}, "since must be one of"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else "",
)
def test_wrong_arguments(options, told):
    with pytest.raises(graphc.ModelError, match=told):
        graphc.stream(padded, **options)


# ---------------------------------------------------------------- the command line, and C

MAIN = """\
#include "net.h"
#include <stdio.h>
int main(void)
{
    static net_state state;
    static double arena[NET_ARENA_SIZE / sizeof(double) + 3];
    void *const start = (void *)(((uintptr_t)arena + 15) / 16 * 16);
    float x[8], y[5];
    net_inputs in = {x};
    net_outputs out = {y};
    net_reset(&state);
    for (;;) {
        for (int n = 0; n < 8; n++) {
            if (scanf("%f", &x[n]) != 1) {
                return 0;
            }
        }
        if (net_run(&in, &out, &state, start) != NET_OK) {
            return 1;
        }
        for (int n = 0; n < 5; n++) {
            printf("%.9g ", (double)y[n]);
        }
        printf("\\n");
    }
}
"""


def test_a_bundle_keeps_the_frames(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    w1, w2, dense = weights(6, 4, 3), weights(8, 6, 3), weights(5, 8 * 4)

    @dsl.graph
    def net(x: dsl.f32[1, 4, 12]):
        y = dsl.Relu(dsl.Conv(dsl.Relu(dsl.Conv(x, w1)), w2, strides=[2]))
        return dsl.Gemm(dsl.Reshape(y, np.array([1, 32])), dense, transB=1)

    path = save(tmp_path / "net.onnx", graphc.export_onnx(net))
    stream = ["--stream", "x:2"]
    text = ok(capsys, "inspect", path, "--target", "c", *stream)
    streamed = graphc.stream(path, "x:2")
    assert f"state {4 * 4 * 4 + 6 * 4 * 4 + 8 * 4 * 4} B" in text
    ok(
        capsys,
        "compile",
        path,
        "--target",
        "c",
        "--name",
        "net",
        *stream,
        "--with-test",
        "-o",
        "fw",
    )
    header = Path("fw/net.h").read_text()
    assert f"#define NET_STATE_SIZE {streamed.state_bytes}" in header and "net_reset" in header
    Path("fw/main.c").write_text(MAIN)
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    for main in ("main", "net_test"):
        command = ["gcc", *flags, f"{main}.c", "net.c", "net_weights.c", "-lm", "-o", main]
        subprocess.run(command, cwd="fw", check=True)
    assert subprocess.run(["./net_test"], cwd="fw").returncode == 0
    signal = rng.standard_normal((1, 4, 40)).astype(np.float32)
    hops = [signal[:, :, t : t + 2].ravel() for t in range(0, 40, 2)]
    lines = "\n".join(" ".join(map(str, frames)) for frames in hops)
    done = subprocess.run(
        ["./main"], cwd="fw", input=lines, capture_output=True, text=True, check=True
    )
    rows = [np.array(line.split(), np.float32) for line in done.stdout.splitlines()]
    run = reference(path)
    assert len(rows) == 20
    for number in range(5, 20):
        end = 2 * number + 2
        wanted = run(signal[:, :, end - 12 : end])[0][0]
        np.testing.assert_allclose(rows[number], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--hop", "2"], "--hop: goes with --stream"),
        (["--stream", "x:2"], "pads time"),
        (["--stream", "x:2", "--train", "all"], "goes without --train"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_the_command_line_refuses(capsys, tmp_path, more, told):
    path = save(tmp_path / "net.onnx", graphc.export_onnx(padded))
    assert told in refused(
        capsys, "compile", path, "--target", "c", *more, "-o", str(tmp_path / "fw")
    )
