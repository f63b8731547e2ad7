"""The program for all shapes, exact programs behind it, and what decides between them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from open_shapes import ONE_SHAPE

import graphc
from graphc.cli import main, options
from graphc.deadline import check_time, within_seconds
from graphc.driver import Settings
from graphc.errors import ModelError, UnsupportedError
from graphc.runtime import recurring, tiers
from graphc.runtime.recurring import Background, Recurring

DIGITS = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"

MLP = """graph @mlp(%x: f32[N,8]) -> ? where N: {bounds} {{
  const %a : f32[8,16] = random(seed=1)
  const %b : f32[16,4] = random(seed=2)
  %h = MatMul(%x, %a)
  %r = Relu(%h)
  %y = MatMul(%r, %b)
  %s = Softmax(%y) {{axis=0}}
  return %s
}}
"""


def mlp(bounds: str = "1..64"):
    return graphc.parse(MLP.format(bounds=bounds))


def batch(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def agrees(model: graphc.CompiledModel, count: int) -> None:
    x = batch(count)
    (found,), (expected,) = model.run([x]), graphc.interpret(mlp("0.."), [x])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def shapes_of(model: graphc.CompiledModel) -> list[str]:
    """The shapes that programs were made for."""
    made = [info for info in model.executables() if info.run is not None]
    return [", ".join(str(list(shape)) for shape in info.shapes) for info in made]


def reasons(model: graphc.CompiledModel) -> list[str]:
    return list(map(str, model.executables()))


def test_one_program_serves_all_batches():
    model = graphc.compile(mlp(), specialise="any", threads=1)
    assert shapes_of(model) == ["[N, 8]"]  # before the first run: all bounds are known
    for count in range(1, 65):
        agrees(model, count)
    assert shapes_of(model) == ["[N, 8]"]
    assert model.why_exact == ""


def test_what_is_out_of_bounds_is_refused_as_before():
    model = graphc.compile(mlp(), specialise="any", threads=1)
    with pytest.raises(ModelError, match="N = 65"):
        model.run([batch(65)])


def test_a_dimension_may_be_empty_once_it_was():
    model = graphc.compile(mlp("0..8"), specialise="any", threads=1)
    assert model.executables()[0].bounds == {"N": (1, 8)}
    (empty,) = model.run([batch(0)])
    assert empty.shape == (0, 4)
    for count in range(9):
        agrees(model, count)
    (info,) = model.executables()
    assert info.bounds == {"N": (0, 8)}


def test_what_is_empty_may_grow_as_other_dimensions_have():
    """As a cache does that takes its first prompt."""
    graph = graphc.parse("""graph @append(
  %new: f32[T,4], %past: f32[P,4]
) -> (?, ?) where T: 0.., P: 0.. {
  const %axis : i64[] = 0
  %all = Concat(%past, %new) {axis=0}
  %sum = CumSum(%all, %axis)
  return %all, %sum
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    for new, past in ((6, 0), (1, 6), (1, 7), (0, 5), (0, 0), (48, 48)):
        feeds = [np.full((new, 4), 2, np.float32), np.ones((past, 4), np.float32)]
        whole, sums = model.run(feeds)
        np.testing.assert_array_equal(whole, np.concatenate(feeds[::-1]))
        np.testing.assert_array_equal(sums, np.cumsum(whole, axis=0))
    assert model.why_exact == ""
    assert [info.bounds for info in model.executables()] == [{"T": (0, 64), "P": (0, 64)}]


def test_an_empty_dimension_that_has_no_general_program_is_exact():
    """The largest of none is an error: only of that size."""
    graph = graphc.parse("""graph @top(%x: f32[N,3]) -> ? where N: 0..8 {
  %y = ArgMax(%x) {axis=0, keepdims=0}
  return %y
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    with pytest.raises(ModelError):
        model.run([np.zeros((0, 3), np.float32)])
    (top,) = model.run([np.eye(3, dtype=np.float32)])
    np.testing.assert_array_equal(top, [0, 1, 2])
    assert model.executables()[0].bounds == {"N": (1, 8)}


def test_bounds_grow_where_there_are_none():
    model = graphc.compile(mlp("1.."), specialise="any", threads=1)
    assert not model.executables()
    for count in (2, 16, 3, 100, 1):
        agrees(model, count)
    (info,) = model.executables()
    assert info.bounds == {"N": (1, 1024)} and info.run.image.sizes == (
        info.shapes[0][0],
    )  # 16, then 8 times 100


def test_exact_programs_follow_where_they_pay(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    model._specialised.recurring.background.wait()
    assert shapes_of(model) == ["[N, 8]", "[5, 8]"]
    agrees(model, 5)
    agrees(model, 6)


def test_exact_programs_wait_until_they_pay():
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    model._specialised.recurring.background.wait()
    assert shapes_of(model) == ["[N, 8]"]


def test_background_is_limited():
    background = Background()
    background.busy, background.count = 1e6, 2
    done: list[int] = []
    background.start(lambda: done.append(1))
    background.wait()
    assert not done and background.cost == 5e5


def test_runs_from_several_threads(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for count in range(first, first + 6):
                agrees(model, count)
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=work, args=(first,)) for first in (1, 4, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_operators_made_for_one_shape_are_compiled_for_it():
    graph = graphc.parse("graph @g(%x: f32[N,N]) -> ? where N: 1..9 "
                         f"{{ %y = {ONE_SHAPE}(%x) return %y }}")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    (found,) = model.run([np.eye(4, dtype=np.float32)])
    np.testing.assert_array_equal(found, 2 * np.eye(4))
    assert shapes_of(model) == ["[4, 4]"]
    assert "Longest" in model.why_exact
    none, exact = reasons(model)
    assert none.startswith("[N, N]: none, ") and "made for one shape at a time" in none
    assert exact.startswith("[4, 4]: exact, the first request of these shapes; not the general")


def test_general_programs_are_for_contents_that_types_depend_on():
    graph = graphc.parse("graph @g(%x: f32[N,6], %s: i64[2]) -> ? where N: 1..9 { "
                         "%y = Reshape(%x, %s) return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    assert not shapes_of(model)
    for shape in ((-1, 3), (-1, 2)):
        for count in (1, 4, 9):
            x = np.arange(6 * count, dtype=np.float32).reshape(count, 6)
            (found,) = model.run([x, np.array(shape)])
            assert found.tolist() == x.reshape(shape).tolist()
    assert shapes_of(model) == ["[N, 6], [2]", "[N, 6], [2]"]
    assert {info.contents for info in model.executables()} == {("s",)}


NARROW = """graph @narrow(%x: f32[N,C,H]) -> ? where N: 1..4, C: 1..8, H: 1..40 {
  const %w : f32[5,3,4] = random(seed=1)
  %y = Conv(%x, %w)
  return %y
}
"""


def test_bounds_are_narrowed_to_what_an_op_takes():
    model = graphc.compile(graphc.parse(NARROW), specialise="any", threads=1)
    for count, length in ((2, 9), (1, 40), (4, 10), (3, 5), (1, 4)):
        x = np.random.default_rng(0).standard_normal((count, 3, length)).astype(np.float32)
        (found,), (expected,) = model.run([x]), graphc.interpret(graphc.parse(NARROW), [x])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        (info,) = model.executables()  # the first program, whose windows fit into 4 elements
        assert info.bounds == {"N": (1, 4), "H": (4, 40)} and "channels" in info.why
    assert shapes_of(model) == ["[N, 3, H]"]


TABLE = """graph @g(%x: f32[A,B,C,D,40]) -> ? where A: 1..9, B: 1..9, C: 1..9, D: 1..9 {
  const %table : f32[2,4,5,7,40] = random(seed=1)
  %y = Add(%x, %table)
  return %y
}
"""


def test_sizes_that_are_taken_at_both_ends_alone_are_not_open():
    """Rows are as many as those of the table, or one, which is read for all of them."""
    model = graphc.compile(graphc.parse(TABLE), specialise="any", threads=1)
    for sizes in ((2, 4, 5, 7), (1, 1, 1, 1), (2, 1, 5, 1)):
        x = np.random.default_rng(0).standard_normal((*sizes, 40)).astype(np.float32)
        (found,), (expected,) = model.run([x]), graphc.interpret(graphc.parse(TABLE), [x])
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ModelError):
        model.run([np.ones((2, 3, 5, 7, 40), np.float32)])


def test_scalars_are_tried_at_least_sizes():
    graph = graphc.parse("graph @g(%x: f32[N], %s: f32[]) -> ? where N: 1..8 { "
                         "const %c : bool[3] = [true,false,true] %y = Where(%c, %x, %s) "
                         "return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    for count in (3, 1):
        inputs = [np.arange(count, dtype=np.float32), np.float32(7)]
        (found,), (expected,) = model.run(inputs), graphc.interpret(graph, inputs)
        np.testing.assert_array_equal(found, expected)


def test_extents_that_depend_on_data_are_those_of_the_data():
    graph = graphc.parse("graph @g(%x: f32[N,4]) -> ? where N: 1..9 { "
                         "const %c : bool[2] = [true,false] %y = Compress(%x, %c) {axis=0} "
                         "return %y }")  # fmt: skip
    model = graphc.compile(graph, specialise="any", threads=1)
    for count in (2, 5):
        assert model.run([np.ones((count, 4), np.float32)])[0].shape == (1, 4)


def test_bounds_that_leave_one_extent_fix_it():
    model = graphc.compile(mlp("1..5"), dims={"N": (5, 9)}, specialise="any", threads=1)
    assert shapes_of(model) == ["[5, 8]"]


def test_targets_without_open_sizes_compile_for_each_shape():
    model = graphc.compile(mlp(), target="plain", specialise="any")
    agrees(model, 3)
    assert shapes_of(model) == ["[3, 8]"]
    assert model.why_exact == "target plain has no programs for all shapes"
    assert reasons(model)[0] == "[N, 8]: none, target plain has no programs for all shapes"


def test_auto_is_the_default_and_other_modes_are_refused():
    model = graphc.compile(mlp(), threads=1)
    agrees(model, 3)
    assert [info.is_general for info in model.executables()] == [True]
    exact = graphc.compile(mlp(), specialise="exact", threads=1)
    agrees(exact, 3)
    assert shapes_of(exact) == ["[3, 8]"]
    with pytest.raises(ModelError, match="specialise must be one of any, exact, auto"):
        graphc.compile(mlp(), specialise="some")


def test_the_command():
    model = str(DIGITS)
    assert main(["run", model, "--dim", "N=3", "--specialise", "auto"]) == 0
    assert main(["run", model, "--dim", "N=3", "--specialise", "some"]) == 2
    for mode in options.MODES:
        assert Settings(specialise=mode).specialise == mode


# ---------------------------------------------------------------- what there is, and why


def test_executables_tell_why_they_are():
    (info,) = graphc.compile(mlp(), specialise="any", threads=1).executables()
    assert info.is_general and info.bounds == {"N": (1, 64)} and info.seconds > 0
    assert str(info) == "[N, 8] where N in 1..64: general, all sizes have bounds"
    model = graphc.compile(mlp("1.."), specialise="any", threads=1)
    agrees(model, 2)
    assert reasons(model) == ["[N, 8] where N in 1..16: general, the first request"]
    agrees(model, 20)
    assert reasons(model) == ["[N, 8] where N in 1..256: general, a request beyond its bounds"]
    model = graphc.compile(mlp(), threads=1, specialise="exact")
    agrees(model, 3)
    assert reasons(model) == ["[3, 8]: exact, the first request of these shapes"]
    model = graphc.compile(mlp(), dims={"N": 3}, threads=1)
    assert reasons(model) == ["[3, 8]: exact, all shapes are fixed"]


def test_executables_tell_of_contents():
    graph = graphc.parse("graph @g(%x: f32[6], %shape: i64[2]) -> ? { "
                         "%y = Reshape(%x, %shape) return %y }")  # fmt: skip
    model = graphc.compile(graph, threads=1)
    model.run([np.zeros(6, np.float32), np.array([2, 3])])
    (info,) = model.executables()
    assert info.shapes == ((6,), (2,)) and info.contents == ("shape",) and not info.is_general
    assert info.serves == "[6] [2] for contents of shape"


def test_swapped_in_programs_tell_what_they_are_expected_to_save(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    model._specialised.recurring.background.wait()
    _, exact = reasons(model)
    assert exact.startswith("[5, 8]: exact, its runs took ") and "expected to save" in exact


# ---------------------------------------------------------------- the background


def test_what_fails_in_the_background_is_told_and_not_tried_again(monkeypatch):
    monkeypatch.setattr(recurring, "GAIN", 1e9)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    tries: list[tuple] = []

    def fail(shapes: tuple, why: str) -> None:
        tries.append(shapes)
        raise KeyError("a bug")

    recurrent = model._specialised.recurring
    recurrent._compile = fail
    for _ in range(4):
        agrees(model, 5)
        recurrent.background.wait()
    assert tries == [((5, 8),)]
    assert reasons(model)[1:] == ["[5, 8]: none, compiling in the background failed: 'a bug'"]


def test_gains_are_measured():
    compiled: list[tuple] = []
    shapes = Recurring(lambda shapes, why: compiled.append(shapes))
    assert shapes.gain == recurring.GAIN
    shapes.note("first", 2.0)
    shapes.background.wait()
    assert compiled == ["first"] and "first" in shapes.trials
    for _ in range(recurring.TRIALS):
        shapes.tried("first", 1.5)
    assert shapes.gain == 0.25 and not shapes.trials
    shapes.background.busy = 4.0  # for one program, so that the next would cost as much
    shapes.background.since -= 100
    shapes.note("second", 15.0)
    shapes.background.wait()
    assert compiled == ["first"]
    shapes.note("second", 1.5)
    shapes.background.wait()
    assert compiled == ["first", "second"]


def test_an_exact_program_that_is_no_faster_is_the_last():
    compiled: list[tuple] = []
    shapes = Recurring(lambda shapes, why: compiled.append(shapes))
    shapes.note("first", 1.0)
    shapes.background.wait()
    for _ in range(recurring.TRIALS):
        shapes.tried("first", 1.1)
    shapes.background.busy, shapes.background.since = 1e-3, -1e9
    shapes.note("second", 1e6)
    shapes.background.wait()
    assert compiled == ["first"]


def test_exact_programs_stay_within_memory(monkeypatch):
    monkeypatch.setattr(tiers, "MOST_EXACT", 1)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    for count in (5, 6, 7):
        model._specialised.compile_for(((count, 8),))
    assert shapes_of(model) == ["[N, 8]", "[7, 8]"]
    agrees(model, 5)


def test_a_program_that_finds_no_memory_is_replaced(monkeypatch):
    model = graphc.compile(mlp(), specialise="auto", threads=1)

    def refuse(values):
        raise MemoryError("no arena")

    model._specialised.general = [replace(model._specialised.general[0], run=refuse)]
    agrees(model, 5)
    assert "no arena" in model.why_exact


def test_bounds_leave_less_room_where_tensors_are_large(monkeypatch):
    monkeypatch.setattr(tiers, "MOST_BYTES", 16 * 4 * 40)
    model = graphc.compile(mlp("1.."), specialise="any", threads=1)
    agrees(model, 20)
    assert model.executables()[0].bounds == {"N": (1, 20)}


def test_bounds_end_where_the_model_does():
    graph = graphc.parse("""graph @g(%x: f32[N]) -> ? where N: 1.. {
  const %table : f32[24] = random(seed=1)
  const %zero : i64[1] = [0]
  %n = Shape(%x)
  %cut = Slice(%table, %zero, %n)
  %y = Add(%x, %cut)
  return %y
}
""")
    model = graphc.compile(graph, specialise="any", threads=1)
    for count in (5, 10, 24, 17):
        x = np.ones(count, np.float32)
        np.testing.assert_array_equal(model.run([x])[0], graphc.interpret(graph, [x])[0])
        (info,) = model.executables()  # the first program: a larger request has none made again
        assert info.bounds["N"][1] == 24


def test_auto_limits_the_time_of_the_general_program(monkeypatch):
    monkeypatch.setattr(tiers, "MOST_SECONDS", 0.0)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    assert shapes_of(model) == ["[5, 8]"]
    assert model.why_exact.endswith("it takes more than 0 s to compile")
    with_any = graphc.compile(mlp(), specialise="any", threads=1)
    assert shapes_of(with_any) == ["[N, 8]"]


def test_a_limit_ends_with_its_block():
    with within_seconds(1e9), within_seconds(0.0):
        sum(range(10**5))
        with pytest.raises(UnsupportedError, match="more than 0 s"):
            check_time()
    check_time()


def test_mistakes_in_the_general_program_are_hidden_by_auto_alone(monkeypatch):
    def fail(*_: object) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(tiers, "open_within", fail)
    model = graphc.compile(mlp(), specialise="auto", threads=1)
    agrees(model, 5)
    assert model.why_exact == "a bug" and shapes_of(model) == ["[5, 8]"]
    with pytest.raises(AttributeError):
        graphc.compile(mlp(), specialise="any", threads=1)


BUSY = """
import os, sys, time
import numpy as np
import graphc
from graphc.runtime import recurring
recurring.GAIN = 1e9
model = graphc.compile({model!r}, specialise="auto", threads=1)
x = np.ones(({count}, 1, 8, 8), np.float32)
(y,) = model.run([x])
time.sleep({delay})
"""
ENDS = "sys.exit(3)"
FORKS = """
pid = os.fork()
(z,) = model.run([x])
(other,) = model.run([x[:2]])
assert np.allclose(y, z, rtol=1e-4) and np.allclose(y[:2], other, rtol=1e-4)
model._specialised.recurring.background.wait()
assert any(not info.is_general for info in model.executables())
if pid == 0:
    os._exit(0)
_, status = os.waitpid(pid, 0)
sys.exit(3 if status == 0 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.4])
@pytest.mark.parametrize("what", [ENDS, FORKS])
def test_a_process_ends_and_forks_while_something_is_compiled(own_cache, what, delay):
    script = BUSY.format(model=str(DIGITS), count=3, delay=delay) + what
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (3, b"")
