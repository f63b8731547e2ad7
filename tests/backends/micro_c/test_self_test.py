"""NAME_test.c: what is wrong fails, whatever follows it; bounds for sizes; nothing to compare."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from bundles import SANITISED, STRICT, checked, float_model, micro_program, model_of, reference
from onnx import TensorProto, helper

from graphc import driver
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.host import HostModel
from graphc.errors import UnsupportedError
from graphc.ir.program import true_outputs

FLOAT = TensorProto.FLOAT


def outcome(program, inputs, outputs, folder):
    """The exit status of the bundle's test, and what it prints."""
    write_bundle(program, folder, BundleOptions("net", samples=(inputs, outputs)))
    sources = ["net.c", "net_weights.c", "net_test.c"]
    command = ["gcc", "-std=c99", *STRICT, *SANITISED, *sources, "-lm", "-o", "net_test"]
    checked(command, folder)
    done = subprocess.run(["./net_test"], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "expected, status",
    [([1, 2, np.nan], 0), ([1, 2, 5], 1), ([1, np.nan, np.nan], 1), ([np.inf, 2, np.nan], 1)],
)
def test_what_is_not_a_number(expected, status, tmp_path):
    x = np.array([1, 4, -1], np.float32)
    model = float_model(helper.make_node("Sqrt", ["x"], ["y"]), x, {})
    for order in (slice(None), slice(None, None, -1)):
        outputs = [np.array(expected, np.float32)[order]]
        found = outcome(micro_program(model), [x[order].copy()], outputs, tmp_path)
        assert found[0] == status and ("FAILED" in found[1]) == bool(status), found


BOUNDED = {
    "nonzero": (
        [helper.make_node("NonZero", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])],
        ["y", "z"], np.array([[0, 1, 0], [2, 0, -3]], np.float32),
    ),
    "unique": (
        [helper.make_node("Unique", ["x"], ["u", "i", "j", "c"], axis=0)],
        ["u", "i", "j", "c"], np.array([[1, 2], [3, 4], [1, 2]], np.float32),
    ),
    "nothing": ([helper.make_node("NonZero", ["x"], ["y"])], ["y"], np.zeros((2, 3), np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
def test_outputs_whose_size_depends_on_data(name, tmp_path):
    nodes, outputs, x = BOUNDED[name]
    kinds = {"z": FLOAT, "u": FLOAT}
    named = {n: (kinds.get(n, TensorProto.INT64), None) for n in outputs}
    model = model_of(nodes, {"x": (FLOAT, x.shape)}, named)
    program, expected = micro_program(model), reference(model, [x])
    assert outcome(program, [x], expected, tmp_path)[0] == 0
    for found, wanted in zip(true_outputs(program, HostModel(program)([x])), expected, strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)
    assert "at most" in (tmp_path / "net.h").read_text()


def test_sizes_are_compared(tmp_path):
    nodes, _, x = BOUNDED["nonzero"]
    model = model_of(nodes[:1], {"x": (FLOAT, x.shape)}, {"y": (TensorProto.INT64, None)})
    status, text = outcome(micro_program(model), [x], [np.zeros((2, 2), np.int64)], tmp_path)
    assert status == 1 and "sizes0: largest error 1, FAILED" in text


def test_what_has_no_size_stays_out_of_the_arena():
    nodes, _, x = BOUNDED["nonzero"]
    model = model_of(nodes[:1], {"x": (FLOAT, x.shape)}, {"y": (TensorProto.INT64, None)})
    with pytest.raises(UnsupportedError, match="NonZero .*leave it to the caller"):
        driver.program_for(driver.typed(model), "c", io="arena")


def test_nothing_to_compare(tmp_path):
    x = np.zeros((0, 3), np.float32)
    model = float_model(helper.make_node("Relu", ["x"], ["y"]), x, {})
    assert outcome(micro_program(model), [x], [x], tmp_path) == (0, "")
