"""Products that change places with resizes and averages: NaN and infinities stay where they are."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.driver import optimise, typed
from graphc.ir.graph import Graph

RNG = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def nasty(*shape: int) -> np.ndarray:
    """Numbers, and a NaN and infinities of both signs, some of them at one position."""
    found = weights(*shape)
    found[0, 3, 2, 2], found[0, 7, 2, 2], found[0, 5, 4, 4] = np.inf, -np.inf, np.nan
    found[0, 7, 0, 0] = -np.inf
    return found


def model(nodes, constants, inputs, result):
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (*((n, x.shape) for n, x in inputs.items()), ("y", result))
    ]
    graph = helper.make_graph(nodes, "g", infos[:-1], infos[-1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def convolved(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes that convolutions give."""
    ops = (op for op in graph.walk() if op.name == "Conv")
    return sorted(op.output.tensor.static_shape for op in ops)


def check(made, inputs) -> None:
    (wanted,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, inputs)
    (found,) = graphc.compile(made, threads=1).run(inputs)
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_maps_that_are_enlarged_and_joined(mode):
    inputs = {"small": nasty(1, 16, 6, 7), "large": weights(1, 8, 12, 14)}
    nodes = [
        helper.make_node("Resize", ["small", "", "scales"], ["u"], mode=mode),
        helper.make_node("Concat", ["u", "large"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "w", "b"], ["y"]),
    ]
    constants = {
        "scales": np.array([1, 1, 2, 2], np.float32), "w": weights(12, 24, 1, 1), "b": weights(12)
    }  # fmt: skip
    made = model(nodes, constants, inputs, [1, 12, 12, 14])
    assert convolved(optimise(typed(made))) == [(1, 12, 6, 7), (1, 12, 12, 14)]
    check(made, inputs)


def test_averages():
    inputs = {"x": nasty(1, 16, 6, 8)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    made = model(nodes, {"w": weights(12, 16, 1, 1), "b": weights(12)}, inputs, [1, 12, 3, 4])
    assert convolved(optimise(typed(made))) == [(1, 12, 3, 4)]
    check(made, inputs)


def test_slices_of_values_that_ops_read_twice():
    """What is above a slice is looked at once, not once for every way that leads there."""
    squares = "\n".join(f"%v{n + 1} = Mul(%v{n}, %v{n})" for n in range(40))
    graph = graphc.parse(f"""graph @g(%v0: f32[8,4]) -> ? {{
      const %a : i64[1] = [0]
      const %b : i64[1] = [1]
      {squares}
      %y = Slice(%v40, %a, %b, %a)
      return %y
    }}""")
    (found,) = graphc.compile(graph, threads=1).run([np.ones((8, 4), np.float32)])
    np.testing.assert_array_equal(found, np.ones((1, 4), np.float32))
