"""Loops and branches of bundles, against ONNX Runtime: the bundle's own test, compiled with every
warning and with sanitisers, in either place of inputs and outputs; hooks, budgets and limits."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import test_program_flow as flow
from bundles import SANITISED, STRICT, checked
from programs import check_program

import graphc
from graphc import driver
from graphc.analysis.memory import arena_use
from graphc.backends.micro_c import BundleOptions, model_of, write_bundle
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.cpus import CPUS
from graphc.backends.micro_c.hooks import results
from graphc.backends.micro_c.host import HostModel

sys.path.insert(0, str(Path(__file__).parents[2] / "frontend"))

from onnx_models import model

ARM = "arm-none-eabi-gcc"
ROWS = [flow.floats(3), flow.floats(700, 3), flow.floats(700)]
TRUE, FALSE = np.array(True), np.array(False)
VOICES = """voices (float[1,512] x, int64 rate, float[2,1,16] state, float[4,1,20] fast,
        float[4,1,40] slow, float[16,4] mix, float[1,32] out) => (y, next) {
    wide = Constant<value_int = 16000>()
    is_wide = Equal(rate, wide)
    axes = Constant<value = int64[1] {1}>()
    row = Unsqueeze(x, axes)
    parts = If(is_wide) <
        then_branch = a () => (float[1,4,16] p) {
            c = Conv<strides = [16], pads = [0, 10]>(row, slow)
            r = Relu(c)
            p = MaxPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(r) },
        else_branch = b () => (float[1,4,16] q) {
            d = Conv<strides = [32], pads = [0, 2]>(row, fast)
            e = Sigmoid(d)
            q = Identity(e) }>
    order = Transpose<perm = [2, 0, 1]>(parts)
    zero = Constant<value = int64[1] {0}>()
    one = Constant<value = int64[1] {1}>()
    two = Constant<value = int64[1] {2}>()
    past = Slice(state, zero, one, zero)
    flat = Squeeze(past, zero)
    mixed = Transpose(mix)
    last, rows = Scan<num_scan_inputs = 1, body = s (float[1,16] u, float[1,4] v)
            => (float[1,16] w, float[1,16] copy) {
        m = MatMul(v, mixed)
        n = Add(m, u)
        w = Tanh(n)
        copy = Identity(w)
    }>(flat, order)
    both = Concat<axis = 1>(last, flat)
    weighted = Mul(both, out)
    y = ReduceSum<keepdims = 0>(weighted)
    other = Slice(state, one, two, zero)
    tall = Unsqueeze(last, zero)
    next = Concat<axis = 0>(tall, other)
}"""
"""A detector of voices: two branches for two sample rates, over windows of different length."""

CASES = {
    "halving": (flow.HALVING, [np.ones(4, np.float32), np.array(1e-3, np.float32)]),
    "endless": (flow.HALVING, [np.ones(4, np.float32), np.array(-1, np.float32)]),
    "counting": (flow.COUNTING, [flow.floats(4)]),
    "asked": (flow.ASKED, [flow.floats(3), TRUE]),
    "not asked": (flow.ASKED, [flow.floats(3), FALSE]),
    "swapping": (flow.SWAPPING, [flow.floats(3) + n for n in range(3)]),
    "rotating": (flow.ROTATING, [flow.floats(3) + n for n in range(3)]),
    "part": (flow.PART, [flow.floats(2, 6)]),
    "nested": (flow.NESTED, [flow.floats(3), flow.floats(3) + 1]),
    "then": (flow.BRANCHES, [flow.floats(3), TRUE]),
    "else": (flow.BRANCHES, [flow.floats(3), FALSE]),
    "branch in loop": (flow.BRANCH_IN_LOOP, [flow.floats(3), flow.floats(3) + 1]),
    "scan": (flow.SCAN % (0, 0, 0, 0), ROWS),
    "scan back": (flow.SCAN % (1, 0, 0, 1), ROWS),
    "counted": (flow.COUNTED, [flow.floats(3), np.array(700), TRUE]),
    "none counted": (flow.COUNTED, [flow.floats(3), np.array(-3), TRUE]),
    "nested counts": (flow.NESTED_COUNTS, [flow.floats(3), np.array(9), np.array(7)]),
}  # fmt: skip


def voices(rate: int) -> tuple[str, list[np.ndarray]]:
    rng = np.random.default_rng(7)
    shapes = [(1, 512), (), (2, 1, 16), (4, 1, 20), (4, 1, 40), (16, 4), (1, 32)]
    feeds = [rng.standard_normal(shape, np.float32) for shape in shapes]
    feeds[1] = np.array(rate)
    return VOICES, feeds


CASES |= {f"voices {rate}": voices(rate) for rate in (8000, 16000)}


def program_of(proto: onnx.ModelProto, **options: object) -> graphc.ir.program.Program:
    return driver.program_for(driver.typed(proto), "c", **options)


@pytest.mark.parametrize("io", ["caller", "arena"])
@pytest.mark.parametrize("case", CASES)
def test_bundles_give_what_onnx_runtime_gives(case, io, tmp_path):
    source, feeds = CASES[case]
    program = program_of(model(source), io=io)
    check_program(program)
    samples = (feeds, flow.by_onnx_runtime(source, *feeds))
    write_bundle(program, tmp_path, BundleOptions("net", samples=samples, tolerance=1e-4))
    sources = ["net.c", "net_weights.c", "net_test.c"]
    checked(["gcc", "-std=c99", "-O1", *STRICT, *SANITISED, *sources, "-lm", "-o", "t"], tmp_path)
    assert "accepted" in checked(["./t"], tmp_path)


@pytest.mark.skipif(shutil.which(ARM) is None, reason="no compiler for Arm")
@pytest.mark.parametrize("case", ["nested", "scan back", "voices 8000"])
def test_bundles_compile_for_processors(case, tmp_path):
    write_bundle(program_of(model(CASES[case][0]), cpu="cortex-m4"), tmp_path, BundleOptions("net"))
    flags = ["-std=c99", "-O2", "-c", *STRICT, *CPUS["cortex-m4"].flags]
    checked([ARM, *flags, "net.c", "net_weights.c"], tmp_path)
    undefined = checked(["arm-none-eabi-nm", "-u", "net.o"], tmp_path)
    assert not {"malloc", "calloc", "realloc", "printf"} & set(undefined.split())


@pytest.mark.parametrize("case", ["nested", "branch in loop", "voices 16000"])
def test_plain_c_has_loops_and_branches(case):
    source, feeds = CASES[case]
    runner = driver.program_for(driver.typed(model(source)), "plain")
    from graphc.targets.plain import Plain

    for got, expected in zip(Plain().load(runner)(feeds), flow.by_onnx_runtime(source, *feeds)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_one_program_serves_both_sample_rates():
    compiled = graphc.compile(model(VOICES), target="c", sanitize=True)
    for rate in (8000, 16000, 8000):
        source, feeds = voices(rate)
        for got, expected in zip(compiled.run(feeds), flow.by_onnx_runtime(source, *feeds)):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    (made,) = compiled.executables()
    assert isinstance(made.run, HostModel), "nothing runs on the host"


def test_too_many_iterations_are_a_status():
    feeds = [flow.floats(3), np.array(11), np.array(9)]
    compiled = graphc.compile(model(flow.NESTED_COUNTS), target="c", max_iterations=100)
    with pytest.raises(graphc.ModelError, match="has not ended after 100 iterations"):
        compiled.run(feeds)
    compiled.run([feeds[0], np.array(10), np.array(9)])


def test_layers_in_loops_are_traced_in_every_trip():
    source, feeds = CASES["branch in loop"]
    program = program_of(model(source))
    traces = HostModel(program, traced=True).trace(feeds)
    told = [trace.layer for trace in traces]
    bundle = model_of(program, BundleOptions("net"))
    runs = [
        told.count(layer) / len(list(results(bundle, step)))
        for layer, step in enumerate(program.calls)
    ]
    assert runs[0] == 1, "what lies before the loop"
    assert runs[1:-2] == [600] * len(runs[1:-2])
    taken, other = runs[-2:]
    assert taken + other == 600 and taken and other, "a branch each"
    of_bools = {trace.layer for trace in traces if trace.layer >= 0 and not trace.is_float}
    assert len(of_bools) == 1, "the comparison"


def test_documents_tell_how_often_layers_run(tmp_path):
    files = write_bundle(program_of(model(flow.MATRIX)), tmp_path, BundleOptions("net"))
    report = json.loads(files["report.json"])
    assert [layer["runs_at_most"] for layer in report["layers"]] == [700] * len(report["layers"])
    assert report["macs"] == 700 * 2 * 16 * 16
    assert "told of in every trip" in files["net.h"]
    counted = write_bundle(program_of(model(flow.COUNTED)), tmp_path, BundleOptions("net"))
    runs = [layer["runs_at_most"] for layer in json.loads(counted["report.json"])["layers"]]
    assert None in runs and 1 in runs


@pytest.mark.parametrize("case", ["nested", "scan", "branch in loop", "voices 8000"])
def test_live_memory_fits_the_arena(case):
    program = program_of(model(CASES[case][0]), io="arena")
    use = arena_use(program)
    assert len(use.live) == len(program.calls)
    assert 0 < max(use.live) <= program.arena_bytes
    assert all(t.first <= t.last < len(program.calls) for t in use.tensors)


def test_what_the_next_trip_reads_is_live_to_the_end_of_the_loop():
    program = program_of(model(flow.ROTATING), io="arena")
    use = arena_use(program)
    assert min(use.live) >= 3 * 12, "three carried values, in each step of the body"


@pytest.mark.parametrize("case", ["nested", "counted", "voices 8000"])
def test_stack_is_within_the_bound(case, tmp_path):
    program = program_of(model(CASES[case][0]))
    write_bundle(program, tmp_path, BundleOptions("net"))
    checked(["gcc", "-std=c99", "-O2", "-c", "-fstack-usage", "net.c"], tmp_path)
    used = {}
    for line in Path(tmp_path, "net.su").read_text().splitlines():
        place, size, _ = line.split("\t")
        used[place.rpartition(":")[2]] = int(size)
    budget = Budget.of(model_of(program, BundleOptions("net")))
    assert used["net_run"] <= budget.run_stack


def test_constants_that_are_copied_stay_float32():
    numbers = ", ".join(f"{x:.3f}" for x in np.linspace(-1, 1, 128))
    source = """g (float[600,128] x) => (y, a) {
        start = Constant<value = float[128] {NUMBERS}>()
        y, a = Scan<num_scan_inputs = 1, body = l (float[128] p, float[128] row)
                => (float[128] t, float[128] u) {
            t0 = Add(p, row)
            t = Tanh(t0)
            u = Neg(t)
        }>(start, x)
    }""".replace("NUMBERS", numbers)
    feeds = [flow.floats(600, 128)]
    program = program_of(model(source), weights="f16")
    assert [c.dtype for c in program.constants] == [np.float32]
    for got, expected in zip(HostModel(program)(feeds), flow.by_onnx_runtime(source, *feeds)):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
