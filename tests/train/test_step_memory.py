"""The memory of a training step: what is told of it, and what keeps it to a limit."""

from __future__ import annotations

import numpy as np
import pytest

from graphc import dsl, train
from graphc.driver import program_for
from graphc.errors import ModelError
from graphc.train import memory
from graphc.train.memory import parsed
from graphc.train.recompute import _Plan
from graphc.train.selection import selected
from graphc.train.step_graph import step_graph

RNG = np.random.default_rng(0)


def floats(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def deep():
    """Dense layers, whose activations are what a step takes most for."""
    with dsl.building("deep") as g:
        h = g.input("x", dsl.f32["N", 32])
        for n in range(12):
            h = dsl.Tanh(h @ dsl.constant(floats(32, 32, scale=0.3), name=f"w{n}"))
        g.output(y=h)
    return g.graph


def convolutional():
    """Convolutions with BatchNormalization, whose weights' gradients need memory for a moment."""
    with dsl.building("convolutional") as g:
        h = g.input("x", dsl.f32["N", 8, 16, 16])
        for n in range(6):
            h = dsl.Conv(h, dsl.constant(floats(8, 8, 3, 3), name=f"w{n}"), pads=[1, 1, 1, 1])
            given = (np.ones(8, np.float32), np.zeros(8, np.float32)) * 2
            own = [dsl.constant(array, name=f"{k}{n}") for k, array in zip("sbvm", given)]
            h = dsl.Relu(dsl.BatchNormalization(h, own[0], own[1], own[3], own[2]))
        g.output(y=h)
    return g.graph


CASES = {
    "convolutional": (convolutional, (floats(16, 8, 16, 16), floats(16, 8, 16, 16)), 0.95),
    "deep": (deep, (floats(512, 32), floats(512, 32)), 0.7),
}


@pytest.mark.parametrize("name", CASES)
def test_less_memory_gives_the_same_bits(name, monkeypatch):
    make, batch, share = CASES[name]
    graph = make()
    usual = train.Step(graph, "mse", train.SGD(0.1), threads=1)
    taken = usual.memory(batch)
    limit = int(taken.parameters + taken.optimizer + share * taken.temporaries)
    small = train.Step(graph, "mse", train.SGD(0.1), threads=1, memory=limit)
    measured = []
    real = memory._arena

    def counted(*arguments):
        measured.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(memory, "_arena", counted)
    less = small.memory(batch)
    assert len(measured) <= 5  # the step, three that take less, and what is told of the last
    assert less.total <= limit < taken.total
    assert sum(less.activations.values()) < sum(taken.activations.values())
    for _ in range(2):
        assert small(batch).loss == usual(batch).loss
    for key, array in usual.state_dict().items():
        assert np.array_equal(small.state_dict()[key], array)


def test_a_report_before_a_step_is_run():
    step = train.Step(deep(), "mse", train.Adam(0.1), threads=1)
    memory = step.memory(CASES["deep"][1])
    assert memory.parameters == 12 * 32 * 32 * 4
    assert memory.optimizer == 2 * memory.parameters
    assert sum(memory.activations.values()) >= 11 * 512 * 32 * 4
    assert memory.temporaries >= 11 * 512 * 32 * 4
    assert memory.total == memory.parameters + memory.optimizer + memory.temporaries
    assert "parameters 48 KiB, optimiser 96 KiB" in str(memory)


def test_a_limit_that_is_wide_changes_nothing():
    graph, batch = deep(), CASES["deep"][1]
    wide = train.Step(graph, "mse", train.SGD(0.1), threads=1, memory="1GiB")
    assert wide.memory(batch) == train.Step(graph, "mse", train.SGD(0.1)).memory(batch)


def test_what_is_dropped_first_lies_apart():
    """Values in a row would be computed again together, and be in memory together."""
    batch = CASES["deep"][1]
    step = train.Step(deep(), "mse", train.SGD(0.1), threads=1)
    made = step_graph(step.recipe, step.trained(), step._batches.types(step._feeds(batch)))
    plan = _Plan(made.graph, made.graph.results[made.numbers.index("loss")])
    made = selected(plan.candidates, 5 * 512 * 32 * 4)
    first = [n for n in made.chosen if plan.values[n].producer.name == "Tanh"]
    assert len(first) >= 3 and made.cost == made.bound
    assert all(b - a > 1 for a, b in zip(first, first[1:]))


def test_what_is_computed_again_is_not_kept_in_the_forward_pass():
    """A Clip of a convolution is computed again from it: not in the kernel of the convolution."""
    with dsl.building("clipped") as g:
        h = g.input("x", dsl.f32["N", 8, 16, 16])
        for n in range(6):
            h = dsl.Conv(h, dsl.constant(floats(8, 8, 3, 3), name=f"w{n}"), pads=[1, 1, 1, 1])
            h = dsl.Clip(h, np.float32(0), np.float32(6))
        g.output(y=h)
    batch = floats(16, 8, 16, 16), floats(16, 8, 16, 16)
    step = train.Step(g.graph, "mse", train.SGD(0.1), threads=1)
    made = step_graph(step.recipe, step.trained(), step._batches.types(step._feeds(batch)))
    plan = _Plan(made.graph, made.graph.results[made.numbers.index("loss")])
    clips = [n for n, v in enumerate(plan.values) if v.producer.name == "Clip"]
    assert len(clips) >= 5
    program = program_for(plan.applied(clips))
    large = 16 * 8 * 16 * 16
    for call in program.calls:
        written = [
            slot for buffer, slot in zip(program.kernels[call.kernel].params, call.slots)
            if buffer.access == "out" and slot.elements == large
        ]  # fmt: skip
        assert len(written) <= 2, "a convolution, and what the next one reads"


def test_the_report_tells_what_is_computed_again():
    step = train.Step(deep(), "mse", train.SGD(0.1), threads=1)
    batch = CASES["deep"][1]
    usual = step.memory(batch)
    assert usual.again.values == 0 and "again" not in str(usual)
    limit = usual.parameters + int(0.8 * usual.temporaries)
    again = train.Step(deep(), "mse", train.SGD(0.1), threads=1, memory=limit).memory(batch).again
    assert 0 < again.bound <= again.operations < again.forward
    assert f"{again.values} values are computed again by" in str(again)


def test_limits_that_cannot_be_kept():
    batch = CASES["deep"][1]
    with pytest.raises(ModelError, match="parameters and the optimiser's state take 49,152 bytes"):
        train.Step(deep(), "mse", train.SGD(0.1), memory="40K")(batch)
    with pytest.raises(ModelError, match="the limit leaves 1,024"):
        train.Step(deep(), "mse", train.SGD(0.1), memory="49KiB")(batch)
    for wrong in ("much", "-1", 0, "2 XB", "0"):
        with pytest.raises(ModelError, match="memory must be bytes, or a text such as '2GiB'"):
            train.Step(deep(), memory=wrong)
    assert [parsed(x) for x in ("1.5 KB", "2GiB", 7)] == [1536, 2 << 30, 7]


def tied(rows: int = 4096, width: int = 32):
    """Rows of a table, a layer beside which they are added again, and scores by the same table."""
    with dsl.building("tied") as g:
        words = g.input("words", dsl.i64[2, 8])
        table = dsl.constant(floats(rows, width, scale=0.1), name="table")
        h = dsl.Gather(table, words)
        h = h + dsl.Tanh(h @ dsl.constant(floats(width, width, scale=0.3), name="w"))
        g.output(y=dsl.Reshape(h @ dsl.Transpose(table, perm=[1, 0]), np.array([-1, rows])))
    return g.graph


def program_of_step(graph, batch, loss):
    step = train.Step(graph, loss, train.AdamW(0.1), train_mode=False, gradient_norm=False)
    made = step_graph(step.recipe, step.graph, step._batches.types(step._feeds(batch)))
    return made, program_for(made.graph)


WORDS = RNG.integers(0, 4096, (2, 8)), RNG.integers(0, 4096, 16)


@pytest.mark.parametrize("case", ["tied", "deep"])
def test_all_that_a_step_replaces_lies_where_it_was(case):
    graph, batch, loss = (tied(), WORDS, "cross_entropy") if case == "tied" else (
        deep(), CASES["deep"][1], "mse"
    )  # fmt: skip
    made, program = program_of_step(graph, batch, loss)
    inputs = [name for name, _ in program.inputs]
    for name in made.updated:
        number = len(made.numbers) + made.updated.index(name)
        assert inputs.index(name) in program.over[number], name


def test_parts_of_a_gradient_are_added_up_where_they_lie():
    _, program = program_of_step(tied(), WORDS, "cross_entropy")
    table = 4096 * 32 * 4
    assert sum(array.nbytes for array in program.constants) < table / 4
    assert program.arena_bytes < 1.9 * table  # the gradient, and scores of 16 words (0.5)


def test_the_gradient_of_a_table_that_is_read_twice():
    torch = pytest.importorskip("torch")
    step = train.Step(tied(), optimizer=train.SGD(1.0), train_mode=False)
    before = {name: torch.tensor(a, requires_grad=True) for name, a in step.state_dict().items()}
    step(WORDS)
    table, w = before["table"], before["w"]
    h = table[torch.tensor(WORDS[0])]
    scores = (h + torch.tanh(h @ w)) @ table.T
    torch.nn.functional.cross_entropy(scores.reshape(16, -1), torch.tensor(WORDS[1])).backward()
    for name, after in step.state_dict().items():
        wanted = (before[name] - before[name].grad).detach().numpy()
        np.testing.assert_allclose(after, wanted, atol=1e-5)
