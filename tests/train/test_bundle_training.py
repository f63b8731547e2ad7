"""Bundles that train: the compiled C against the step of this machine, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import dsl, train
from graphc.backends.micro_c import BundleOptions, bundle, model_of
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.emulated_training import train_on_board
from graphc.backends.micro_c.host_training import HostTraining
from graphc.cli.app import main
from graphc.errors import ModelError
from graphc.frontend.onnx_export import export_onnx
from graphc.ir.text.parser import parse_program
from graphc.ir.text.printer import print_program, program_constants
from graphc.targets import training
from graphc.targets.micro_c import MicroC
from graphc.train.bundle import OPTIMIZERS, joint_program
from graphc.train.layers import chosen, exactly, layers
from graphc.train.states import judged, to_train

RATE = 0.05


def network(softmax=True):
    """A small convolutional network of three layers, two of them with biases."""
    random = np.random.default_rng(1)

    def floats(name, *shape):
        return dsl.constant((random.standard_normal(shape) * 0.3).astype(np.float32), name=name)

    with dsl.building("small") as g:
        x = g.input("x", dsl.f32[2, 3, 8, 8])
        h = dsl.Relu(dsl.Conv(x, floats("first.weight", 4, 3, 3, 3), pads=[1, 1, 1, 1]))
        h = dsl.Conv(h, floats("second.weight", 6, 4, 3, 3), floats("second.bias", 6))
        h = dsl.ReduceMean(dsl.Relu(h), np.array([2, 3]), keepdims=0)
        h = h @ floats("third.weight", 6, 5) + floats("third.bias", 5)
        g.output(y=dsl.Softmax(h) if softmax else h)
    return g.graph


def normalised():
    """A layer whose running statistics are those of inference while it is trained."""
    random = np.random.default_rng(3)

    def floats(name, *shape):
        return dsl.constant(random.random(shape).astype(np.float32), name=name)

    with dsl.building("normalised") as g:
        x = g.input("x", dsl.f32[2, 3, 8, 8])
        h = dsl.Conv(x, floats("conv.weight", 5, 3, 3, 3))
        scale = [floats(f"bn.{n}", 5) for n in ("scale", "bias", "mean", "variance")]
        h = dsl.Relu(dsl.BatchNormalization(h, *scale))
        g.output(y=dsl.ReduceMean(h, np.array([2, 3]), keepdims=0))
    return g.graph


def batches(count, labels):
    random = np.random.default_rng(2)
    for _ in range(count):
        x = random.standard_normal((2, 3, 8, 8)).astype(np.float32)
        y = random.integers(0, 5, 2).astype(np.int32)
        yield x, y if labels else random.standard_normal((2, 5)).astype(np.float32)


def on_host(graph, what, loss, optimizer):
    """The same step as this machine runs it."""
    graph, names = to_train(graph, what)
    moved = replace(OPTIMIZERS[optimizer], rate=RATE)
    return train.Step(
        judged(graph, loss), loss, moved, [exactly(n) for n in names], train_mode=False, threads=1
    )


def compiled(graph, **options):
    target = MicroC(**options)
    program, training = joint_program(graph, target)
    return HostTraining(program, training, target.code(), sanitize=True)


CASES = [
    ("last layer", "cross_entropy", "sgd"), ("last 2 layers", "cross_entropy", "sgd"),
    ("last 2 layers", "mse", "momentum"), ("all", "cross_entropy", "adam"),
    ("*.bias", "cross_entropy", "sgd"), ("first.weight", "huber", "nesterov"),
    ("last 2 layers", "l1", "rmsprop"), ("last 3 layers", "bce", "adagrad"),
    ("second.*", "mse", "adamw"), ("last 2 layers", "mse", "lion"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("what", "loss", "optimizer", "cpu"),
    [(*case, "cortex-m4") for case in CASES] + [(*case, "cortex-m55") for case in CASES[1:4]],
)
def test_steps_are_those_of_the_host(what, loss, optimizer, cpu):
    graph = network(softmax=loss == "cross_entropy")
    device = compiled(graph, train=what, loss=loss, optimizer=optimizer, cpu=cpu)
    host = on_host(graph, what, loss, optimizer)
    before = {name: device.state[name].copy() for name in chosen(graph, what)}
    for x, y in batches(10, loss == "cross_entropy"):
        assert device.step([x], y, RATE) == pytest.approx(host((x, y)).loss, rel=1e-4)
    for name, start in before.items():
        assert np.abs(device.state[name] - host.state_dict()[name]).max() < 1e-5
        assert not np.array_equal(device.state[name], start)
    untouched = set(host.state_dict()) - set(before)
    assert not untouched & set(device.state)


def test_running_statistics_are_those_of_inference():
    graph = normalised()
    device = compiled(graph, train="all", loss="mse")
    host = on_host(graph, "all", "mse", "sgd")
    assert set(device.state) == {"conv.weight", "bn.scale", "bn.bias"}
    for x, y in batches(5, False):
        assert device.step([x], y, RATE) == pytest.approx(host((x, y)).loss, rel=1e-4)
    for name, array in device.state.items():
        assert np.abs(array - host.state_dict()[name]).max() < 1e-5


def test_inference_uses_the_weights_that_are_trained():
    graph = network()
    device = compiled(graph, train="last 2 layers")
    host = on_host(graph, "last 2 layers", "cross_entropy", "sgd")
    x, _ = next(batches(1, True))
    first = device([x])[0]
    for inputs, y in batches(3, True):
        device.step([inputs], y, RATE)
        host((inputs, y))
    trained = network()
    for op in trained.ops:
        if op.name == "Constant" and op.output.name in host.state_dict():
            op.attrs["value"] = host.state_dict()[op.output.name]
    (expected,) = graphc.compile(trained, threads=1)([x])
    assert np.abs(device([x])[0] - expected).max() < 1e-5
    assert np.abs(device([x])[0] - first).max() > 1e-3
    device.init()
    assert np.array_equal(device([x])[0], first)


def test_the_backward_pass_stops_at_the_first_layer_that_is_trained():
    macs = []
    for what in ("last layer", "last 2 layers", "all"):
        program, training = joint_program(network(), MicroC(train=what))
        macs.append(sum(step.macs for step in program.steps[training.steps :]))
    assert macs[0] < macs[1] < macs[2]


def test_state_is_replaced_in_place():
    """The updates of SGD are made where the weights lie, without copies or gradients in RAM."""
    program, _ = joint_program(network(), MicroC(train="last 2 layers"))
    written = [
        slot.index for step in program.calls
        for buffer, slot in zip(program.kernels[step.kernel].params, step.slots)
        if slot.space == "state" and buffer.access != "in"
    ]  # fmt: skip
    assert sorted(written) == list(range(4))


def test_labels_out_of_range_change_nothing():
    device = compiled(network(), train="all", optimizer="adam")
    before = {name: array.copy() for name, array in device.state.items()}
    x, _ = next(batches(1, True))
    with pytest.raises(ModelError, match="index of indices must be in -5..4"):
        device.step([x], np.array([1, 9], np.int32), RATE)
    for name, array in before.items():
        assert np.array_equal(array, device.state[name])


def test_programs_with_state_are_text():
    program, _ = joint_program(network(), MicroC(train="last layer"))
    text = print_program(program)
    assert "state third.weight : f32[6,5]" in text
    again = parse_program(text, program_constants(program))
    assert print_program(again) == text
    assert again.state == program.state


def test_layers_and_names():
    graph = network()
    assert layers(graph) == [
        ["first.weight"], ["second.weight", "second.bias"], ["third.weight", "third.bias"],
    ]  # fmt: skip
    assert chosen(graph, "last 2 layers") == [
        "second.weight", "second.bias", "third.weight", "third.bias",
    ]  # fmt: skip
    assert chosen(graph, "*.bias, first.*") == ["first.weight", "second.bias", "third.bias"]
    for text in ("last 4 layers", "last 0 layers"):
        with pytest.raises(ModelError, match="the model has 3 layers"):
            chosen(graph, text)
    with pytest.raises(ModelError, match=r"no parameter matches 'fourth.\*'"):
        chosen(graph, "fourth.*")


def test_names_of_the_command_line_are_those_of_training():
    assert tuple(train.LOSSES)[: len(training.LOSSES)] == training.LOSSES
    assert tuple(OPTIMIZERS) == training.OPTIMIZERS


def test_the_same_bundle_twice():
    def files():
        program, training = joint_program(network(), MicroC(train="all", optimizer="adam"))
        return bundle(program, BundleOptions(training=training))

    assert files() == files()


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
def test_ten_steps_on_the_board(board):
    graph = network()
    target = MicroC(train="last 2 layers", optimizer="momentum", cpu=BOARDS[board].cpu)
    program, training = joint_program(graph, target)
    host = on_host(graph, "last 2 layers", "cross_entropy", "momentum")
    given = [([x], y) for x, y in batches(10, True)]
    done = train_on_board(program, training, given, RATE, BOARDS[board], target.code())
    expected = [host((*x, y)).loss for x, y in given]
    assert done.losses == pytest.approx(expected, rel=1e-4)
    for name in chosen(graph, "last 2 layers"):
        assert np.abs(done.state[name] - host.state_dict()[name]).max() < 1e-5
    model = model_of(program, target.code(training=training))
    assert 0 < done.stack <= Budget.of(model).stack


# ---------------------------------------------------------------- the command line


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "small.onnx"
    path.write_bytes(export_onnx(network()).SerializeToString())
    return str(path)


def run(*arguments):
    return main(["compile", *arguments, "--target", "c"])


def test_a_bundle_from_the_command_line(model, tmp_path):
    out = tmp_path / "small"
    assert run(model, "--train", "last 2 layers", "--with-test", "-o", str(out)) == 0
    header = (out / "small.h").read_text()
    assert "small_train_step(const small_inputs *inputs, const int32_t *target," in header
    assert "float third_weight[30];" in header
    readme = (out / "README.md").read_text()
    assert "## Training" in readme and "| `third.weight` | `third_weight` | 120 |" in readme
    report = json.loads((out / "report.json").read_text())
    assert report["state_bytes"] == 4 * (6 * 4 * 9 + 6 + 30 + 5)
    assert report["ram_bytes"] == sum(
        report[f"{part}_bytes"] for part in ("arena", "state", "stack", "io")
        if f"{part}_bytes" in report
    ) + report["stack_bytes_bound"]  # fmt: skip


def test_what_is_refused(model, tmp_path, capsys):
    out = str(tmp_path / "small")
    for arguments, message in {
        ("--train", "nothing", "-o", out): "no parameter matches 'nothing'",
        ("--train", "last layer", "--io", "arena", "-o", out): "--io arena",
        ("--train", "all"): "--train: goes with --target c and a folder",
        ("--train", "all", "--ram", "1K", "-o", out): "--ram 1 KiB",
    }.items():
        assert run(model, *arguments) != 0
        assert message in capsys.readouterr().err
    assert not Path(out).exists()


# ---------------------------------------------------------------- quantised models


def quantised():
    """A quantised network: a convolution, another whose result is moved before it is dequantised,
    and a dense layer."""
    random = np.random.default_rng(4)

    def weight(name, *shape):
        codes = random.integers(-127, 128, shape).astype(np.int8)
        made = dsl.DequantizeLinear(codes, np.float32(0.01), np.int8(0))
        made.value.name = name
        return made

    def rounded(x, scale):
        return dsl.QuantizeLinear(x, np.float32(scale), np.int8(-3))

    def real(x, scale):
        return dsl.DequantizeLinear(x, np.float32(scale), np.int8(-3))

    with dsl.building("quantised") as g:
        x = g.input("x", dsl.i8[2, 3, 8, 8])
        h = dsl.Conv(real(x, 0.02), weight("first.weight", 4, 3, 3, 3))
        h = real(rounded(dsl.Relu(h), 0.05), 0.05)
        h = rounded(dsl.Relu(dsl.Conv(h, weight("second.weight", 6, 4, 5, 5))), 0.05)
        h = real(dsl.Flatten(h), 0.05)
        g.output(y=rounded(dsl.Softmax(h @ weight("third.weight", 24, 5)), 1 / 256))
    return g.graph


@pytest.mark.parametrize("what", ["last layer", "last 2 layers"])
def test_a_quantised_model_is_trained_in_floats(what):
    graph = quantised()
    device, host = compiled(graph, train=what), on_host(graph, what, "cross_entropy", "sgd")
    names = chosen(to_train(graph, what)[0], what)
    assert [n.split(".")[0] for n in names] == ["second", "third"][-len(names) :]
    random = np.random.default_rng(5)
    before = device.state["third.weight"].copy()
    for _ in range(10):
        x, y = random.integers(-128, 128, (2, 3, 8, 8)).astype(np.int8), np.array([1, 4], np.int32)
        assert device.step([x], y, RATE) == pytest.approx(host((x, y)).loss, rel=1e-4)
    for name, array in device.state.items():
        assert np.abs(array - host.state_dict()[name]).max() < 1e-5
    assert np.abs(device.state["third.weight"] - before).max() > 1e-3
    (found,) = device([x])
    assert found.dtype == np.int8
    multiplied = {k for k in device.model.program.kernels.values() if "i8" in str(k)}
    assert multiplied, "the first layer stays one of bytes"


def test_without_training_a_float_tail_is_close_to_the_model():
    graph = quantised()
    x = np.random.default_rng(6).integers(-128, 128, (2, 3, 8, 8)).astype(np.int8)
    (found,) = compiled(graph, train="last 2 layers")([x])
    (expected,) = graphc.compile(graph, threads=1)([x])
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 8


def test_constants_without_names_are_none_of_the_state():
    """Else all of them would have the contents of the last."""
    with dsl.building("unnamed") as g:
        x = g.input("x", dsl.f32[1, 2])
        weight = dsl.constant(np.ones((2, 2), np.float32), name="weight")
        g.output(y=(x + np.float32(2)) @ weight * np.float32(3))
    step = train.Step(g.graph, "mse", train.SGD(0.0), threads=1)
    x, y = np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32)
    assert step((x, y)).loss == pytest.approx(18.0**2)
    assert list(step.state_dict()) == ["weight"]
