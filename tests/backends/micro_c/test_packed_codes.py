"""Products of bytes and packed codes (MatMulNBits): by instructions for pairs, and in plain C."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import micro_program, model_of, run_bundle
from onnx import TensorProto, helper

from graphc.backends.micro_c.model import Model

BLOCK = 32


def product(bits, rows, depth, columns, zeros=False):
    """A product with weights of so many bits, and what it is given."""
    rng = np.random.default_rng([bits, rows, depth, columns])
    blocks = -(-depth // BLOCK)
    codes = rng.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8)
    constants = {
        "codes": codes,
        "scales": rng.uniform(0.01, 0.02, columns * blocks).astype(np.float32),
    }
    if zeros:
        in_row = -(-blocks * bits // 8)
        constants["zeros"] = rng.integers(0, 256, columns * in_row).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", K=depth, N=columns,
        bits=bits, block_size=BLOCK, accuracy_level=4,
    )  # fmt: skip
    inputs = {"x": (TensorProto.FLOAT, [rows, depth])}
    model = model_of([node], inputs, {"y": (TensorProto.FLOAT, None)}, constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model, [rng.standard_normal((rows, depth)).astype(np.float32)]


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m0plus"])
@pytest.mark.parametrize(
    "sizes", [(4, 1, 64, 10), (4, 1, 172, 7), (4, 3, 32, 1), (8, 1, 64, 5), (4, 2, 96, 6, True)]
)
def test_results_are_those_of_onnx_runtime(sizes, cpu, tmp_path):
    model, feeds = product(*sizes)
    _, _, depth, *_ = sizes
    assert depth == BLOCK or "dot4_codes(" in Model.of(micro_program(model, cpu), "net").code()
    assert "FAILED" not in run_bundle(model, feeds, tmp_path, 2e-4, cpu)
