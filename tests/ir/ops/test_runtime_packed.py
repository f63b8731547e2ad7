"""Products with packed weights: as ONNX Runtime's CPU kernels compute them."""

from __future__ import annotations

import struct

import numpy as np
import onnxruntime
import pytest
from runtime_compare import check, runtime_model

from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(size: int) -> np.ndarray:
    return RANDOM.integers(0, 256, size).astype(np.uint8)


def weights(rows: int, columns: int, block: int) -> list[np.ndarray]:
    scales = RANDOM.uniform(0.1, 1, -(-rows * columns // block)).astype(np.float32)
    return [codes((rows * columns + 1) // 2), scales]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(
    "rows, columns, block", [(8, 64, 16), (5, 7, 16), (3, 48, 64), (17, 32, 32)]
)
def test_products_of_table_entries(rows, columns, block, kind):
    attrs = {"K": columns, "N": rows, "block_size": block, "quant_type": kind}
    check("MatMulBnb4", floats(2, 3, columns), *weights(rows, columns, block), constants={1, 2},
          decomposed=False, compiled=rows != 5, **attrs)  # fmt: skip


@pytest.mark.parametrize("kind", [0, 1])
def test_transposed_products(kind):
    """Times the identity this gives the weights; ONNX Runtime reads beyond them there."""
    attrs = {"K": 48, "N": 3, "block_size": 16, "quant_type": kind}
    given, one = weights(3, 48, 16), np.eye(3, dtype=np.float32)
    (straight,) = check("MatMulBnb4", np.eye(48, dtype=np.float32), *given, constants={1, 2},
                        decomposed=False, **attrs)  # fmt: skip
    proto = runtime_model("MatMulBnb4", [one, *given], {**attrs, "transB": 0}, constants={1, 2})
    (turned,) = interpret(import_onnx(proto), [one])
    np.testing.assert_array_equal(turned, straight.T)


def blob(depth: int, columns: int, zero: int) -> np.ndarray:
    parts = []
    for _ in range(columns * -(-depth // 32)):
        parts.append(struct.pack("<f", RANDOM.uniform(0.01, 0.1)))
        parts.append(RANDOM.integers(0, 16, zero).astype(np.uint8).tobytes())
        parts.append(codes(16).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8)


def skip_without_blobs():
    """ONNX Runtime multiplies by blobs with AVX-512 alone."""
    given = [floats(1, 32), blob(32, 1, 0), np.array([32, 1])]
    model = runtime_model("MatMulFpQ4", given, {"blk_quant_type": 0}, constants={1, 2})
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        if "not yet supported on this hardware" not in str(error):
            raise
        pytest.skip("ONNX Runtime has no MatMulFpQ4 on this processor")


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("depth, columns", [(64, 8), (40, 5), (128, 16)])
def test_products_of_blobs(depth, columns, kind):
    shape = np.array([depth, columns])
    skip_without_blobs()
    check("MatMulFpQ4", floats(2, 3, depth), blob(depth, columns, kind), shape, constants={1, 2},
          decomposed=False, compiled=depth == 40, blk_quant_type=kind)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind, operands, attrs, error", [
    ("MatMulFpQ4", [floats(1, 64), codes(100), np.array([64, 8])], {}, "336 bytes"),
    ("MatMulFpQ4", [floats(1, 64), codes(100), np.array([64, 8])], {"blk_quant_type": 2},
     "neither 0 nor 1"),
    ("MatMulBnb4", [floats(1, 64), codes(256), floats(32)],
     {"K": 64, "N": 8, "block_size": 16, "quant_type": 2}, "quant_type"),
    ("MatMulBnb4", [floats(1, 64), codes(255), floats(32)],
     {"K": 64, "N": 8, "block_size": 16, "quant_type": 1}, "256 elements"),
])  # fmt: skip
def test_wrong_operands(kind, operands, attrs, error):
    graph = import_onnx(runtime_model(kind, operands, attrs, constants={1, 2}))
    with pytest.raises((ModelError, UnsupportedError), match=error):
        interpret(graph, operands[:1])
