"""Models that ask for absurd sizes: a clear error, or a program, without much time or memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from programs import WithoutFlow

import graphc
from graphc.driver import program_for, typed
from graphc.errors import InternalError, UnsupportedError, within_limits
from graphc.ir import opdef
from graphc.ir.graph import Op
from graphc.ir.infer import blaming
from graphc.ir.kernel import Alloc, walk_stmts
from graphc.ir.program import While
from graphc.passes.kernel.scratch import MOST_LOCAL

MOST_BYTES = 256 << 20
HUGE = [1 << 30, 1 << 40, 1 << 62]


def model_of(op, extents, constants=(), dtype=np.float32, opset=20, outputs=1, **attributes):
    """A model of one node, of an input `x` (None: of none), and constants."""
    arrays = [np.asarray(c) for c in constants]
    names = ([] if extents is None else ["x"]) + [f"c{n}" for n in range(len(arrays))]
    results = [f"y{n}" for n in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [] if extents is None else [helper.make_tensor_value_info("x", kind, extents)]
    declared = [helper.make_empty_tensor_value_info(name) for name in results]
    stored = [numpy_helper.from_array(a, f"c{n}") for n, a in enumerate(arrays)]
    graph = helper.make_graph([node], "g", inputs, declared, stored)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def cases(n: int) -> dict[str, bytes]:
    kernel = np.ones((1, 1, 3, 3), np.float32)
    image = (1, 1, 8, 8)
    same = {"auto_pad": "SAME_UPPER"}
    return {
        "DFT": model_of("DFT", (1, 8, 1), [n]),
        "DFT of all": model_of("DFT", (1, min(n, 1 << 40), 1)),
        "STFT": model_of("STFT", (1, 64, 1), [1, np.float32([1]), n]),
        "MelWeightMatrix": model_of(
            "MelWeightMatrix", None, [n, n, 8000, np.float32(0), np.float32(4000)]
        ),
        "TfIdfVectorizer": model_of(
            "TfIdfVectorizer", (4,), dtype=np.int64, max_gram_length=1, max_skip_count=0,
            min_gram_length=1, mode="TF", ngram_counts=[0], ngram_indexes=[n], pool_int64s=[1],
        ),
        "LRN": model_of("LRN", (1, 8, 8, 8), size=n),
        "RandomUniform": model_of("RandomUniform", None, shape=[n]),
        "Range": model_of("Range", None, [0, n, 1]),
        "Expand": model_of("Expand", (1,), [[n]]),
        "ConstantOfShape": model_of("ConstantOfShape", None, [[n]]),
        "Pad": model_of("Pad", (4, 4), [[0, n, 0, n]], mode="reflect"),
        "Conv pads": model_of("Conv", image, [kernel], pads=[n, 0, n, 0]),
        "Conv dilations": model_of("Conv", image, [kernel], dilations=[n, n], **same),
        "ConvTranspose": model_of("ConvTranspose", image, [kernel], strides=[n, n]),
        "MaxPool": model_of("MaxPool", image, kernel_shape=[n, 1], pads=[n - 1, 0, n - 1, 0]),
        "AveragePool": model_of("AveragePool", image, kernel_shape=[n, n], **same),
        "Resize": model_of(
            "Resize", image, [np.float32([]), np.float32([]), [1, 1, n, 4]], mode="cubic"
        ),
        "OneHot": model_of("OneHot", (4,), [n, np.float32([0, 1])], dtype=np.int64),
        "TopK": model_of("TopK", (4,), [[n]], outputs=2),
        "Tile": model_of("Tile", (2, 2), [[n, n]]),
        "ScatterND": model_of("ScatterND", (4,), [[[n], [-n]], np.float32([1, 2])]),
        "Reshape": model_of("Reshape", (4,), [[n, -1]]),
        "Col2Im": model_of("Col2Im", (1, 4, 4), [[n, n], [2, 2]]),
    }  # fmt: skip


@pytest.mark.suite(30)
@pytest.mark.parametrize("target", ["c", "cpu", "cuda"])
@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("name", cases(8))
def test_absurd_sizes(name, size, target):
    tracemalloc.start()
    try:
        program_for(typed(cases(size)[name]), target)
    except InternalError:
        raise
    except graphc.errors.GraphcError as error:
        assert str(error).strip()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MOST_BYTES


def test_recurrent_layers_of_very_many_steps():
    """They are loops, which not all targets have."""
    weights = [np.zeros((1, 4, 4), np.float32)] * 2
    model = model_of("RNN", (1 << 30, 1, 4), weights, hidden_size=4)
    graphc.compile(model)
    with pytest.raises(UnsupportedError, match=r'Scan ".*too many steps to be written out'):
        program_for(typed(model), WithoutFlow())
    assert any(isinstance(step, While) for step in program_for(typed(model), "c").steps)


def test_large_local_arrays_are_not_on_the_stack():
    count = MOST_LOCAL // 4 + 1
    data = model_of("Unique", (count,))
    (kernel,) = program_for(typed(data)).kernels.values()
    local = [s.buffer for s in walk_stmts(kernel.body) if isinstance(s, Alloc)]
    assert all(buffer.size * buffer.dtype.size <= MOST_LOCAL // 8 for buffer in local)
    x = np.arange(count, dtype=np.float32)[::-1] % 100
    (found,) = graphc.compile(data, threads=1).run([x])
    np.testing.assert_array_equal(found, np.arange(100, dtype=np.float32))


def test_what_does_not_fit_into_memory_is_an_error_of_ours():
    model = graphc.compile(model_of("Expand", (1,), [[1 << 45]]), threads=1)
    with pytest.raises(UnsupportedError, match="more memory than there is"):
        model.run([np.zeros(1, np.float32)])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "more memory than there is: no more"),
        (MemoryError("a lot"), "more memory than there is: a lot"),
        (RecursionError(), "nested too deeply"),
    ],
)
def test_limits_of_the_process(error, message):
    with pytest.raises(UnsupportedError, match=message), within_limits():
        raise error
    op = Op(opdef.CONSTANT, (), {"value": np.zeros(1)})
    with pytest.raises(UnsupportedError, match=f"Constant.*{message}"), blaming(op):
        raise error


def nested_loops(depth: int) -> bytes:
    """Loops of ten trips in one another."""
    info = helper.make_tensor_value_info
    body = None
    for level in range(depth):
        node = (
            helper.make_node("Tanh", [f"s{level}"], [f"t{level}"])
            if body is None
            else helper.make_node("Loop", ["m", "", f"s{level}"], [f"t{level}"], body=body)
        )
        body = helper.make_graph(
            [node, helper.make_node("Identity", [f"c{level}"], [f"d{level}"])], f"b{level}",
            [info(f"i{level}", TensorProto.INT64, []), info(f"c{level}", TensorProto.BOOL, []),
             info(f"s{level}", TensorProto.FLOAT, [4])],
            [info(f"d{level}", TensorProto.BOOL, []), info(f"t{level}", TensorProto.FLOAT, [4])],
        )  # fmt: skip
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    x, y = (info(name, TensorProto.FLOAT, [4]) for name in "xy")
    trips = numpy_helper.from_array(np.array(10), "m")
    graph = helper.make_graph([node], "g", [x], [y], [trips])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def test_loops_in_loops_are_not_all_unrolled():
    assert sum(1 for _ in typed(nested_loops(8)).walk()) < 10_000
