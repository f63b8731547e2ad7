"""Attention of few rows, as decoding has: keys in parts, one key, masks that hide everything."""

import numpy as np
import pytest
from cuda_programs import (
    chosen_architectures,
    cuda_of,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda
from graphc.backends.cuda.simulator import simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.attention.flash_decoding import MOST_ROWS, lower_flash_decoding
from graphc.driver import optimise
from graphc.ir.interp import interpret
from graphc.passes.lower import Conventions, lower
from graphc.targets.cuda import Cuda


def products(batch: str, rows: int, keys: int, size: int, wide: int, type: str = "f32") -> str:
    """Two products around a softmax."""
    return f"""graph @g(%q: {type}[{batch}{rows},{size}], %k: {type}[{batch}{size},{keys}],
    %v: {type}[{batch}{keys},{wide}]) -> ? {{
  const %s : {type}[] = 0.3
  %a = MatMul(%q, %k)
  %b = Mul(%a, %s)
  %p = Softmax(%b)
  %y = MatMul(%p, %v)
  return %y
}}"""


def decoding(type: str, heads: int, rows: int, past: int, size: int, options: str = "") -> str:
    """A step of decoding: keys and values join those of 2 heads in the past."""
    return f"""graph @g(%q: {type}[1,{heads},{rows},{size}], %k: {type}[1,2,{rows},{size}],
    %v: {type}[1,2,{rows},{size}], %pk: {type}[1,2,{past},{size}],
    %pv: {type}[1,2,{past},{size}]) -> (?, ?, ?) {{
  %y, %nk, %nv = Attention(%q, %k, %v, _, %pk, %pv) {{{options}}}
  return %y, %nk, %nv
}}"""


LENGTHS = """graph @g(%q: f32[3,2,1,16], %k: f32[3,2,300,16], %v: f32[3,2,300,16],
    %n: i64[3]) -> ? {
  %y = Attention(%q, %k, %v, _, _, _, %n)
  return %y
}"""
MASKED = """graph @g(%q: f32[2,1,8], %k: f32[2,75,8], %v: f32[2,75,8], %m: bool[2,1,75]) -> ? {
  const %n : f32[] = -inf
  %t = Transpose(%k) {perm=[0,2,1]}
  %a = MatMul(%q, %t)
  %b = Where(%m, %a, %n)
  %p = Softmax(%b)
  %y = MatMul(%p, %v)
  return %y
}"""
GRAPHS = {
    "one row": products("2,3,", 1, 97, 10, 20),
    "no batch": products("", 1, 513, 64, 64),
    "one key": products("2,", 1, 1, 8, 12),
    "odd sizes": products("3,", 5, 131, 7, 33),
    "large heads": products("", 2, 40, 256, 192),
    "narrow columns": products("2,", 3, 70, 64, 4),
    "half floats": products("2,", 1, 300, 64, 64, "f16"),
    "bfloats": products("2,", 3, 200, 24, 40, "bf16"),
    "decoding": decoding("f32", 4, 1, 86, 16, "is_causal=1"),
    "several steps": decoding("f32", 4, 3, 201, 8, "is_causal=1, softcap=2.0"),
    "shared heads": decoding("f16", 8, 1, 260, 64, "is_causal=1"),
    "window": decoding("f32", 2, 2, 150, 8, "is_causal=1, left_window_size=20"),
    "lengths": LENGTHS,
    "masked": MASKED,
}


def in_parts(text: str, parts: int) -> CudaSource:
    """The CUDA C of a graph whose attention is in so many parts."""
    graph = optimise(graph_of(text), target=Cuda())
    kinds = [lambda c: lower_flash_decoding(c, machine(), parts), *strategies()]
    return emit(lower(graph, kinds, wanted=Conventions(alignment=16)))


def inputs_for(name: str, source: CudaSource) -> list[np.ndarray]:
    inputs = inputs_of(source.program)
    if name == "lengths":
        inputs[-1] = np.array([300, 1, 77])
    return inputs


def attentions(source: CudaSource) -> list[str]:
    names = [step.function.rstrip("_0123456789") for step in source.steps]
    return [name for name in names if name.startswith(("attention", "rows", "nest"))]


@needs_compiler
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_the_interpreter(name, parts):
    source = in_parts(GRAPHS[name], parts)
    if name != "one key":
        assert any(step.function.startswith("attention") for step in source.steps)
    inputs = inputs_for(name, source)
    wanted = interpret(graph_of(GRAPHS[name]), inputs)
    for found, expected in zip(simulate(source)(inputs), wanted):
        tolerance = {"f": 1e-5, "e": 4e-3}.get(expected.dtype.char, 3e-2)  # weights: not rounded
        found, expected = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(found, expected, tolerance, tolerance)


def test_keys_are_cut_where_blocks_are_few():
    def parts(batch: int, keys: int) -> list[str]:
        return attentions(cuda_of(products(f"{batch},", 1, keys, 64, 64)))

    assert parts(1, 4096) == ["attention_part", "rows"]
    assert parts(1, 64) == parts(500, 4096) == ["attention"]


def test_a_step_of_decoding_has_few_launches():
    """Keys and values join those of the past, and queries are scaled, in one kernel; no copies."""
    assert attentions(cuda_of(GRAPHS["decoding"])) == ["nest", "attention"]


def test_memory_is_bounded():
    arenas = [
        cuda_of(products("8,", 1, keys, 64, 64)).program.arena_bytes for keys in (1 << 14, 1 << 16)
    ]
    assert 0 < arenas[1] < 1.1 * arenas[0] < 8 * (1 << 14) * 4


def test_many_rows_have_other_kernels():
    few, many = (
        [s.block for s in cuda_of(products("", rows, 256, 64, 64)).steps] for rows in (8, 9)
    )
    assert MOST_ROWS == 8 and few != many


@needs_compiler
@pytest.mark.parametrize("parts", [1, 2])
def test_masks_that_hide_everything(parts):
    source = in_parts(MASKED, parts)
    inputs = inputs_of(source.program)
    inputs[-1][0], inputs[-1][1] = False, np.arange(75) == 74
    (found,) = simulate(source)(inputs)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1, 0], inputs[2][1, 74], 1e-6)


@needs_compiler
@pytest.mark.parametrize("parts", [1, 2])
def test_a_guard_makes_zeros_of_rows_without_keys(parts):
    source = in_parts(LENGTHS, parts)
    inputs = inputs_of(source.program)
    inputs[-1] = np.array([0, 300, 299])
    (found,) = simulate(source)(inputs)
    (wanted,) = interpret(graph_of(LENGTHS), inputs)
    assert not found[0].any()
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@needs_compiler
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite(operand, planted, parts):
    """97 keys are no whole number of tiles: nothing may come from those that do not exist."""
    text = GRAPHS["one row"].replace("97", "197")
    source = in_parts(text, parts)
    inputs = inputs_of(source.program)
    inputs[operand].reshape(6, -1)[::2, -1] = planted
    with np.errstate(all="ignore"):
        (wanted,) = interpret(graph_of(text), inputs)
    (found,) = simulate(source, (0,))(inputs)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@needs_compiler
def test_keys_beyond_the_last_are_not_read():
    """They may be NaN, as memory is that nothing was written to."""
    source = in_parts(LENGTHS, 2)
    inputs = inputs_of(source.program)
    inputs[-1] = np.array([10, 100, 128])
    (wanted,) = interpret(graph_of(LENGTHS), inputs)
    for operand in inputs[1:3]:
        operand[:, :, 256:] = np.nan
    (found,) = simulate(source, (0,))(inputs)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_them(arch):
    for name in ("one row", "half floats", "shared heads", "lengths"):
        assert compile_cuda(in_parts(GRAPHS[name], 2).text, arch, strict=True)
