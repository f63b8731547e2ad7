"""graphc profile: every step is counted as often as it runs, and the times are of one run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
from commands import DIGITS, make, ok, refused, save
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc import driver
from graphc.passes.specialise import pin
from graphc.report.measuring import Plan, measure
from graphc.report.profile import profile_of, step_times
from graphc.report.profile_text import chrome_trace, events_text, run_text, table_of
from graphc.runtime.feeds import random_feeds
from graphc.runtime.readings import Recorder

TRIPS = 300  # of loops, too many to be unrolled
RUNS = ["--runs", "3", "--threads", "1", "--machine", "100,20"]

DIGITS_8 = pin(graphc.import_onnx(DIGITS), dims={"N": 8})


def loop_model(trips: int):
    """A loop of so many trips, each of which multiplies by a matrix and squashes."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["m"], "matmul_in_loop"),
            helper.make_node("Tanh", ["m"], ["h_out"], "tanh_in_loop"),
            helper.make_node("Identity", ["go"], ["go_out"], "go_on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, (4, 4)),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("h_out", TensorProto.FLOAT, (4, 4)),
        ],
    )
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.array(trips), "trips"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    node = helper.make_node("Loop", ["trips", "yes", "x"], ["y"], "loop", body=body)
    return make([node], [("x", TensorProto.FLOAT, (4, 4))], constants=constants)


def measured(source, plan=None, threads=1):
    plan = plan or Plan(rounds=3)
    recorder = Recorder()
    model = driver.compile(source, threads=threads, recorder=recorder)
    feeds = random_feeds(model.graph)
    return measure(lambda: model.run(feeds), recorder, plan), model, feeds


def test_steps_of_a_loop_are_counted_as_often_as_they_run():
    found, model, feeds = measured(loop_model(TRIPS))
    steps = step_times(found, None)
    inside = [s for s in steps if any("in_loop" in name for name in s.layers)]
    assert inside and all(step.calls == TRIPS for step in inside)
    assert [step.calls for step in steps if step.kind == "loop"] == [1]
    plain = graphc.compile(loop_model(TRIPS)).run(feeds)
    np.testing.assert_array_equal(model.run(feeds)[0], plain[0])


def test_a_branch_that_is_not_taken_takes_no_time():
    def side(name, operator):
        y = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, (2, 3))
        return helper.make_graph(
            [helper.make_node(operator, ["x"], [f"{name}_y"], name)], name, [], [y]
        )

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["is_positive"], "compare"),
        helper.make_node("If", ["is_positive"], ["y"], "if",
                         then_branch=side("taken", "Exp"), else_branch=side("other", "Tanh")),
    ]  # fmt: skip
    model = make(nodes, constants=[numpy_helper.from_array(np.float32(-1e9), "zero")])
    found, _, _ = measured(model)
    names = {name for step in step_times(found, None) for name in step.layers}
    assert "taken" in names and "other" not in names


def test_steps_take_what_the_call_takes():
    """Readings follow one another, so that the sum of all steps is the time of the call."""
    found, _, _ = measured(DIGITS_8)
    for taken, seconds in zip(found.readings, found.timed):
        counts = sum(int(reading.counts.sum()) for reading in taken)
        assert 0 < counts / found.counter.rate < seconds
    profile = profile_of(found, None)
    assert 0 < profile.inside < 1 and profile.readings == len(profile.steps)
    assert all(step.seconds >= 0 and step.calls == 1 for step in profile.steps)
    assert 0 < profile.reading < 1e-5


def test_every_layer_that_is_computed_has_a_step():
    found, _, _ = measured(DIGITS_8)
    names = {name for step in step_times(found, None) for name in step.layers}
    assert {"/conv1/Conv", "/conv2/Conv"} <= names


def test_streams_are_measured_side_by_side():
    found, _, _ = measured(DIGITS_8, Plan(rounds=4, streams=3, room=100))
    assert [len(runs.plain) for runs in found.streams] == [4, 4, 4]
    assert len(found.readings) == 12
    assert len({reading.thread for reading in found.traced}) == 3
    assert threading.get_ident() not in {reading.thread for reading in found.traced}


def test_an_error_of_a_run_in_a_stream_is_told():
    model = make(
        [helper.make_node("Gather", ["table", "x"], ["y"], "gather")],
        [("x", TensorProto.INT64, (2,))],
        constants=[numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")],
    )
    recorder = Recorder()
    compiled = driver.compile(model, threads=1, recorder=recorder)
    calls = []

    def run():
        calls.append(0)
        compiled.run({"x": np.array([0, 9 if len(calls) > 6 else 1])})

    with pytest.raises(graphc.ModelError, match="gather"):
        measure(run, recorder, Plan(rounds=5, streams=2))


def test_a_trace_has_a_slice_for_each_step_that_runs():
    found, _, _ = measured(loop_model(TRIPS), Plan(rounds=2, room=10 * TRIPS))
    trace = chrome_trace(found.traced, found.counter, {"model": "loop"})
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] != "run"]
    runs = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "run"]
    expected = sum(int(reading.runs.sum()) for reading in found.traced)
    assert len(slices) == expected and len(runs) == len(found.traced)
    for before, after in zip(slices, slices[1:]):
        assert after["ts"] >= before["ts"] + before["dur"] - 1e-3
    for run in runs:
        inner = [e for e in slices if run["ts"] <= e["ts"] < run["ts"] + run["dur"]]
        assert sum(e["dur"] for e in inner) == pytest.approx(run["dur"], rel=1e-6)


def test_a_log_that_is_full_keeps_its_sums():
    found, _, _ = measured(loop_model(TRIPS), Plan(rounds=1, room=4))
    for reading in found.traced:
        assert len(reading.log) == 4 and max(reading.runs) == TRIPS


def test_threads_share_a_recorder():
    found, _, _ = measured(DIGITS_8, threads=2)
    assert all(step.calls == 1 for step in step_times(found, None))


def test_programs_that_are_not_timed_have_no_counter():
    from graphc.backends.llvm_cpu.codegen import llvm_text
    from graphc.driver import program_for, typed

    program = program_for(typed(loop_model(3)))
    plain, timed = llvm_text(program), llvm_text(program, timed=True)
    assert "graphc_note" not in plain and "graphc_invoke_timed" in timed
    assert llvm_text(program, timed=True) == timed


def test_a_target_without_counters_says_so():
    with pytest.raises(graphc.UnsupportedError, match="target 'plain' does not time"):
        driver.compile(DIGITS_8, "plain", recorder=Recorder())


def test_text_of_a_profile():
    found, _, _ = measured(DIGITS_8)
    profile = profile_of(found, None)
    shown = table_of(profile.steps, 2)
    assert len(shown.splitlines()) == 4 and "more," in shown
    assert "runs/s" in run_text(profile)[0]
    assert events_text("why") == "no hardware counters: why"
    counts = {"cycles": 100.0, "instructions": 250.0, "cache_misses": 1.0}
    assert "2.50 instructions a cycle" in events_text(counts)


# ---------------------------------------------------------------- the command


def test_the_table(capsys):
    shown = ok(capsys, "profile", DIGITS, "--dim", "N=8", *RUNS)
    assert "/conv1/Conv" in shown and "bound by:" in shown
    assert "3 runs: p50" in shown and "readings of" in shown


def test_json(capsys):
    data = json.loads(ok(capsys, "profile", DIGITS, "--dim", "N=8", *RUNS, "--json"))
    assert data["rounds"] == 3 and data["inputs"] == {"image": [8, 1, 8, 8]}
    assert set(data["latency_ms"]) == {"p50", "p90", "p99", "best", "mean"}
    assert sum(row["share"] for row in data["layers"]) == pytest.approx(1, abs=1e-4)
    assert sum(row["ms"] for row in data["layers"]) == pytest.approx(data["steps_ms"], rel=1e-4)
    kernels = [row for row in data["layers"] if row["kind"] == "kernel"]
    assert all(row["least_ms"] > 0 and row["bound"] for row in kernels)


def test_the_trace_is_a_file(capsys, tmp_path):
    path = tmp_path / "t.json"
    ok(capsys, "profile", DIGITS, "--dim", "N=2", *RUNS, "--trace", path)
    trace = json.loads(path.read_text())
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "M"} == {
        "process_name", "thread_name",
    }  # fmt: skip


def test_open_dimensions_are_asked_for(capsys):
    message = refused(capsys, "profile", DIGITS, *RUNS)
    assert "dimension N is open" in message and "--dim N=" in message
    message = refused(capsys, "profile", DIGITS, "--dim", "N=1..4", *RUNS)
    assert "dimension N is open" in message


def test_a_target_that_is_not_timed_is_refused(capsys):
    assert "does not time its steps" in refused(
        capsys, "profile", DIGITS, "--dim", "N=1", "--target", "plain", *RUNS
    )


def test_a_model_that_needs_the_host_is_profiled(capsys, tmp_path):
    """What the host runs between two programs is outside the steps."""
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "relu1"),
        helper.make_node("SequenceConstruct", ["h", "h"], ["s"], "sequence"),
        helper.make_node("SequenceLength", ["s"], ["n"], "length"),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], "concat", axis=0),
        helper.make_node("Exp", ["c"], ["y"], "exp1"),
    ]
    path = save(tmp_path / "m.onnx", make(nodes))
    data = json.loads(ok(capsys, "profile", path, *RUNS, "--json"))
    assert data["layers"] and data["inside"] < 1


# ---------------------------------------------------------------- logs of devices


@pytest.fixture
def bundle(tmp_path, capsys):
    """What a bundle of the digits model prints that is built with its profile hook."""
    folder = tmp_path / "sources"
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "--target", "c", "--with-test", "-o", folder)
    files = ["digits_cnn.c", "digits_cnn_weights.c", "digits_cnn_test.c"]
    flags = ["-std=c99", "-O1", "-Wall", "-Werror", "-DDIGITS_CNN_PROFILE"]
    subprocess.run(["gcc", *flags, *files, "-lm", "-o", "t"], cwd=folder, check=True)
    printed = subprocess.run(["./t"], cwd=folder, capture_output=True, text=True, check=True)
    return printed.stdout


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_log_of_a_bundle_is_shown(capsys, tmp_path, bundle):
    log = tmp_path / "log.txt"
    log.write_text(re.sub(r"profile (\d+) \d+", r"[uart] profile \1 500", bundle) * 3)
    argv = ["profile", DIGITS, "--dim", "N=1", "--target", "c", "--log", log, "--mhz", "100"]
    data = json.loads(ok(capsys, *argv, "--json"))
    assert len(data["layers"]) == bundle.count("profile ")
    assert all(row["ms"] == 0.005 and row["calls"] == 1 for row in data["layers"])
    assert "/conv1/Conv" in ok(capsys, *argv) and "bound by:" in ok(
        capsys, *argv, "--machine", "1,1"
    )
    other = log.read_text().replace("/conv1/Conv", "conv9")
    log.write_text(other)
    assert "is it the log of this model" in refused(capsys, *argv)
    log.write_text("nothing")
    assert "no line has the form" in refused(capsys, *argv)


def test_a_microcontroller_is_timed_by_counting(capsys):
    """By the emulator, or without one by the kernels."""
    argv = ["profile", DIGITS, "--dim", "N=1", "--target", "c", "--chip", "stm32l4r5"]
    data = json.loads(ok(capsys, *argv, "--json"))
    assert "within" in data["times"] and len(data["layers"]) == 6
    slow, fast = (
        sum(x["ms"] for x in json.loads(ok(capsys, *argv, "--mhz", f, "--json"))["layers"])
        for f in ("60", "120")
    )
    assert slow == pytest.approx(2 * fast, rel=1e-3) and 0.1 < fast < 100
    assert f"times: {data['times']}" in ok(capsys, *argv)


def test_a_microcontroller_needs_options(capsys):
    argv = ["profile", DIGITS, "--dim", "N=1", "--target", "c"]
    told = refused(capsys, *argv)
    assert "--log LOG.txt --mhz F" in told and "--chip CHIP" in told
    assert "--mhz F" in refused(capsys, *argv, "--log", "x")
    assert "missing.txt" in refused(capsys, *argv, "--log", "missing.txt", "--mhz", "1")
    assert "above 0" in refused(capsys, *argv, "--log", "x", "--mhz", "0")
