"""Flash attention by warp groups: types, tiles, masks, and what is chosen."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import attention_of, graph_of, inputs_of, needs_compiler, needs_nvcc

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.ptx import PtxFault, run_ptx
from graphc.backends.cuda.simulator import simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.attention.flash_tiles import lower_flash_matrix_cores
from graphc.backends.cuda.strategies.attention.flash_warp_groups import (
    GROUP_CORE_TILES,
    GroupCoreTile,
)
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

HOPPER = "sm_90a"
SMALL = GroupCoreTile(4, 1, 64, 1.0)
BIASED = """graph @g(%q: f16[1,2,70,64], %k: f16[1,2,150,64], %v: f16[1,2,150,64],
    %m: f16[70,150]) -> ? {
  %y = Attention(%q, %k, %v, %m) {softcap=20.0}
  return %y
}"""
CASES = {
    "plain": attention_of("f16", 2, 100, 200, 64),
    "causal": attention_of("f16", 4, 150, 150, 64, "is_causal=1"),
    "bf16 of 128": attention_of("bf16", 2, 70, 130, 128, "is_causal=1"),
    "one tile": attention_of("f16", 2, 70, 64, 64),
    "biased": BIASED,
}


def grouped(text: str, tile: GroupCoreTile = SMALL) -> CudaSource:
    """The CUDA C of a graph whose attention has a tile of warp groups."""
    graph = optimise(graph_of(text), target=Cuda())
    first = [lambda c: lower_flash_matrix_cores(c, machine(HOPPER), tile)]
    source = emit(lower(graph, [*first, *strategies(HOPPER)]))
    assert "_held_n" in source.text
    return source


def agree(found, name, inputs, text=None):
    (wanted,) = interpret(graph_of(text or CASES[name]), inputs)
    found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
    part = 2e-2 if "bf16" in name else 2e-3
    np.testing.assert_allclose(found, wanted, part, part * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("name", ["causal", "bf16 of 128", "biased"])
def test_the_simulator_agrees(name):
    source = grouped(CASES[name])
    inputs = inputs_of(source.program)
    agree(simulate(source, (0, 1))(inputs)[0], name, inputs)


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_ptx_agrees(name):
    source = grouped(CASES[name])
    inputs = inputs_of(source.program)
    agree(run_ptx(source, HOPPER, len(name) % 2)(inputs)[0], name, inputs)


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("tile", GROUP_CORE_TILES, ids=lambda t: f"{t.warps}x{t.keys}")
def test_every_tile(tile):
    text = attention_of("f16", 2, 150, 300, 64, "is_causal=1")
    source = grouped(text, tile)
    inputs = inputs_of(source.program)
    agree(run_ptx(source, HOPPER)(inputs)[0], "causal", inputs, text)


def test_exponents_are_one_multiplication():
    """log2(e) / 8 times a score, less as much times the largest one."""
    assert "* 0.18033688f + -(" in grouped(CASES["causal"]).text
    assert "* 0.18033688f" not in grouped(CASES["biased"]).text


@pytest.mark.parametrize("name, loops", [
    ("causal", [False, True]),  # whole tiles, then those at the diagonal and at the end
    ("plain", [False, True]),  # the last tile has 8 keys of 64
    ("biased", [True]),  # a mask from data hides keys anywhere
])  # fmt: skip
def test_whole_tiles_have_a_loop_without_a_mask(name, loops):
    _, *tiles = grouped(CASES[name]).text.split("    wait_copies<0>();\n")
    scores = [text[: text.index("warp_max" if "warp_max" in text else "__shfl")] for text in tiles]
    assert [" -INFINITY;" in text for text in scores] == loops


def test_keys_that_fill_tiles_have_no_mask():
    text = grouped(attention_of("f16", 2, 128, 256, 64)).text
    assert text.count("wait_copies<0>();\n") == 1


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("rows, keys", [(1, 65), (64, 64), (65, 130), (130, 65), (200, 191)])
def test_causal_tiles_of_any_numbers_of_rows_and_keys(rows, keys):
    text = attention_of("f16", 2, rows, keys, 64, "is_causal=1")
    source = grouped(text)
    inputs = inputs_of(source.program)
    agree(run_ptx(source, HOPPER, rows % 2)(inputs)[0], "causal", inputs, text)


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("line", [
    "share_copies()", "wait_copies<0>()", "wait_products<0>()", "begin_products()",
    "__syncthreads()",
])  # fmt: skip
def test_what_is_left_out_is_a_fault_of_the_ptx(line):
    source = grouped(CASES["plain"])
    kept = [x for x in source.text.split("\n") if not x.strip().startswith(line)]
    with pytest.raises(PtxFault):
        run_ptx(replace(source, text="\n".join(kept)), HOPPER)(inputs_of(source.program))


def test_it_is_chosen_where_rows_fill_it():
    large = graph_of(attention_of("f16", 16, 512, 512, 64))
    assert "wgmma_f16_held_n64<" in emit(program_for(large, "cuda", arch=HOPPER)).text
    assert "wgmma_" not in emit(program_for(large, "cuda", arch="sm_80")).text
    odd = graph_of(attention_of("f16", 2, 512, 512, 40))
    assert "_held_n" not in emit(program_for(odd, "cuda", arch=HOPPER)).text
