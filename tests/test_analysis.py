"""Costs of ops and kernels, the roofline, and the use of an arena."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.analysis import report
from graphc.analysis.cost import Cost, op_cost
from graphc.analysis.memory import arena_use, picture
from graphc.analysis.roofline import bound, parse_peaks, seconds
from graphc.analysis.text import duration, nbytes, quantity, table
from graphc.backends.cuda.machines import machine
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.driver import program_for
from graphc.errors import ModelError
from graphc.ir.dtypes import f32, i64
from graphc.ir.expr import Const, Index, Load, exp, reduce, select
from graphc.ir.graph import Graph
from graphc.ir.machine import Peaks
from graphc.ir.operations import kernel_operations, operations
from graphc.ir.text.parser import parse_graph
from graphc.passes.specialise import specialise
from graphc.targets import configured


def typed(body: str, params: str = "%x: f32[4,8]", result: str = "f32[4,8]") -> Graph:
    lines = "\n".join(body.strip().splitlines())
    text = f"graph @g({params}) -> {result} {{\n{lines}\n  return %y\n}}"
    return specialise(parse_graph(text))


@pytest.mark.parametrize(
    ("graph", "flops", "moved"),
    [
        (typed("%y = Add(%x, %x) : f32[4,8]"), 32, 2 * 32 * 4),
        (typed("%y = Transpose(%x) {perm=[1,0]} : f32[8,4]", result="f32[8,4]"), 0, 2 * 32 * 4),
        (
            typed(
                "const %w : f32[8,3] = random(seed=1)\n%y = MatMul(%x, %w) : f32[4,3]",
                result="f32[4,3]",
            ),
            2 * 4 * 8 * 3,
            4 * (32 + 24 + 12),
        ),
        (  # only what is read counts: three rows of the thousand
            typed(
                "%y = Gather(%t, %i) : f32[3,8]",
                "%t: f32[1000,8], %i: i64[3]",
                "f32[3,8]",
            ),
            0,
            2 * 24 * 4 + 24 * 8,
        ),
        (
            typed("%y = ReduceSum(%x) {keepdims=0} : f32[]", result="f32[]"),
            32,
            32 * 4 + 4,
        ),
    ],
    ids=["elementwise", "movement", "contraction", "gather", "reduction"],
)
def test_cost_of_ops(graph, flops, moved):
    op = graph.results[0].producer
    found = op_cost(op)
    assert found.flops == flops
    assert found.nbytes <= moved and found.nbytes >= 0.5 * moved


def test_cost_of_composites_is_that_of_their_bodies():
    graph = typed("%y = Softmax(%x) {axis=-1} : f32[4,8]")
    per_row = 7 + 8 + 8 + 8 + 8  # at least: maximum, subtract, exp, sum, divide
    assert 4 * per_row <= op_cost(graph.results[0].producer).flops <= 2 * 4 * per_row


def test_index_arithmetic_is_free():
    i, k = Index("i", 8), Index("k", 3)
    x = Load("x", (i + k - 1,), f32)
    guarded = select((i + k >= 1) & (i + k < 9), x, Const(0.0, f32))
    assert operations([guarded]) == 0
    assert operations([exp(guarded) * x]) == 2 * 8 * 3
    assert operations([reduce("sum", guarded * x, [k])]) == 8 * 3 * 2
    assert operations([reduce("sum", guarded * x, [k])], frozenset([i])) == 3 * 2
    assert operations([Load("x", (i * 2 + 1,), i64) + 1]) == 0


def test_what_is_the_same_for_all_elements_of_a_row_counts_once():
    i, j, k = Index("i", 4), Index("j", 8), Index("k", 8)
    x, at_k = (Load("x", (i, n), f32) for n in (j, k))
    mean = reduce("sum", at_k, [k]) / 8
    assert operations([x - mean, (x - mean) * mean]) == 4 * 8 + 4 + 4 * 8 + 4 * 8


def test_kernels_cost_what_their_ops_do():
    graph = typed("%a = Relu(%x) : f32[4,8]\n%y = Mul(%a, %x) : f32[4,8]")
    program = program_for(graph, "plain")
    assert sum(kernel_operations(program.kernels[s.kernel]) for s in program.steps) >= 2 * 32


# ---------------------------------------------------------------- roofline


def test_roofline():
    peaks = Peaks(flops=1e9, bandwidth=1e8, cache_bandwidth=1e9, overhead=1e-6)
    assert bound(peaks, Cost(10**9, 10)) == "compute"
    assert bound(peaks, Cost(10, 10**8)) == "memory"
    assert bound(peaks, Cost(10, 10**6)) == "cache"
    assert bound(peaks, Cost(1, 1)) == "overhead"
    assert seconds(peaks, Cost(10**9, 10)) == pytest.approx(1 + 1e-6)


def test_machines_in_text():
    assert parse_peaks("100,20") == Peaks(1e11, 2e10, 8e10)
    assert parse_peaks("100,20,50") == Peaks(1e11, 2e10, 5e10)
    for text in ("", "1", "1,2,3,4", "0,1", "-1,1", "nan,1", "inf,1", "fast,1"):
        with pytest.raises(ModelError):
            parse_peaks(text)


def test_machines_of_gpus():
    """Peaks of data sheets: A100 19.5 and 312 TFLOP/s (f16), H100 989."""
    old, new = machine().peaks(), machine("sm_90a,sm_80").peaks()
    assert old.name == "NVIDIA A100 (sm_80)" and old.flops == pytest.approx(19.5e12, rel=0.01)
    assert old.using(["commit_copies", "mma_f16"]).flops == pytest.approx(312e12, rel=0.01)
    assert old.using(["mma_s8"]).flops == pytest.approx(624e12, rel=0.01)
    assert old.using(["commit_copies"]) == old
    assert new.using(["wgmma_f16_n256"]) == new  # not on the second
    new = machine("sm_90a").peaks()
    assert new.using(["wgmma_f16_n256"]).flops == pytest.approx(989e12, rel=0.01)
    assert new.using(["wgmma_tf32_held_n64"]).flops == pytest.approx(495e12, rel=0.01)
    cost = Cost(10**12, 40 << 20)
    assert bound(old, Cost(1, 40 << 20)) == "cache" and bound(old, Cost(1, 1 << 30)) == "memory"
    assert seconds(old.using(["mma_f16"]), cost) < seconds(old, cost) / 10


def test_this_machine():
    """Multiply-adds from registers are faster than data can be copied for them."""
    one, many = host_machine().peaks(1), host_machine().peaks(10**6)
    assert many.flops > 0.5 * one.flops > 0
    assert one.bandwidth > 1e8 and one.cache_bandwidth > 1e8
    assert one.flops > one.bandwidth / 4


def test_peaks_are_those_of_the_targets_machine():
    """A processor of which only the name is known has none."""
    assert configured("cuda", {"arch": "sm_90a"}).machine.peaks() == machine("sm_90a").peaks()
    assert configured("c", {}).machine.peaks() is None
    assert configured("cpu", {}).machine.peaks().flops > 0


def test_processor_time_that_stands_still(monkeypatch):
    monkeypatch.setattr("graphc.backends.llvm_cpu.roofline.time.thread_time", lambda: 1.0)
    peaks = host_machine().peaks(1)
    assert peaks.flops > 0 and 1e7 < peaks.cache_bandwidth < 1e14


# ---------------------------------------------------------------- memory


def chain(count: int):
    body = "\n".join(
        f"%v{n} = Exp(%{'x' if n == 0 else f'v{n - 1}'}) : f32[4,8]" for n in range(count)
    )
    return program_for(typed(f"{body}\n%y = Neg(%v{count - 1}) : f32[4,8]"), "plain")


def test_arena_of_a_chain():
    program = chain(4)
    use = arena_use(program)
    assert len(use.live) == len(program.steps) == 5
    assert max(use.live) <= program.arena_bytes and min(use.live) >= 128
    assert [t.nbytes for t in use.tensors] == [128] * 4
    assert [(t.first, t.last) for t in use.tensors] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_reports_of_a_chain():
    program = chain(3)
    peaks = Peaks(1e9, 1e8, 1e9)
    assert "4 steps take at least" in report.steps(program, peaks)
    assert "and 2 more" in report.steps(program, peaks, top=2)
    assert "live bytes over 4 steps" in report.memory(program)


def test_programs_without_an_arena():
    program = program_for(typed("%y = Exp(%x) : f32[4,8]"), "plain")
    assert arena_use(program).tensors == () and "arena 0 B" in report.memory(program)


def test_picture():
    assert picture((), 10) == [] and picture((0,), 0) == []
    assert picture((8, 16), 16, height=2) == [" █", "██"]
    assert picture((4, 16), 16, height=2) == [" █", "▄█"]
    wide = picture(tuple(range(1000)), 1000, width=50)
    assert max(map(len, wide)) == 50
    peak = np.zeros(1000, int)
    peak[777] = 16  # a single step is seen even where many share a column
    assert "█" in picture(tuple(map(int, peak)), 16, width=50)[0]


def test_quantities():
    assert [quantity(n) for n in (0, 12, 1234, 5.6e6, 999.9e6)] == [
        "0",
        "12",
        "1.23 k",
        "5.6 M",
        "1 G",
    ]
    assert [nbytes(n) for n in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3 GiB"]
    assert [duration(s) for s in (2.5, 0.0123, 4.56e-6)] == ["2.50 s", "12.3 ms", "4.56 µs"]
    assert table([("a", "b"), ("long", "1")]) == "a     b\nlong  1" and table([]) == ""
