"""What a model declares of its values is taken as ONNX Runtime takes it: told where it is wrong,
and refused only where that refuses."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from commands import graphc as command
from commands import save
from onnx import TensorProto, helper

import graphc

sys.path.insert(0, str(Path(__file__).parent / "frontend"))

from onnx_models import model

TWO = "g (float[{a}] x, float[{b}] y) => ({out} z) {{ z = Concat<axis=0>(x, y) }}"


def two(a: str, b: str, out: str = "float[M]"):
    """A model of two inputs; dimensions of these names, which the text syntax may not know."""
    made = model(TWO.format(a="A", b="B", out=out))
    for info, name in zip(made.graph.input, (a, b)):
        info.type.tensor_type.shape.dim[0].dim_param = name
    return made


def f32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def silently(made, *inputs):
    """The results of a model that nothing is to be said about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return graphc.compile(made, threads=1).run(list(inputs))


@pytest.mark.parametrize("name", ["?", "", "*", "-1", "None"])
def test_anonymous_dimensions_are_dimensions_of_their_own(name):
    (found,) = silently(two(name, name), f32(2), f32(3))
    assert found.tolist() == [0, 1, 0, 1, 2]


def test_inputs_that_share_a_dimension_and_differ_are_told_apart():
    compiled = graphc.compile(two("N", "N"), threads=1)
    said = "input 'y': dimension N is 3, but also 2 .of input 'x'.; they are told apart"
    with pytest.warns(graphc.ModelWarning, match=said) as caught:
        (found,) = compiled.run([f32(2), f32(3)])
    assert found.tolist() == [0, 1, 0, 1, 2]
    assert {w.filename for w in caught} == {__file__}  # the user's own line
    assert silently(two("N", "N"), f32(3), f32(3))[0].size == 6


def test_dimensions_that_the_user_names_hold():
    with pytest.raises(graphc.ModelError, match="takes"):
        graphc.compile(two("N", "N"), dims={"N": 2}).run([f32(2), f32(3)])
    with pytest.raises(graphc.ModelError, match="dimension N is 3, but also 2"):
        graphc.compile(two("N", "N"), shapes={"x": (3,)}, dims={"N": 2})


def test_negative_dimensions_are_not_known():
    made = two("N", "M")
    for info, extent in zip(made.graph.input, (-1, -7)):
        info.type.tensor_type.shape.dim[0].dim_value = extent
    assert silently(made, f32(2), f32(3))[0].size == 5


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_declared_scalar_takes_arrays_of_one_element(shape):
    made = model("g (float x, float[2] y) => (z) { z = Add(x, y) }")
    (found,) = silently(made, np.full(shape, 3, np.float32), f32(2))
    assert found.tolist() == np.broadcast_to([3, 4], (*shape[:-1], 2)).tolist()


def test_a_declared_scalar_takes_other_shapes_with_a_warning():
    made = model("g (float x, float[2] y) => (z) { z = Add(x, y) }")
    with pytest.warns(graphc.ModelWarning, match="'x' is declared a scalar, found .3, 2."):
        (found,) = graphc.compile(made, threads=1).run([f32(3, 2), f32(2)])
    assert found.tolist() == [[0, 2], [2, 4], [4, 6]]


def test_a_scalar_is_no_array():
    made = model("g (float[1] x) => (z) { z = Neg(x) }")
    with pytest.raises(graphc.ModelError, match="takes shape .'1'., found"):
        graphc.compile(made, threads=1).run([np.float32(1)])


@pytest.mark.parametrize("mode, declared, shape", [
    ("exact", "float[4]", "5"), ("exact", "float[M,2]", "5"), ("exact", "float[5,1]", "5"),
    ("auto", "float[M,2]", "A . B"), ("auto", "float[5,1]", "A . B"),
])  # fmt: skip
def test_outputs_of_another_shape_than_declared(mode, declared, shape):
    told = rf"output 'z' is declared as .*, but is f32\[{shape}\]"
    with pytest.warns(graphc.ModelWarning, match=told):
        model = graphc.compile(two("A", "B", declared), specialise=mode, threads=1)
        (result,) = model.run([f32(2), f32(3)])
    assert result.shape == (5,)


def test_outputs_of_other_elements_than_declared_are_refused():
    with pytest.raises(graphc.ModelError, match="'z' is declared as i64"):
        graphc.compile(two("A", "B", "int64[M]"), threads=1).run([f32(2), f32(3)])


def test_declared_types_of_inner_values_do_not_matter():
    made = model("g (float[3] x) => (z) { y = Neg(x) z = Neg(y) }")
    made.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 7]))
    assert silently(made, f32(3))[0].tolist() == [0, 1, 2]


def test_warnings_are_lines_on_stderr(capsys, tmp_path):
    path = save(tmp_path / "m.onnx", two("A", "B", "float[4]"))
    code, _, told = command(capsys, "run", path, "--shape", "x=2", "--shape", "y=3")
    said = "graphc: warning: output 'z' is declared as f32[4], but is f32[5], which is given"
    assert (code, told.splitlines().count(said)) == (0, 1)
