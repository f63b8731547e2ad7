"""Contents taken out of a model's bytes: the graph is that of the message as protobuf reads it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphc.errors import GraphcError, ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.frontend.wire import LARGE, split
from graphc.ir.text.printer import print_graph

RNG = np.random.default_rng(0)
DTYPES = ("float32", "float64", "float16", "int64", "int8", "bool")


def model(*arrays, names=None):
    """A model that gives initializers as they are."""
    names = names or [f"w{n}" for n in range(len(arrays))]
    tensors = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names)]
    nodes = [helper.make_node("Identity", [n], [f"y_{n}"]) for n in names]
    outputs = [helper.make_empty_tensor_value_info(f"y_{n}") for n in names]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def same(data):
    """Imports bytes, which gives what the whole message gives."""
    graph = import_onnx(data)
    assert print_graph(graph) == print_graph(import_onnx(onnx.ModelProto.FromString(data)))
    return graph


@pytest.mark.parametrize("dtype", DTYPES)
def test_contents_of_every_type(dtype):
    sizes = (0, 1, LARGE // np.dtype(dtype).itemsize, 3 * LARGE + 1, 1 << 21)
    arrays = [RNG.integers(0, 2, size).astype(dtype) for size in sizes]
    data = model(*arrays).SerializeToString()
    text, contents = split(memoryview(data))
    assert sorted(contents) == [2, 3, 4] and len(text) < 2 * LARGE
    constants = [op.attrs["value"] for op in same(data).walk() if op.name == "Constant"]
    for array, constant in zip(arrays, constants, strict=True):
        np.testing.assert_array_equal(constant, array)
        assert constant.nbytes < LARGE or constant.ctypes.data % 64 == 0 or dtype == "bool"


def test_every_place_among_other_fields():
    arrays = [RNG.standard_normal(size).astype(np.float32) for size in (2000, 3, 2001, 2002, 4)]
    proto = model(*arrays)
    proto.metadata_props.add(key="a", value="b" * 300)
    proto.producer_name, proto.graph.doc_string = "p" * 200, "d" * 5000
    del proto.graph.initializer[2].dims[:]
    proto.graph.initializer[2].dims.extend([3, 667])
    graph = same(proto.SerializeToString())
    assert [op.attrs["value"].size for op in graph.walk() if op.name == "Constant"] == [
        2000, 3, 2001, 2002, 4,
    ]  # fmt: skip


def test_messages_in_several_pieces_are_left_to_protobuf():
    first, second = (
        model(RNG.standard_normal(2000), names=[name]).SerializeToString() for name in "ab"
    )
    assert split(memoryview(first + second)) == (first + second, {})
    merged = onnx.ModelProto.FromString(first + second)
    assert [t.name for t in merged.graph.initializer] == ["a", "b"]


def field(number, contents):
    """A field of bytes in protobuf's wire format; of a length from 128 to 16383, or longer."""
    length = len(contents)
    low = bytes([length & 127 | 128, length >> 7 & 127 | (128 if length >> 14 else 0)])
    return bytes([number << 3 | 2]) + low + bytes([length >> 14] if length >> 14 else []) + contents


def test_contents_twice_are_left_to_protobuf():
    proto = model(np.zeros(2000, np.float32))
    tensor = proto.graph.initializer[0].SerializeToString()
    twice = tensor + TensorProto(raw_data=np.ones(2000, np.float32).tobytes()).SerializeToString()
    del proto.graph.initializer[:]
    graph = proto.graph.SerializeToString() + field(5, twice)
    proto.ClearField("graph")
    (constant,) = (
        op
        for op in same(proto.SerializeToString() + field(7, graph)).walk()
        if op.name == "Constant"
    )
    np.testing.assert_array_equal(constant.attrs["value"], np.ones(2000, np.float32))


def test_wrong_sizes_are_told():
    proto = model(np.zeros(2000, np.float32))
    proto.graph.initializer[0].raw_data = bytes(7999)
    with pytest.raises(ModelError, match=r"initializer 'w0': f32\[2000\] needs 8000 .* found 7999"):
        import_onnx(proto.SerializeToString())


def test_damage():
    data = model(RNG.standard_normal(600), RNG.standard_normal(700)).SerializeToString()
    outcomes = set()
    for at in [*range(0, 60), *range(60, len(data), 97)]:
        changed = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        for damaged in (data[:at], changed):
            try:
                wanted = print_graph(import_onnx(onnx.ModelProto.FromString(damaged)))
            except Exception as error:
                with pytest.raises(GraphcError):
                    import_onnx(damaged)
                outcomes.add(type(error).__name__)
                continue
            assert print_graph(import_onnx(damaged)) == wanted
            outcomes.add("imported")
    assert {"imported", "DecodeError"} <= outcomes
