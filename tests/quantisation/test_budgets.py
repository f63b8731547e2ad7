"""Models that have to fit a microcontroller."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from commands import DIGITS, make, ok, refused, save

import graphc
from graphc.quantisation.budgets import most_that_fit, needs_of


@pytest.fixture(scope="module")
def digits():
    model = onnx.load(DIGITS)
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]]
    data = {value.name: np.random.default_rng(0).random((12, *shape)).astype(np.float32)}
    return model, data


def test_what_does_not_fit_is_told(digits):
    model, data = digits
    with pytest.raises(graphc.ModelError, match="RAM of 1 KiB: .* are needed"):
        graphc.quantise(model, data, dims={"N": 1}, ram=1024)


def test_open_sizes_are_asked_for(digits):
    with pytest.raises(graphc.ModelError, match="N is open: give each a size \\(--dim N=1"):
        graphc.quantise(*digits, ram=1 << 20)


def test_room_is_used_for_accuracy(digits):
    model, data = digits
    tight = graphc.quantise(model, data, dims={"N": 1}, whole=True)
    least = needs_of(tight.graph, "cortex-m4")
    fitted = graphc.quantise(model, data, dims={"N": 1}, ram=least.ram, flash=least.flash)
    assert fitted.needs.ram <= least.ram and fitted.needs.flash <= least.flash
    roomy = graphc.quantise(model, data, dims={"N": 1}, ram=1 << 20, flash=1 << 20)
    assert len(roomy.left_out) > len(fitted.left_out)
    assert min(roomy.outputs.values()) > min(fitted.outputs.values())
    assert roomy.needs.flash <= 1 << 20


def test_code_is_measured_where_there_is_a_compiler(digits, monkeypatch):
    model, data = digits
    made = graphc.quantise(model, data, dims={"N": 1}, whole=True).graph
    monkeypatch.setattr("graphc.quantisation.budgets.code_bytes", lambda model: 1000)
    measured = needs_of(made, "cortex-m4")
    monkeypatch.setattr("graphc.quantisation.budgets.code_bytes", lambda model: None)
    estimated = needs_of(made, "cortex-m4")
    assert (measured.compiled, estimated.compiled) == (True, False)
    assert measured.ram == estimated.ram and measured.flash < estimated.flash


def test_the_longest_beginning_that_fits():
    order = list("abcdef")
    for most in range(7):
        assert most_that_fit(order, lambda part, most=most: len(part) <= most) == order[:most]


def test_on_the_command_line(digits, capsys, elsewhere):
    np.savez("calib.npz", **digits[1])
    argv = ("quantise", DIGITS, "--data", "calib.npz", "--dim", "N=1", "-o", "q.onnx")
    out = ok(capsys, *argv, "--ram", "32K", "--flash", "128K")
    assert "of RAM and" in out and "wrote q.onnx" in out
    assert "are needed" in refused(capsys, *argv, "--ram", "1K")


def test_room_for_all_layers_as_float_is_told(capsys, tmp_path):
    rng = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w")
    model = make([onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
                 [("x", 1, (1, 4))], constants=[weights])  # fmt: skip
    np.savez(tmp_path / "calib.npz", x=rng.standard_normal((8, 4)).astype(np.float32))
    told = ok(capsys, "quantise", save(tmp_path / "m.onnx", model), "--data",
              tmp_path / "calib.npz", "--ram", "64K", "--flash", "256K", "-o",
              tmp_path / "q.onnx")  # fmt: skip
    assert "no layer is quantised" in told
    assert "left float: product (there is room for all of them)" in told
