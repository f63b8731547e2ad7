"""graphc train: what it learns, records, refuses, and how it is taken up again."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import DIGITS, ROOT, ok, refused, save

import graphc
from graphc import dsl, train
from graphc.train import schedules
from graphc.train.data import Data

pytestmark = pytest.mark.usefixtures("elsewhere")


def samples(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Points of a plane, labelled by their quadrant."""
    x = np.random.default_rng(seed).standard_normal((count, 2)).astype(np.float32)
    return {"x": x, "label": (x[:, 0] > 0) * 2 + (x[:, 1] > 0)}


@pytest.fixture
def model() -> str:
    rng = np.random.default_rng(1)
    with dsl.building("quadrants") as g:
        x = g.input("x", dsl.f32["N", 2])
        w1, b1, w2 = (
            dsl.constant(rng.standard_normal(s).astype(np.float32) * 0.3, name=n)
            for n, s in (("fc1.w", (2, 16)), ("fc1.b", (16,)), ("fc2.w", (16, 4)))
        )
        g.output(y=dsl.Dropout(dsl.Relu(x @ w1 + b1), np.float32(0.1)) @ w2)
    graphc.export_onnx(g.graph, "model.onnx")
    np.savez("train.npz", **samples(300))
    np.savez("test.npz", **samples(100, 1))
    return "model.onnx"


BASE = ["--data", "train.npz", "--threads", 1]
FIT = [*BASE, "--epochs", 4, "--rate", 0.02, "-o", "trained.onnx"]


def test_it_learns(capsys, model):
    out = ok(capsys, "train", model, *FIT, "--validation", "test.npz", "--csv", "run.csv")
    lines = out.splitlines()
    assert len(lines) == 5 and lines[-2].startswith("epoch 4 of 4: loss ")
    assert float(lines[-2].split("; validation: ")[1].split("accuracy ")[1].split()[0]) > 0.8
    test = samples(100, 1)
    scores = graphc.compile("trained.onnx").run([test["x"]])[0]
    assert (scores.argmax(1) == test["label"]).mean() > 0.8
    rows = [line.split(",") for line in Path("run.csv").read_text().splitlines()]
    assert rows[0] == [
        "step", "epoch", "rate", "loss", "accuracy", "gradient_norm", "validation_loss",
        "validation_accuracy",
    ]  # fmt: skip
    assert [int(row[0]) for row in rows[1:]] == list(range(1, 41))
    assert [row[0] for row in rows[1:] if row[-1]] == ["10", "20", "30", "40"]
    assert len(onnx.load("trained.onnx").graph.initializer) >= 3


def test_it_does_what_steps_do(capsys, model):
    """The same as steps over the same batches, in Python."""
    more = ["--no-shuffle", "--batch", 100, "--optimizer", "sgd", "--schedule", "linear"]
    ok(capsys, "train", model, *BASE, *more, "--rate", 0.1, "--eval-mode", "--freeze", "*.b",
       "-o", "weights.npz")  # fmt: skip
    step = train.Step(
        model, optimizer=train.SGD(schedules.linear(0.1, 3)), frozen=["*.b"], train_mode=False,
        threads=1,
    )  # fmt: skip
    data = samples(300)
    for n in range(3):
        step((data["x"][n * 100 : n * 100 + 100], data["label"][n * 100 : n * 100 + 100]))
    found = train.read_state_dict("weights.npz")
    for name, array in step.state_dict().items():
        np.testing.assert_array_equal(found[name], array)
    assert not np.array_equal(found["fc1.w"], train.Step(model).state_dict()["fc1.w"])


def test_a_folder_of_samples_gives_the_same_as_one_file(capsys, model):
    Path("parts").mkdir()
    data = samples(300)
    for n, (low, high) in enumerate([(0, 90), (90, 91), (91, 300)]):
        np.savez(f"parts/{n}.npz", **{name: array[low:high] for name, array in data.items()})
    for source, out in (("train.npz", "one.npz"), ("parts", "three.npz")):
        ok(capsys, "train", model, "--data", source, "--no-shuffle", "--threads", 1, "-o", out)
    assert Path("one.npz").read_bytes() == Path("three.npz").read_bytes()
    inputs = graphc.train.Step(model).graph.params
    opened = Data.open("parts", inputs)
    seen = [row for batch in opened.batches(32, seed=3, epoch=1) for row in batch[0]]
    assert len(seen) == 300
    assert {row.tobytes() for row in seen} == {row.tobytes() for row in data["x"]}
    later = next(iter(opened.batches(32, seed=3, epoch=1, start=5)))
    np.testing.assert_array_equal(later[0], np.array(seen[160:192]))
    other = next(iter(opened.batches(32, seed=3, epoch=2)))
    assert not np.array_equal(other[0], np.array(seen[:32]))
    assert opened.steps(32) == 10 and opened.steps(32, drop_last=True) == 9


def test_events_are_what_tensorboard_reads(capsys, model):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  (the format's name)

    ok(capsys, "train", model, *FIT, "--tensorboard", "events", "--validation", "test.npz")
    (file,) = Path("events").iterdir()
    content, found = file.read_bytes(), {}
    while content:  # length, its checksum, the event, its checksum
        size = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(event.step)
    assert found["loss"] == list(range(1, 41))
    assert found["validation/accuracy"] == [10, 20, 30, 40]
    assert {"rate", "accuracy", "gradient_norm", "validation/loss"} <= set(found)


KILLED = """
import os, signal, sys
from graphc.cli import main
from graphc.train import Step

left, run = int(sys.argv.pop(1)), Step.__call__

def counted(*arguments, **options):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(*arguments, **options)

Step.__call__ = counted
sys.exit(main(sys.argv[1:]))
"""


def killed_after(steps: int, arguments: list[str]) -> subprocess.CompletedProcess:
    """Runs `graphc train`, killed after so many steps: not after a time, in which a fast
    machine would have ended."""
    return subprocess.run([sys.executable, "-c", KILLED, str(steps), "train", *map(str, arguments)],
                          cwd=Path.cwd(), capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": "."})  # fmt: skip


def test_a_killed_run_ends_with_the_same_bits(model, capsys):
    settings = ["--epochs", 6, "--batch", 8, "--checkpoint-every", 7, "--schedule", "cosine"]
    run = [model, *BASE, *settings, "--resume"]
    ok(capsys, "train", *run, "--checkpoint", "a.npz", "--csv", "a.csv", "-o", "a.npz.safetensors")
    interrupted = [*run, "--checkpoint", "b.npz", "--csv", "b.csv", "-o", "b.npz.safetensors"]
    draw = random.Random(0)
    for steps in (draw.randrange(1, 7), draw.randrange(7, 60)):  # a checkpoint is kept at 7
        killed = killed_after(steps, interrupted)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = killed_after(6 * 38, interrupted)
    assert ended.returncode == 0, ended.stderr
    for name in ("a.npz", "a.csv", "a.npz.safetensors"):
        assert Path(name).read_bytes() == Path("b" + name[1:]).read_bytes(), name


def test_what_a_killed_run_was_writing_is_removed(model, capsys):
    for name in (".run.npz.abcd1234.npz", ".run.npz.other.npz", ".other.npz.abcd1234.npz"):
        Path(name).write_bytes(b"half of a checkpoint")
    ok(capsys, "train", model, *FIT, "--checkpoint", "run.npz", "--resume")
    left = sorted(str(path) for path in Path().glob(".*.npz"))
    assert left == [".other.npz.abcd1234.npz", ".run.npz.other.npz"]


def test_bounds_of_the_batch(model, capsys):
    ok(capsys, "train", model, *FIT[:-2], "-o", "exact.npz")
    ok(capsys, "train", model, *FIT[:-2], "--dim", "N=1..32", "-o", "open.npz")
    exact, found = train.read_state_dict("exact.npz"), train.read_state_dict("open.npz")
    for name, array in exact.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-3)
    told = refused(capsys, "train", model, *FIT, "--dim", "M=1..32")
    assert "no dimension 'M'" in told
    told = refused(capsys, "train", model, *FIT, "--dim", "N=1..16")
    assert "dimension N = 32 is not in 1..16" in told


def test_half_precision(capsys, model):
    narrow = ["--precision", "f16", "--checkpoint", "run.npz", "--resume"]
    ok(capsys, "train", model, *FIT, *narrow)
    kept = train.read_state_dict("run.npz")
    assert kept["scale of the loss"] == 65536
    assert kept["updates with this scale"] + kept["steps without an update"] == 40
    told = refused(capsys, "train", model, *FIT, *narrow[2:])
    assert "the checkpoint of a run with --precision f16, this one has f32" in told


def test_a_finished_run_has_nothing_left_to_do(capsys, model):
    more = ["--checkpoint", "run.npz", "--resume"]
    ok(capsys, "train", model, *FIT, *more)
    shutil.move("trained.onnx", "first.onnx")
    out = ok(capsys, "train", model, *FIT, *more)
    assert out.startswith("goes on after step 40, from run.npz\nwrote trained.onnx (")
    assert Path("first.onnx").read_bytes() == Path("trained.onnx").read_bytes()


def test_mistakes_are_told(capsys, model):
    def wrong(*arguments, data="train.npz", source=model, out="trained.onnx"):
        return refused(capsys, "train", source, "--data", data, "-o", out, *arguments)

    assert "ending in .onnx, .npz or .safetensors" in wrong(out="trained.pt")
    assert "no.npz: there is no such file" in wrong(data="no.npz")
    assert "expected a .npz file or a folder" in wrong(data="train.csv")
    assert "--resume: goes with --checkpoint" in wrong("--resume")
    assert "no parameter matches 'conv*'" in wrong("--train", "conv*")
    assert "no metric 'f1'" in wrong("--metric", "f1")
    assert "--decay: goes with" in wrong("--decay", "0.5")
    assert "--warmup 10: must be less than the 10 steps" in wrong("--warmup", 10)
    assert "batch of 400 is more than all 300" in wrong("--batch", 400, "--drop-last")
    assert "no array 'labels'; found are ['x', 'label']" in wrong("--target-name", "labels")
    np.savez("two.npz", **samples(10), other=np.zeros(10))
    assert "a target is needed; found several arrays that may be the target" in wrong(
        data="two.npz"
    )
    np.savez("names.npz", input=np.zeros((3, 2), np.float32), label=np.zeros(3, np.int64))
    assert "no array 'x'; the inputs of the model are ['x'], found" in wrong(data="names.npz")
    np.savez("lengths.npz", x=np.zeros((3, 2), np.float32), label=np.zeros(4, np.int64))
    assert "must count the same samples, found shapes" in wrong(data="lengths.npz")
    np.savez("shape.npz", x=np.zeros((3, 5), np.float32), label=np.zeros(3, np.int64))
    assert "'x' must be f32[N,2], found shape (3, 5)" in wrong(data="shape.npz")
    np.savez("type.npz", x=np.zeros((3, 2), np.int64), label=np.zeros(3, np.int64))
    assert "'x' must be of type float32, found int64" in wrong(data="type.npz")
    np.savez("high.npz", x=np.zeros((3, 2), np.float32), label=np.full(3, 9))
    assert "9" in wrong(data="high.npz")
    Path("damaged.npz").write_bytes(b"PK\3\4 nothing")
    assert "damaged.npz: is no .npz file" in wrong(data="damaged.npz")
    assert "the loss of step" in wrong("--rate", 1e30, "--optimizer", "sgd")


def test_a_checkpoint_of_another_run_is_refused(capsys, model):
    more = ["--checkpoint", "run.npz", "--resume"]
    ok(capsys, "train", model, *FIT, *more)
    for option, value, told in (
        ("--batch", 16, "a run with batch 32, this one has 16"),
        ("--optimizer", "sgd", "a run with --optimizer adamw, this one has sgd"),
        ("--seed", 5, "a run with seed 0, this one has 5"),
    ):
        assert told in refused(capsys, "train", model, *FIT, *more, option, value)
    np.savez("weights.npz", a=np.zeros(3))
    message = refused(capsys, "train", model, *FIT, "--checkpoint", "weights.npz", "--resume")
    assert "is no checkpoint of graphc train" in message


def test_a_fixed_batch_is_named(capsys, model):
    fixed = onnx.load(DIGITS)
    dim = fixed.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    dim.dim_value = 1
    save(Path("fixed.onnx"), fixed)
    np.savez("digits.npz", image=np.zeros((3, 1, 8, 8), np.float32), label=np.zeros(3, np.int64))
    message = refused(capsys, "train", "fixed.onnx", "--data", "digits.npz", "-o", "t.onnx")
    assert "takes batches of 1 alone, found --batch 32" in message


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.constant(2.0), [2, 2, 2]),
        (schedules.cosine(2.0, 4), [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]),
        (schedules.linear(2.0, 4, least=1.0), [2, 1.75, 1.5, 1.25, 1, 1]),
        (schedules.stepwise(2.0, 2), [2, 2, 0.2, 0.2, 0.02]),
        (schedules.exponential(2.0, 0.5), [2, 1, 0.5]),
        (schedules.warmed_up(schedules.linear(2.0, 2), 3), [0.5, 1, 1.5, 2, 1, 0]),
    ],
)
def test_schedules(schedule, expected):
    assert [schedule(n) for n in range(len(expected))] == pytest.approx(expected, abs=1e-12)
