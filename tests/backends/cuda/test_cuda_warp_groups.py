"""Products of warp groups: every type and tile, operands either way; and planted faults."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import graph_of, inputs_of, needs_compiler, needs_nvcc
from hopper_programs import HOPPER, grouped

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import architectures, compile_cuda, find_nvcc
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.strategies.contraction.costs import Problem, ranked
from graphc.backends.cuda.strategies.contraction.warp_mma import WARP_TILES
from graphc.backends.cuda.strategies.contraction.wgmma import GROUP_TILES, SIDES, GroupTile
from graphc.driver import optimise, program_for
from graphc.errors import InternalError
from graphc.ir.interp import interpret

PRODUCT = """graph @g(%x: f32[150,264]) -> ? {
  const %w : f32[264,140] = random(seed=1)
  const %b : f32[140] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}"""
ROUNDED = PRODUCT.replace("%a = MatMul(%x, %w)", "%r = Relu(%x)\n  %a = MatMul(%r, %w)")
ROWS = """graph @g(%x: f16[2,72,200], %w: f16[2,200,88]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
BOTH_ACROSS = """graph @g(%x: f16[136,72], %w: f16[136,200]) -> ? {
  %t = Transpose(%x) {perm=[1,0]}
  %y = MatMul(%t, %w)
  return %y
}"""
BYTES = """graph @g(%x: i8[70,320]) -> ? {
  const %w : i8[320,72] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}"""
CONVOLUTION = """graph @g(%x: f16[2,9,8,64]) -> ? {
  const %w : f16[72,64,3,3] = random(seed=1)
  %a = Transpose(%x) {perm=[0,3,1,2]}
  %b = Conv(%a, %w) {pads=[1,0,1,2], strides=[1,2]}
  %y = Relu(%b)
  return %y
}"""
GRAPHS = {
    "f16": ROWS, "bf16": ROWS.replace("f16", "bf16"), "across": BOTH_ACROSS, "i8": BYTES,
    "u8": BYTES.replace("i8[70", "u8[70"), "convolution": CONVOLUTION,
    "one slice": ROWS.replace("200", "48"), "two slices": ROWS.replace("200", "128"),
}  # fmt: skip


def agree(source: CudaSource, wanted: np.ndarray, tolerance: float, orders=(0, 1, 2)) -> None:
    assert "wgmma_" in source.text
    (found,) = simulate(source, orders)(inputs_of(source.program))
    found, wanted = (np.asarray(array, np.float64) for array in (found, wanted))
    np.testing.assert_allclose(found, wanted, tolerance, 1e-5 * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_models_of_narrow_types(text):
    source = grouped(text)
    (wanted,) = interpret(graph_of(text), inputs_of(source.program))
    agree(source, wanted, 8e-3 if "bf16" in text else 1e-3)


@needs_compiler
@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
def test_products_of_narrow_floats(precision):
    source = grouped(PRODUCT, precision=precision)
    rounded = optimise(graph_of(PRODUCT), passes=f"decompose, precision{{type={precision}}}")
    (wanted,) = interpret(rounded, inputs_of(source.program))
    agree(source, wanted, 1e-5)


@needs_compiler
def test_tf32_rounded_by_another_kernel_is_read_where_it_is():
    source = grouped(ROUNDED, precision="tf32")
    assert "wgmma_tf32_n64<" in source.text and "_held_" not in source.text
    rounded = optimise(graph_of(ROUNDED), passes="decompose, precision{type=tf32}")
    (wanted,) = interpret(rounded, inputs_of(source.program))
    agree(source, wanted, 1e-5, (0, 1))


@needs_compiler
def test_rows_in_registers_change_only_after_their_products():
    source = grouped(PRODUCT, GroupTile(128, 64, 128, 64, 32, 4), "tf32")
    inputs = inputs_of(source.program)
    (wanted,) = simulate(source)(inputs)
    assert "wgmma_tf32_held_n64(" in source.text
    text = source.text.replace("wait_products<1>();", "", 1)
    assert text != source.text
    for order in (0, 2):
        (found,) = simulate(replace(source, text=text), (order,))(inputs)
        assert not np.allclose(found, wanted)


@needs_compiler
@pytest.mark.parametrize("sides", SIDES, ids=lambda sides: "x".join(map(str, sides)))
def test_every_tile(sides):
    columns = sides[1]
    text = BOTH_ACROSS if columns >= 64 else ROWS.replace("%w: f16[2,200,88]", "%v: f16[2,88,200]")
    if columns < 64:
        text = text.replace("%y = MatMul(%x", "%w = Transpose(%v) {perm=[0,2,1]}\n  %y = MatMul(%x")
    text = text.replace("136,72", "136,264").replace("136,200", "136,264")
    stages = 2 + SIDES.index(sides) % 3
    source = grouped(text, GroupTile(*sides, 32, stages))
    (wanted,) = interpret(graph_of(text), inputs_of(source.program))
    agree(source, wanted, 1e-3, (0, 1))


@needs_compiler
@pytest.mark.parametrize(
    ("tile", "text", "precision"),
    [
        (GroupTile(64, 64, 64, 64, 32, 4, parts=2), PRODUCT, "tf32"),
        (GroupTile(128, 128, 64, 128, 32, 3, parts=4), CONVOLUTION, "f32"),
        (GroupTile(64, 32, 64, 32, 32, 4, parts=8), CONVOLUTION, "f32"),
    ],
)
def test_blocks_of_a_cluster_sum_parts_of_the_depth(tile, text, precision):
    source = grouped(text, tile, precision)
    assert f"__cluster_dims__({tile.parts}, 1, 1)" in source.text
    passes = f"decompose, precision{{type={precision}}}" if precision != "f32" else "decompose"
    (wanted,) = interpret(optimise(graph_of(text), passes=passes), inputs_of(source.program))
    agree(source, wanted, 1e-5 if precision != "f32" else 1e-3, (0, 1))


def test_they_are_chosen_where_there_are_any():
    tiles, large = [*GROUP_TILES, *WARP_TILES], Problem(1, 4096, 4096, 2048)
    best = ranked(tiles, machine(HOPPER), large)[0]
    assert isinstance(best, GroupTile) and (best.rows, best.columns) == (128, 256)
    text = """graph @g(%x: f16[2048,512], %w: f16[512,2048]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
    assert "wgmma_" in emit(program_for(graph_of(text), "cuda", arch=HOPPER)).text
    for arch in ("sm_90", "sm_80", "sm_90a,sm_80", "sm_100a", "sm_120"):
        assert machine(arch).group_rate == 0
        assert "wgmma_" not in emit(program_for(graph_of(text), "cuda", arch=arch)).text


def test_what_no_copy_brings_is_left_to_warps():
    odd = ROWS.replace("2,72,200", "2,72,197").replace("2,200,88", "2,197,88")
    text = emit(program_for(graph_of(odd), "cuda", arch=HOPPER)).text
    assert "wgmma_" not in text and "mma_f16(" in text


@needs_compiler
@pytest.mark.parametrize(
    "planted, message",
    [
        ("begin_products();", "without begin_products"),
        ("wait_products<0>();", "have not been waited for"),
        ("arrive_with_copies(full", "wait at different barriers|ended while others wait"),
        ("give_back(empty", "wait at different barriers|ended while others wait"),
    ],
    ids=["begin", "wait", "copies", "empty"],
)
def test_a_missing_order_is_caught(planted, message):
    source = grouped(CONVOLUTION, GroupTile(64, 64, 64, 64, 32, 2))
    inputs = inputs_of(source.program)
    simulate(source)(inputs)
    kept = [x for x in source.text.split("\n") if not x.strip().startswith(planted)]
    with pytest.raises(SimulationError, match=message):
        simulate(replace(source, text="\n".join(kept)))(inputs)


@needs_compiler
def test_operands_that_are_moved_are_caught():
    source = grouped(CONVOLUTION)
    inputs = inputs_of(source.program)
    (wanted,) = simulate(source)(inputs)
    moved = source.text.replace("^ (own / 8 % 8)", "^ (own / 4 % 8)")
    assert moved != source.text
    try:
        (found,) = simulate(replace(source, text=moved))(inputs)
    except SimulationError:
        return
    assert not np.array_equal(found, wanted)


def test_few_rows_take_warp_groups():
    """At batch 1 too: where there are few tiles, blocks share the depth of one."""
    text = """graph @g(%x: f16[128,768]) -> ? {
  const %w : f16[768,768] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}"""
    for rows in (64, 128, 197):
        source = emit(program_for(graph_of(text.replace("128,", f"{rows},")), "cuda", arch=HOPPER))
        assert "wgmma_f16" in source.text and "__cluster_dims__" in source.text
        assert len(source.steps) == 1


@needs_nvcc
@pytest.mark.parametrize(
    "text",
    [ROWS, BOTH_ACROSS, CONVOLUTION, BYTES, PRODUCT, ROUNDED],
    ids=["rows", "both across", "convolution", "bytes", "held", "tf32"],
)
def test_ptxas_keeps_products_in_flight(tmp_path, text):
    if HOPPER not in architectures():
        pytest.skip(f"this nvcc makes no code for {HOPPER}")
    path = tmp_path / "kernels.cu"
    for sides in (SIDES[0], SIDES[1], SIDES[6]):
        tile = GroupTile(*sides, 32, 4)
        if text is PRODUCT and sides == SIDES[1]:  # rows in registers are too many
            continue
        path.write_text(grouped(text, tile, "tf32").text)
        command = [find_nvcc(), f"-arch={HOPPER}", "-cubin", "-Xptxas", "-v", path]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and "serialized" not in done.stderr, done.stderr
        assert done.stderr.count(" 0 bytes spill stores, 0 bytes spill loads") >= 1, done.stderr


@needs_nvcc
def test_other_architectures_are_refused():
    with pytest.raises(InternalError, match="for sm_90a alone"):
        compile_cuda(grouped(ROWS).text, "sm_80")
