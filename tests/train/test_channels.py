"""Training some output channels of layers: against training all of them, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphc import dsl, train
from graphc.backends.micro_c import model_of
from graphc.backends.micro_c.host_training import HostTraining
from graphc.backends.micro_c.training import structure
from graphc.cli.app import main
from graphc.errors import ModelError
from graphc.frontend.onnx_export import export_onnx
from graphc.targets.micro_c import MicroC
from graphc.train.bundle import joint_program
from graphc.train.channels import Rule, parsed, text_of, with_channels
from graphc.train.layers import chosen, exactly, layers
from graphc.train.optimizers import OPTIMIZERS
from graphc.train.states import judged

RATE = 0.05


def network():
    """A layer of each kind: convolutions of one and of several groups, Gemm both ways, MatMul."""
    random = np.random.default_rng(1)

    def floats(name, *shape):
        return dsl.constant((random.standard_normal(shape) * 0.4).astype(np.float32), name=name)

    with dsl.building("layers") as g:
        x = g.input("x", dsl.f32[2, 3, 8, 8])
        h = dsl.Relu(dsl.Conv(x, floats("one.weight", 8, 3, 3, 3), floats("one.bias", 8)))
        h = dsl.Relu(
            dsl.Conv(h, floats("each.weight", 8, 1, 3, 3), floats("each.bias", 8), group=8)
        )
        h = dsl.Relu(dsl.Conv(h, floats("pairs.weight", 6, 4, 1, 1), group=2))
        h = dsl.ReduceMean(h, np.array([2, 3]), keepdims=0)
        h = dsl.Tanh(dsl.Gemm(h, floats("turned.weight", 7, 6), floats("turned.bias", 7),
                              transB=1, alpha=0.5, beta=2.0))  # fmt: skip
        h = dsl.Tanh(dsl.Gemm(h, floats("plain.weight", 7, 9), floats("plain.bias", 9)))
        h = h @ floats("last.weight", 9, 5) + floats("last.bias", 5)
        g.output(y=dsl.Softmax(h))
    return g.graph


AXES = {"one.weight": 0, "each.weight": 0, "pairs.weight": 0, "turned.weight": 0,
        "plain.weight": 1, "last.weight": 1}  # fmt: skip
TEXTS = ["3", "40%", "one.weight=[0,2-4,7] each.*=2 *=all", "last.weight=[4] 1"]


def batches(count):
    random = np.random.default_rng(2)
    for _ in range(count):
        x = random.standard_normal((2, 3, 8, 8)).astype(np.float32)
        yield x, random.integers(0, 5, 2).astype(np.int32)


@pytest.mark.parametrize("text", TEXTS)
def test_chosen_channels_move_as_if_all_were_trained_and_others_put_back(text):
    whole = judged(network(), "cross_entropy")
    names = [name for group in layers(whole) for name in group]
    split, channels = with_channels(whole, names, text)
    assert set(channels) <= set(AXES) and channels
    usual = train.Step(whole, optimizer=train.SGD(RATE), threads=1)
    sparse = train.Step(
        split, optimizer=train.SGD(RATE), parameters=[exactly(n) for n in names], threads=1
    )
    start = usual.state_dict()
    for batch in batches(10):
        assert sparse(batch).loss == pytest.approx(usual(batch).loss, rel=1e-5)
        moved = usual.state_dict()
        for name, own in channels.items():
            at = (slice(None),) * AXES[name] + (own,)
            moved[name][at], moved[name][:] = moved[name][at].copy(), start[name]
            moved[name][at] = usual.state_dict()[name][at]
        usual.load_state_dict(moved)
    for name in names:
        after = usual.state_dict()[name]
        after = after.take(channels[name], AXES[name]) if name in channels else after
        assert np.abs(sparse.state_dict()[name] - after).max() < 1e-5
        assert name not in channels or not np.array_equal(
            after, start[name].take(channels[name], AXES[name])
        )


@pytest.mark.parametrize(
    ("what", "text", "optimizer", "cpu"),
    [("all", "40%", "sgd", "cortex-m4"), ("last 2 layers", "2", "momentum", "cortex-m4"),
     ("all", TEXTS[2], "adam", "cortex-m55"), ("one.*,each.*", "[1,5-6]", "sgd", "cortex-m55")],
)  # fmt: skip
def test_bundles_train_them(what, text, optimizer, cpu):
    graph = network()
    target = MicroC(train=what, channels=text, optimizer=optimizer, cpu=cpu)
    program, training = joint_program(graph, target)
    device = HostTraining(program, training, target.code(), sanitize=True)
    names = chosen(graph, what)
    split, channels = with_channels(judged(graph, "cross_entropy"), names, text)
    host = train.Step(
        split, optimizer=replace(OPTIMIZERS[optimizer], rate=RATE), train_mode=False, threads=1,
        parameters=[exactly(n) for n in names],
    )  # fmt: skip
    for x, y in batches(10):
        assert device.step([x], y, RATE) == pytest.approx(host((x, y)).loss, rel=1e-4)
    for name in names:
        assert np.abs(device.state[name] - host.state_dict()[name]).max() < 1e-5
    header = structure(model_of(program, target.code(training=training)))
    for own in channels.values():
        assert f"bytes, channels {text_of(own)}" in header


def test_a_part_takes_its_part_of_memory():
    whole, part = (
        joint_program(network(), MicroC(train="all", channels=text, optimizer="momentum"))[0]
        for text in ("all", "1")
    )
    sizes = [sum(t.nbytes for _, t in p.state) for p in (whole, part)]
    parts = sum(v.size // (v.shape[AXES[n]]) for n, v in initial(whole) if n in AXES)
    biases = sum(v.size for n, v in initial(whole) if n not in AXES)
    assert sizes[1] == 2 * 4 * (parts + biases) < sizes[0] / 2


def initial(program):
    return [(n, np.zeros(t.static_shape)) for n, t in program.state if " of " not in n]


def test_rules():
    norms = np.array([3.0, 1.0, 3.0, 2.0])
    assert Rule("*", "2").of("w", norms) == [0, 2]
    assert Rule("*", "1").of("w", norms) == [0]
    assert Rule("*", "51%").of("w", norms) == [0, 2, 3]
    assert Rule("*", "4").of("w", norms) is Rule("*", "100%").of("w", norms) is None
    assert Rule("*", "[3,0-1]").of("w", norms) == [0, 1, 3]
    assert parsed("a*=2 all") == [Rule("a*", "2"), Rule("*", "all")]
    assert text_of([0, 1, 2, 5, 7, 8]) == "[0-2,5,7-8]"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "found nothing"), ("some", "channels must be 8, 25%, .* found 'some'"),
     ("0", "0 channels: one.weight has 8"), ("0%", "0% channels"), ("99", "has 8, of which"),
     ("101%", "101% channels"), ("[8]", "one.weight has channels 0 to 7"), ("[]", "name one"),
     ("[3-1]", "name one or more"), ("[1--2]", "must be as \\[0-3,7\\]"),
     ("[0-99999999999]", "must be as"), ("none.*=3", "no weight that is trained matches 'none.*'"),
     ("=3", "found '=3'")],
)  # fmt: skip
def test_rules_that_cannot_be(text, message):
    graph = network()
    with pytest.raises(ModelError, match=message):
        with_channels(graph, chosen(graph, "all"), text)


def test_weights_of_other_layers_are_trained_whole_or_refused():
    with dsl.building("shared") as g:
        x = g.input("x", dsl.f32[2, 4])
        w = dsl.constant(np.eye(4, dtype=np.float32), name="w")
        g.output(y=(x @ w) @ w)
    with pytest.raises(ModelError, match="w is not the weight of one Conv, Gemm or MatMul"):
        with_channels(g.graph, ["w"], "2")
    same, channels = with_channels(g.graph, ["w"], "w=all 2")
    assert not channels and len(same.ops) == len(g.graph.ops)


def test_the_command(tmp_path, capsys):
    path = tmp_path / "layers.onnx"
    path.write_bytes(export_onnx(network()).SerializeToString())
    command = ["compile", str(path), "--target", "c", "--train", "last 2 layers"]
    assert main([*command, "--channels", "25%", "-o", str(tmp_path / "out")]) == 0
    (header,) = (tmp_path / "out").rglob("layers.h")
    assert "channels [" in header.read_text()
    capsys.readouterr()
    assert main([*command, "--channels", "many", "-o", str(tmp_path / "bad")]) != 0
    assert "channels must be" in capsys.readouterr().err
    step = ["compile", str(path), "--train", "all", "--channels", "2", "-o"]
    for suffix in ("gcm", "onnx"):
        assert main([*step, str(tmp_path / f"step.{suffix}")]) == 0
        state = np.load(tmp_path / "step.npz")
        assert state["one.weight"].shape == (2, 3, 3, 3)
