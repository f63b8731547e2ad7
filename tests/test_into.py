"""Results in arrays of the caller's: apart from inputs, or in the memory of an input."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from differential import build, check, program_of

import graphc
from graphc.errors import ModelError
from graphc.ir.program import Copy, shared_places
from graphc.ir.text.printer import print_program
from graphc.ir.text.program_parser import parse_program

CACHE = """<ir_version: 10, opset_import: ["": 24]>
cache (float[2, 3, 10, 20] past, float[2, 3, ROWS, 20] rows, int64[2] start)
    => (float[2, 3, 10, 20] present, float[2, 3, 10, 1] sums)
{
  present = TensorScatter <axis = 2> (past, rows, start)
  axes = Constant <value_ints = [3]> ()
  sums = ReduceSum (present, axes)
}
"""
READ_LATER = CACHE.replace("(present, axes)", "(past, axes)")


def model_of(text: str = CACHE, rows: int = 2) -> graphc.CompiledModel:
    return graphc.compile(onnx.parser.parse_model(text.replace("ROWS", str(rows))), threads=1)


def feeds(rows: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    past, new = (
        random.standard_normal((2, 3, n, 20)).astype(np.float32) for n in (10, rows)
    )  # fmt: skip
    return {"past": past, "rows": new, "start": np.array([3, 10 - rows])}


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    result = given["past"].copy()
    for sample, first in enumerate(given["start"]):
        result[sample, :, first : first + given["rows"].shape[2]] = given["rows"][sample]
    return result


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_a_cache_is_updated_where_it_lies(rows):
    model, given = model_of(rows=rows), feeds(rows)
    given["start"] = np.array([0, 10 - rows])
    wanted = expected(given)
    present, sums = model.run(given, into={"present": given["past"]})
    assert present is given["past"]
    np.testing.assert_array_equal(present, wanted)
    np.testing.assert_allclose(sums[..., 0], wanted.sum(-1), rtol=1e-5, atol=1e-5)


def test_without_into_inputs_stay_as_they_are():
    model, given = model_of(), feeds()
    past = given["past"].copy()
    present, _ = model.run(given)
    np.testing.assert_array_equal(given["past"], past)
    np.testing.assert_array_equal(present, expected(given))


def test_arrays_apart_from_inputs():
    model, given = model_of(), feeds()
    target = np.empty((2, 3, 10, 20), np.float32)
    sums = np.empty((2, 3, 10, 1), np.float32)
    assert model.run(given, into={"sums": sums, "present": target})[1] is sums
    np.testing.assert_array_equal(target, expected(given))


@pytest.mark.parametrize("text", [CACHE, READ_LATER])
@pytest.mark.parametrize("start", [0, 20, 599, 601])
def test_memory_that_code_cannot_share(text, start):
    """Arrays that overlap an input in part, or one that is read later, are filled after the run."""
    model, given = model_of(text), feeds()
    memory = np.zeros(2400, np.float32)
    memory[600:1800] = given["past"].reshape(-1)
    given["past"] = memory[600:1800].reshape(2, 3, 10, 20)
    source, wanted = given["past"].copy(), expected(given)
    target = memory[start : start + 1200].reshape(2, 3, 10, 20)
    present, sums = model.run(given, into={"present": target})
    assert present is target
    np.testing.assert_array_equal(target, wanted)
    read = wanted if text is CACHE else source
    np.testing.assert_allclose(sums[..., 0], read.sum(-1), rtol=1e-5, atol=1e-5)


def test_arrays_that_lie_otherwise_in_memory():
    model, given = model_of(), feeds()
    for target in (np.empty((2, 3, 20, 10), np.float32).swapaxes(2, 3),
                   np.empty((2, 3, 10, 40), np.float32)[..., ::2]):  # fmt: skip
        assert model.run(given, into={"present": target})[0] is target
        np.testing.assert_array_equal(target, expected(given))


def test_one_array_for_several_inputs():
    text = CACHE.replace("float[2, 3, ROWS, 20] rows", "float[2, 3, 10, 20] rows")
    model, given = model_of(text), feeds(10)
    given["rows"] = given["past"]
    given["start"][:] = 0
    wanted = expected(given)
    np.testing.assert_array_equal(model.run(given, into={"present": given["past"]})[0], wanted)


def test_wrong_arrays_are_refused():
    model, given = model_of(), feeds()
    right = np.empty((2, 3, 10, 20), np.float32)
    frozen = right.copy()
    frozen.flags.writeable = False
    for into, error in [
        ({"none": right}, "no output 'none'"),
        ({"present": right[:1]}, r"present is float32\[2, 3, 10, 20\]"),
        ({"present": right.astype(np.float64)}, "found an array of float64"),
        ({"present": frozen}, "can be written"),
        ({"present": [1.0]}, "must be a numpy array"),
        ({"present": right, "sums": right[:, :, :, :1]}, "share memory"),
    ]:
        with pytest.raises(ModelError, match=error):
            model.run(given, into=into)


def test_saved_models_share_memory(tmp_path):
    model_of().save(tmp_path / "cache.gcm")
    given = feeds()
    wanted = expected(given)
    graphc.load(tmp_path / "cache.gcm").run(given, into={"present": given["past"]})
    np.testing.assert_array_equal(given["past"], wanted)


@pytest.mark.parametrize(
    "rows, later, shares", [(1, False, True), (4, False, True), (4, True, False)]
)
def test_programs_tell_what_may_share_memory(rows, later, shares):
    given, factor = feeds(rows), np.ones((20, 5), np.float32)

    def function(b, past, rows, start):
        present = b.TensorScatter(past, rows, start, axis=2)
        return present, b.MatMul(past if later else present, b.constant(factor))

    graph, arrays = build(function, **given)
    check(graph, arrays, (64, 32, 0), interpreted=(64, 0))
    program = program_of(graph)
    assert any(isinstance(step, Copy) for step in program.steps)
    assert list(shared_places(program)) == ([(0, 0)] if shares else [])


def averaged(b, p, m, v, x, g):
    """The update of a parameter and of two averages, from a gradient that is a product."""
    slope = b.MatMul(b.Transpose(x, perm=[1, 0]), g)
    mean = b.Add(b.Mul(m, b.constant(np.float32(0.9))), slope)
    square = b.Add(b.Mul(v, b.constant(np.float32(0.9))), b.Mul(slope, slope))
    step = b.Div(mean, b.Sqrt(b.Add(square, b.constant(np.float32(1)))))
    forward = b.MatMul(x, p)  # the old parameter is read: the update must come after this
    return b.Sub(p, step), mean, square, b.ReduceSum(forward, keepdims=0)


@pytest.mark.parametrize("shape", [(24, 40), (5, 7), (64, 16)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_updates_lie_where_parameters_are(shape, order):
    random = np.random.default_rng(0)
    rows, columns = shape
    sizes = {"p": shape, "m": shape, "v": shape, "x": (8, rows), "g": (8, columns)}
    given = {n: random.standard_normal(s).astype(np.float32) for n, s in sizes.items()}
    graph, arrays = build(averaged, **given)
    program = program_of(graph)
    assert {(n, n) for n in range(3)} <= set(shared_places(program))
    assert parse_program(print_program(program)).over == program.over
    model = graphc.compile(graph, threads=1)
    wanted = [np.array(array) for array in model.run(arrays)]
    outputs = [spec.name for spec in model.outputs]
    held = [array.copy() for array in arrays]
    into = {outputs[n]: held[other] for n, other in enumerate(order)}  # even in one another's place
    results = model.run(held, into=into)
    for result, expected_result in zip(results, wanted):
        np.testing.assert_array_equal(result, expected_result)
    assert all(into[outputs[n]] is results[n] for n in range(3))
