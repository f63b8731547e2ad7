"""Schedules: texts, what they make, what is refused, and how one is chosen and kept."""

import json
import random
import re
from dataclasses import MISSING, fields

import numpy as np
import pytest
from differential import build, floats
from scheduled import proposals, with_schedule

from graphc.backends.cache import DiskCache
from graphc.backends.llvm_cpu import tuning
from graphc.backends.micro_c.timing.compiled import EMULATED
from graphc.backends.tuning import Records, Tuner
from graphc.driver import optimise, program_for
from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder, new_graph
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.kernel import For, walk_stmts
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.types import TensorType
from graphc.passes.schedule.steps import STEPS, Schedule, parse, words_of
from graphc.targets.base import Target
from graphc.targets.cpu import Cpu
from graphc.targets.micro_c import MicroC

# ---------------------------------------------------------------- texts


def random_step(r: random.Random):
    kind = r.choice(list(STEPS.values()))
    values = {}
    for f in fields(kind):
        words = words_of(kind)[f.name]
        if f.default is not MISSING and r.random() < 0.5:
            continue
        values[f.name] = r.choice(words) if words else r.choice([1, 7, 1 << r.randrange(40)])
    return kind(**values)


def test_a_schedule_is_its_text():
    r = random.Random(0)
    for _ in range(500):
        steps = tuple(random_step(r) for _ in range(r.randrange(9)))
        schedule = Schedule(r.choice(["register_tiles", "tiles"]), steps)
        again = parse(schedule.text)
        assert again == schedule and hash(again) == hash(schedule)
        assert again.text == schedule.text


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "text, message",
    [
        ("", "expected the name of a strategy, found the end at column 1"),
        ("tiles", "expected ':', found the end at column 6"),
        ("tiles: turn(rows, 2)", "expected a step (vector, tile, "),
        ("tiles: tile(rows)", "expected ',', found ')' at column 17"),
        ("tiles: tile(lines, 2)", "the index, places or rows or columns or depth, found 'lines'"),
        ("tiles: tile(rows, 0)", "the size, a number of at least 1, found '0' at column 19"),
        ("tiles: tile(rows, many)", "the size, a number of at least 1, found 'many'"),
        ("tiles: tile(rows, 2, within)", "the end, apart or overlap, found 'within'"),
        ("tiles: tile(rows, 2) ?", "found '?' at column 22"),
        ("tiles: tile(rows, 99999999999999999999)", "a number of at least 1"),
    ],
)
def test_what_is_no_schedule_is_refused(text, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        parse(text)


# ---------------------------------------------------------------- schedules of graphs in text


def fused(function, target: Target, **inputs) -> tuple[Graph, list[np.ndarray]]:
    """A graph of phase fused."""
    graph, values = build(function, **inputs)
    return optimise(graph, target=target), values


def run(graph: Graph, target: Target, inputs):
    from graphc.backends.llvm_cpu.codegen import compile_program
    from graphc.backends.llvm_cpu.runtime import NativeModel

    return NativeModel(compile_program(program_for(graph, target)), 1)(inputs)


R = np.random.default_rng(0)
W, LONG, RESIDUAL = floats(R, 40, 50), floats(R, 700, 33), floats(R, 29, 50)
KERNEL = floats(R, 20, 5, 2, 2)
IMAGE = floats(R, 16, 20, 3, 3)
CASES = {
    "constant": (lambda b, x: b.Relu(b.MatMul(x, W)), {"x": floats(R, 29, 40)}),
    "residual": (lambda b, x, y: b.Add(b.MatMul(x, W), y),
                 {"x": floats(R, 29, 40), "y": RESIDUAL}),
    "deep": (lambda b, x: b.MatMul(x, LONG), {"x": floats(R, 13, 700)}),
    "batches": (lambda b, x, y: b.MatMul(x, y), {"x": floats(R, 2, 17, 9), "y": floats(R, 9, 35)}),
    "window": (lambda b, x: b.Conv(x, KERNEL), {"x": floats(R, 1, 5, 9, 8)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_proposal_computes_the_same(name):
    function, inputs = CASES[name]
    graph, values = fused(function, Cpu(), **inputs)
    expected = interpret(graph, values)
    given = proposals(graph, Cpu(), "register_tiles")
    assert len(given) > 2 and len(set(given)) == len(given)
    assert all(parse(schedule.text) == schedule for schedule in given)
    for schedule in given:
        optimised, _ = fused(function, Cpu(), **inputs)
        results = run(with_schedule(optimised, schedule.text), Cpu(), values)
        for result, wanted in zip(results, expected):
            np.testing.assert_allclose(result, wanted, 1e-4, 1e-4, err_msg=schedule.text)


def test_a_schedule_decides_what_code_is():
    function, inputs = CASES["constant"]
    texts = {}
    for rows in (1, 2, 5):
        graph, _ = fused(function, Cpu(), **inputs)
        first = proposals(graph, Cpu(), "register_tiles")[0].text
        schedule = re.sub(r"tile\(rows, \d+[^)]*\)", f"tile(rows, {rows})", first, count=1)
        program = program_for(with_schedule(graph, schedule), Cpu())
        texts[rows] = "".join(map(str, program.kernels.values()))
    assert len(set(texts.values())) == 3


def test_the_last_block_of_rows_may_be_smaller():
    """Five tiles in two blocks of three: not in five of one."""
    function, _ = CASES["constant"]
    graph, values = fused(function, Cpu(), x=floats(R, 20, 40))
    first = proposals(graph, Cpu(), "register_tiles")[0].text
    steps = "pack(columns, panels) epilogue(tile) order(places, rows, columns) tile(rows, 12)"
    schedule = re.sub(r"tile\(rows, .*", f"tile(rows, 4) {steps} bind(rows, parallel)", first)
    given = with_schedule(graph, schedule)
    bodies = [k.body for k in program_for(given, Cpu()).kernels.values()]
    loops = [s for body in bodies for s in walk_stmts(body) if isinstance(s, For)]
    assert 2 in [loop.var.extent for loop in loops if loop.kind == "parallel"]
    (found,), (expected,) = run(given, Cpu(), values), interpret(graph, values)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def wrong(change) -> str:
    """The message of what a changed schedule of the case `constant` gives."""
    function, inputs = CASES["constant"]
    graph, _ = fused(function, Cpu(), **inputs)
    schedule = change(proposals(graph, Cpu(), "register_tiles")[0].text)
    with pytest.raises(ModelError) as caught:
        program_for(with_schedule(graph, schedule), Cpu())
    return str(caught.value)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "pattern, put, message",
    [
        (r"vector\(columns, \d+\)", "vector(columns, 999)", "vectors of"),
        (r"tile\(rows, \d+[^)]*\)", "tile(rows, 1000)", "a tile of at most 64 vectors"),
        (r"tile\(columns, \d+\)", "tile(columns, 1)", "a tile of a multiple of"),
        (r"pack\(columns, panels\) ", "", "as columns are no neighbours"),
        (r"panels\)", "blocks)", "blocks cannot pack these columns"),
        (r"vector\(columns, \d+\) ", "", "a step vector(columns, ...), found none"),
        (r"epilogue", "tensorize(dot4) epilogue", "no step tensorize"),
        (r"epilogue", "split_reduce(depth, 256) epilogue", "no split_reduce(...) for a depth"),
        (r"order\([^)]*\)", "order(rows, rows, columns)", "an order of columns, places, rows"),
        (r"register_tiles", "nothing", "winograd, register_tiles, block_tiles; found"),
        (r"register_tiles:", "register_tiles", "expected ':'"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused(pattern, put, message):
    found = wrong(lambda text: re.sub(pattern, put, text, count=1))
    assert message in found and "fused" in found


def test_a_schedule_is_for_a_fused_graph():
    graph = new_graph("main", x=TensorType(dtypes.f32, (5, 40)))
    graph.set_results([Builder(graph).MatMul(graph.params[0], W)])
    graph.ops[-1].schedule = "register_tiles:"
    with pytest.raises(ModelError, match="of a graph of phase fused"):
        program_for(graph, Cpu())


def test_a_schedule_of_what_is_no_product_is_refused():
    graph, _ = fused(lambda b, x: b.Exp(x), Cpu(), x=floats(R, 3, 4))
    with pytest.raises(ModelError, match="a contraction that register tiles take"):
        program_for(with_schedule(graph, "register_tiles:"), Cpu())


def image(b, x):
    """A convolution of what another gives, whose channels are neighbours in memory."""
    return b.Conv(b.Conv(x, KERNEL), IMAGE, pads=[1] * 4)


@pytest.mark.parametrize("outputs, tiles", [(2, 3), (4, 1)])
def test_winograd_takes_schedules(outputs, tiles):
    graph, values = fused(image, Cpu(), x=floats(R, 1, 5, 9, 11))
    expected = interpret(graph, values)
    schedule = f"winograd: tile(places, {outputs}) tile(rows, {tiles}) bind(rows, parallel, 4)"
    results = run(with_schedule(graph, schedule), Cpu(), values)
    np.testing.assert_allclose(results[0], expected[0], 1e-3, 1e-3)


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "steps, message",
    [("tile(places, 3) tile(rows, 3)", "a tile of 2 or 4 places, found 3"),
     ("tile(places, 2) tile(rows, 99999)", "a block of at most"),
     ("tile(places, 2) tile(rows, 2)", "a step bind(rows, ...)")],
)  # fmt: skip
def test_winograd_refuses_what_does_not_fit(steps, message):
    graph, _ = fused(image, Cpu(), x=floats(R, 1, 5, 9, 11))
    with pytest.raises(ModelError, match=re.escape(message)):
        program_for(with_schedule(graph, f"winograd: {steps}"), Cpu())


@pytest.mark.suite("all")
@pytest.mark.parametrize("name", ["constant", "residual", "window"])
def test_tiles_of_scalars_take_schedules(name):
    function, inputs = CASES[name]
    target = MicroC()
    graph, values = fused(function, target, **inputs)
    expected = interpret(graph, values)
    given = proposals(graph, target, "tiles")
    assert len(given) > 3
    for schedule in (given[0], given[1], given[-1]):
        optimised, _ = fused(function, target, **inputs)
        program = program_for(with_schedule(optimised, schedule.text), target)
        result = target.load(program)(values)[0]
        np.testing.assert_allclose(result, expected[0], 1e-4, 1e-4, err_msg=schedule.text)
    optimised, _ = fused(function, target, **inputs)
    large = re.sub(r"tile\(columns, \d+\)", "tile(columns, 1000)", given[0].text)
    with pytest.raises(ModelError, match="a tile of at most"):
        program_for(with_schedule(optimised, large), target)


def attention(b, q, k, v):
    scores = b.MatMul(q, b.Transpose(k, perm=[0, 2, 1]))
    return b.MatMul(b.Softmax(scores, axis=-1), v)


HEADS = {name: floats(R, 2, n, 20) for name, n in (("q", 19), ("k", 40), ("v", 40))}


@pytest.mark.parametrize("target", [Cpu(), MicroC()], ids=lambda t: t.name)
def test_attention_takes_schedules(target):
    graph, values = fused(attention, target, **HEADS)
    expected = interpret(graph, values)
    given = proposals(graph, target, "attention")
    assert len(given) > 1 and len(set(given)) == len(given)
    for schedule in (given[0], given[-1]):
        again, _ = fused(attention, target, **HEADS)
        again = with_schedule(again, schedule.text)
        if target.name == "cpu":
            (result,) = run(again, target, values)
        else:
            (result,) = target.load(program_for(again, target))(values)
        np.testing.assert_allclose(result, expected[0], 1e-4, 1e-4, err_msg=schedule.text)


@pytest.mark.suite("all")
@pytest.mark.parametrize("pattern, put, message", [
    (r"vector\(columns, \d+\)", "vector(columns, 2)", "columns on this machine, found 2"),
    (r" tile\(rows, \d+\)", "", "a step tile(rows, ...)"),
    (r"tile\(rows, \d+\)", "tile(rows, 50)", "a tile of at most 19 rows"),
    (r"split_reduce\(depth, \d+\)", "split_reduce(depth, 3)", "blocks of a multiple of"),
    (r"tile\(depth, \d+\)", "tile(depth, 3)", "panels of a multiple of"),
])  # fmt: skip
def test_attention_refuses_what_does_not_fit(pattern, put, message):
    graph, _ = fused(attention, Cpu(), **HEADS)
    text = re.sub(pattern, put, proposals(graph, Cpu(), "attention")[0].text)
    with pytest.raises(ModelError, match=re.escape(message)):
        program_for(with_schedule(graph, text), Cpu())


def of_codes(b, x):
    """A product with weights of four bits, in blocks."""
    r = np.random.default_rng(1)
    codes = r.integers(0, 256, (37, 2, 16)).astype(np.uint8)
    scales = r.uniform(0.01, 0.1, (37, 2)).astype(np.float32)
    return b.op(
        "MatMulNBits", x, b.constant(codes), b.constant(scales), None, None, None, domain=RUNTIME,
        K=64, N=37, block_size=32, bits=4, accuracy_level=4,
    )  # fmt: skip


def test_sums_over_blocks_take_schedules():
    graph, values = fused(of_codes, Cpu(), x=floats(R, 11, 64))
    expected = interpret(graph, values)
    given = proposals(graph, Cpu(), "block_tiles")
    assert len(given) > 2
    for schedule in (given[0], given[1], given[-1]):
        again, _ = fused(of_codes, Cpu(), x=floats(R, 11, 64))
        results = run(with_schedule(again, schedule.text), Cpu(), values)
        np.testing.assert_allclose(results[0], expected[0], 1e-5, 1e-5, err_msg=schedule.text)


# ---------------------------------------------------------------- choosing


def tuned(tmp_path, times, records=None, cache=True) -> tuple[Tuner, list]:
    """A tuner that takes these times for those of candidates, and what it was asked to measure."""
    asked: list = []

    def measure(candidates):
        asked.append(len(candidates))
        return times[: len(candidates)]

    kept = DiskCache(tmp_path / "cache") if cache else None
    return Tuner("a machine", measure, kept, records), asked


def no_kernels(candidate):
    return []


@pytest.mark.suite("all")
@pytest.mark.parametrize("times, taken", [([3, 2, 1], "c"), ([1, 2, 3], "a"), ([1, 0.96, 2], "a")])
def test_the_fastest_is_taken_unless_the_first_is_nearly_as_fast(tmp_path, times, taken):
    for measured in (1, 0):
        tuner, asked = tuned(tmp_path, times)
        assert tuner.choose("x", iter("abc"), no_kernels) == taken
        assert len(asked) == measured  # once, then it is known


def test_choices_can_be_shipped_in_a_file(tmp_path):
    path = tmp_path / "choices.json"
    tuner, _ = tuned(tmp_path, [3, 1, 2], Records(path), cache=False)
    before = tuner.state
    assert tuner.choose("x", iter("abc"), no_kernels) == "b" and tuner.state != before
    shipped = Tuner("a machine", None, None, Records(path))
    assert shipped.choose("x", iter("abc"), no_kernels) == "b"
    assert shipped.choose("y", iter("abc"), no_kernels) == "a"  # not known
    assert Tuner("another", None, None, Records(path)).choose("x", iter("abc"), no_kernels) == "a"
    (entry,) = json.loads(path.read_text())["machines"]["a machine"].values()
    assert (entry["about"], entry["choice"], entry["first"]) == ("x", "b", "a")


@pytest.mark.suite("all")
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "graphc schedules 1", "machines": {"m": {"s": 3}}}',
             '{"format": "graphc schedules 1"}']
)  # fmt: skip
def test_a_file_that_holds_no_choices_is_refused(tmp_path, text):
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"wrong\.json"):
        Records(path)


def test_a_model_is_tuned_and_computes_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "ROUNDS", 1)
    monkeypatch.setattr(tuning, "FINAL_ROUNDS", 1)
    monkeypatch.setattr(tuning, "SAMPLE", 0)
    function, inputs = CASES["constant"]
    graph, values = build(function, **inputs)
    file = tmp_path / "choices.json"
    target = Cpu(tune=True, tune_file=str(file))
    (result,) = run(graph, target, values)
    np.testing.assert_allclose(result, interpret(build(function, **inputs)[0], values)[0], 1e-4)
    (structures,) = json.loads(file.read_text())["machines"].values()
    (entry,) = structures.values()
    assert entry["choice"] in entry["times"] and len(entry["times"]) > 2
    other = next(text for text in entry["times"] if text != entry["first"])
    entry["choice"] = other
    (machine,) = json.loads(file.read_text())["machines"]
    (structure,) = structures
    wanted = {"format": "graphc schedules 1", "machines": {machine: {structure: entry}}}
    file.write_text(json.dumps(wanted))
    by_file = program_for(build(function, **inputs)[0], Cpu(tune_file=str(file)))
    usual = program_for(build(function, **inputs)[0], Cpu())
    assert list(map(str, by_file.kernels.values())) != list(map(str, usual.kernels.values()))


def test_code_that_options_change_has_a_name_of_its_own_in_caches(tmp_path):
    known = [Cpu(), Cpu(exact=True), Cpu(tune=True), Cpu(tune=True, exact=True)]
    assert len({target.variant() for target in known}) == len(known)


def test_a_microcontroller_is_tuned_by_cycles(tmp_path, monkeypatch):
    if EMULATED["cortex-m4"].tools.missing():
        pytest.skip("no cross compiler, or no emulator")
    monkeypatch.setenv("GRAPHC_CACHE_DIR", "off")
    monkeypatch.setattr("graphc.backends.tuning.TRIED", 2)
    graph, _ = build(lambda b, x: b.MatMul(x, W[:9, :6]), x=floats(R, 4, 9))
    file = tmp_path / "choices.json"
    program_for(graph, MicroC(cpu="cortex-m4", tune=True, tune_file=str(file)))
    (structures,) = json.loads(file.read_text())["machines"].values()
    (entry,) = structures.values()
    assert all(cycles > 100 for cycles in entry["times"].values()) and len(entry["times"]) == 2


def test_a_processor_that_is_not_known_is_not_tuned():
    with pytest.raises(UnsupportedError, match="give --cpu, one of cortex-m4"):
        MicroC(tune=True).conventions()


def test_without_a_file_it_is_said(tmp_path):
    with pytest.raises(ModelError, match="--tune makes one"):
        Cpu(tune_file=str(tmp_path / "none.json")).conventions()
