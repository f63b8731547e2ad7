"""Contractions in narrower types: what is stored, and the error it costs."""

from pathlib import Path

import numpy as np
import pytest
from cuda_programs import graph_of, inputs_of, needs_compiler

import graphc
from graphc.backends.cuda import emit
from graphc.backends.cuda.simulator import simulate
from graphc.driver import optimise, program_for, typed
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.dtypes import bf16, f16, f32
from graphc.ir.interp import interpret

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "models" / "digits_cnn.onnx"
TINY = ROOT.parent / "shared" / "models" / "mlperf_tiny"
MODELS = [DIGITS, TINY / "resnet8_cifar10_f32.onnx", TINY / "dscnn_kws_f32.onnx"]
LAYERS = """graph @g(%x: f32[40,30]) -> ? {
  const %w : f32[30,50] = random(seed=1)
  const %v : f32[50,20] = random(seed=2)
  %a = MatMul(%x, %w)
  %b = Relu(%a)
  %y = MatMul(%b, %v)
  return %y
}"""


@needs_compiler
@pytest.mark.parametrize("precision", ["tf32", "f16", "bf16"])
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_the_error_is_small(path, precision):
    if not path.exists():
        pytest.skip(f"no {path.name} beside this checkout")
    pins = {"dims": {"N": 2}} if path == DIGITS else {}
    source = emit(program_for(typed(path, **pins), "cuda", precision=precision))
    inputs = inputs_of(source.program)
    found = simulate(source, (0,))(inputs)
    for result, wanted in zip(found, interpret(typed(path, **pins), inputs)):
        assert np.abs(result - wanted).max() <= 1e-2 * np.ptp(wanted)


@pytest.mark.suite
@needs_compiler
def test_rounding_differs_from_float32_as_it_should():
    graph = graph_of(LAYERS)
    (x,) = inputs_of(program_for(graph_of(LAYERS), "cuda"))
    (exact,) = interpret(graph, [x])
    errors = {}
    for precision in ("f32", "tf32", "f16", "bf16"):
        source = emit(program_for(graph_of(LAYERS), "cuda", precision=precision))
        (found,) = simulate(source, (0,))([x])
        errors[precision] = np.abs(found - exact).max() / np.ptp(exact)
    assert errors["f32"] < 1e-6
    assert 1e-5 < errors["tf32"] < 2e-3 and 1e-5 < errors["f16"] < 2e-3
    assert errors["f16"] < errors["bf16"] < 1e-2


def test_narrow_values_are_stored():
    program = program_for(graph_of(LAYERS), "cuda", precision="f16")
    stored = [s.dtype for step in program.steps for s in step.slots if s.space != "output"]
    assert f16 in stored and {c.dtype.name for c in program.constants} == {"float16"}
    assert [s.dtype for s in program.steps[0].slots] == [f32, f16, f16]  # converts its input


RESIDUAL = """graph @g(%x: f32[64,32]) -> ? {
  const %w : f32[32,32] = random(seed=1)
  const %v : f32[32,32] = random(seed=2)
  %a = MatMul(%x, %w)
  %b = Relu(%a)
  %c = MatMul(%b, %v)
  %d = Relu(%c)
  %e = MatMul(%d, %w)
  %y = Add(%b, %e)
  return %y
}"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_tf32_takes_no_launch_and_no_byte_more(arch):
    plain, narrow = (
        program_for(graph_of(RESIDUAL), "cuda", precision=precision, arch=arch).steps
        for precision in ("f32", "tf32")
    )
    assert [s.nbytes for s in narrow] == [s.nbytes for s in plain]


def test_inputs_are_converted_by_the_kernel_that_reads_them():
    """Where no copies could bring them, that is; else they are stored first."""
    picture = """graph @g(%x: f32[1,3,20,20]) -> ? {
      const %w : f32[16,3,3,3] = random(seed=1)
      %y = Conv(%x, %w)
      return %y
    }"""
    for text, more in ((picture, 0), (LAYERS, 0), (RESIDUAL, 1)):
        plain, narrow = (
            program_for(graph_of(text), "cuda", precision=precision).steps
            for precision in ("f32", "f16")
        )
        assert len(narrow) == len(plain) + more, text


@needs_compiler
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_what_depthwise_sums_multiply_is_stored_narrow(precision):
    """It is the largest part of what mobile networks move."""
    text = """graph @g(%x: f32[1,3,12,12]) -> ? {
      const %w : f32[16,3,3,3] = random(seed=1)
      const %d : f32[16,1,3,3] = random(seed=2)
      const %p : f32[8,16,1,1] = random(seed=3)
      %a = Conv(%x, %w) {pads=[1,1,1,1]}
      %b = Relu(%a)
      %c = Conv(%b, %d) {group=16, pads=[1,1,1,1]}
      %e = Relu(%c)
      %y = Conv(%e, %p)
      return %y
    }"""
    source = emit(program_for(graph_of(text), "cuda", precision=precision))
    first, depthwise, *_ = source.program.steps
    stored = [s.dtype.name for s in (*first.slots, *depthwise.slots) if s.space == "arena"]
    assert stored == [precision] * 3
    inputs = inputs_of(source.program)
    meaning = optimise(graph_of(text), passes=f"decompose, precision{{type={precision}}}")
    (found,), (wanted,) = simulate(source, (0,))(inputs), interpret(meaning, inputs)
    np.testing.assert_allclose(found, wanted, 1e-3, 1e-3 * np.ptp(wanted))


def test_depthwise_sums_are_no_business_of_tf32():
    """Matrix cores have no part in them."""
    text = """graph @g(%x: f32[1,16,12,12]) -> ? {
      const %d : f32[16,1,3,3] = random(seed=2)
      %y = Conv(%x, %d) {group=16}
      return %y
    }"""
    plain, narrow = (str(program_for(graph_of(text), "cuda", precision=p)) for p in ("f32", "tf32"))
    assert plain == narrow


@needs_compiler
def test_what_is_only_chosen_among_and_multiplied_is_stored_narrow():
    text = """graph @g(%x: f32[1,3,12,12]) -> ? {
      const %w : f32[16,3,3,3] = random(seed=1)
      const %v : f32[16,16,3,3] = random(seed=2)
      const %u : f32[8,32,1,1] = random(seed=3)
      %a = Conv(%x, %w) {pads=[1,1,1,1]}
      %b = MaxPool(%a) {kernel_shape=[3,3], pads=[1,1,1,1]}
      %c = Conv(%b, %v) {pads=[1,1,1,1]}
      %d = Concat(%c, %a) {axis=1}
      %e = Conv(%d, %u)
      %f = Sigmoid(%e)
      %y = GlobalAveragePool(%f)
      return %y
    }"""
    source = emit(program_for(graph_of(text), "cuda", precision="bf16"))
    slots = [
        [slot for slot in step.slots if slot.space == "arena"] for step in source.program.steps
    ]
    assert {slot.dtype for step in slots[:-2] for slot in step} == {bf16}
    inputs = inputs_of(source.program)
    meaning = optimise(graph_of(text), passes="decompose, precision{type=bf16}")
    (found,), (wanted,) = simulate(source, (0,))(inputs), interpret(meaning, inputs)
    np.testing.assert_allclose(found, wanted, 1e-3, 1e-3 * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("transposed", [False, True])
def test_rounding_to_tf32_on_the_way_to_matrix_cores(transposed):
    """To the nearest, halves away from zero; infinities and NaNs stay what they are."""
    x = np.zeros((64, 64), np.float32)
    special = [1 + 2**-11, -1 - 2**-11, 1 + 2**-11 - 2**-23, np.inf, -np.inf, 3e38]
    x[range(len(special)), range(len(special))] = special
    text = "graph @g(%x: f32[64,64], %w: f32[64,64]) -> ? {"
    text += "%t = Transpose(%x) %y = MatMul(%t, %w)" if transposed else "%y = MatMul(%x, %w)"
    source = emit(program_for(graph_of(text + " return %y }"), "cuda", precision="tf32"))
    assert len(source.steps) == 1 and "round_tf32(" in source.text
    found = np.diagonal(simulate(source)([x, np.eye(64, dtype=np.float32)])[0])[: len(special)]
    nans = np.full((64, 64), np.array(0x7FFFFFFF, np.uint32).view(np.float32))
    assert np.isnan(simulate(source)([nans, nans])[0]).all()
    np.testing.assert_array_equal(found[:3], np.float32([1 + 2**-10, -1 - 2**-10, 1]))
    assert np.isnan(found[3:5]).all() or np.isinf(found[3:5]).all()
    np.testing.assert_allclose(found[5], 3e38, 2**-11)


def test_microcontrollers_have_no_precision():
    with pytest.raises(UnsupportedError, match="target 'c' has no precision"):
        graphc.compile(str(DIGITS), target="c", precision="f16")
    with pytest.raises(ModelError, match="one of f32, tf32, f16, bf16"):
        graphc.compile(str(DIGITS), target="cuda", simulate=True, precision="f8")
