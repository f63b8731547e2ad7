"""Products of bytes less a zero point that is known when the model runs, by instructions for pairs
of products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import ok, save

import graphc
from graphc import dsl

rng = np.random.default_rng(0)
W = rng.integers(-128, 128, (20, 6)).astype(np.int8)
ZEROS = {
    "none": None,
    "zero": np.zeros(6, np.int8),
    "one": np.array(-5, np.int8),
    "columns": rng.integers(-9, 9, 6).astype(np.int8),
}


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("cpu", ["generic", "cortex-m0plus", "cortex-m4"])
def test_sums_are_exact(zeros, cpu):
    less = ZEROS[zeros]

    @dsl.graph
    def net(a: dsl.u8[3, 20], z: dsl.u8[1]):
        return dsl.MatMulInteger(a, W, dsl.Reshape(z, np.empty(0, np.int64)), less)

    model = graphc.compile(net, target="c", cpu=cpu)
    for z in (0, 7, 255):
        a = rng.integers(0, 256, (3, 20)).astype(np.uint8)
        weights = W.astype(np.int64) - (0 if less is None else less)
        wanted = (a.astype(np.int64) - z) @ weights
        given = model.run({"a": a, "z": np.array([z], np.uint8)})[0]
        np.testing.assert_array_equal(given, wanted)


def test_instructions_for_pairs_are_used(capsys, tmp_path):
    @dsl.graph
    def net(x: dsl.f32[1, 20]):
        q, scale, zero = dsl.DynamicQuantizeLinear(x)
        return dsl.MatMulInteger(q, W, zero, ZEROS["zero"])

    path = save(tmp_path / "net.onnx", graphc.export_onnx(net))
    for cpu, uses in (("cortex-m4", True), ("cortex-m0plus", False)):
        folder = tmp_path / cpu
        ok(capsys, "compile", path, "--target", "c", "--cpu", cpu, "--name", "net", "-o", folder)
        assert ("dot4_u8(v" in Path(folder, "net.c").read_text()) == uses
