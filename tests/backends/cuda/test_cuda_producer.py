"""Products whose operands come by TMA: every way operands lie, persistent blocks, the runtime."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import graph_of, inputs_of, needs_compiler, needs_nvcc
from fake_driver import FakeDriver
from fake_gpu import toolkit
from hopper_programs import HOPPER, grouped

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.bundle import bundle_files, launch_plan
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import find_nvcc
from graphc.backends.cuda.ptx import PtxFault, run_ptx
from graphc.backends.cuda.runtime import Model
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.wgmma import SIDES, SPLITS, GroupTile
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

BATCH = """graph @g(%x: f16[2,72,200], %w: f16[2,200,88]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
ACROSS = """graph @g(%x: f16[136,72], %w: f16[136,200]) -> ? {
  %t = Transpose(%x) {perm=[1,0]}
  %y = MatMul(%t, %w)
  return %y
}"""
LAYER = """graph @g(%x: bf16[150,264]) -> ? {
  const %w : bf16[264,140] = random(seed=1)
  const %b : bf16[140] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}"""
BYTES = """graph @g(%x: i8[70,320]) -> ? {
  const %w : i8[320,72] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}"""
SHORT = BATCH.replace("200", "48")
CONVOLUTION = """graph @g(%x: f16[2,9,8,64]) -> ? {
  const %w : f16[72,64,3,3] = random(seed=1)
  %a = Transpose(%x) {perm=[0,3,1,2]}
  %y = Conv(%a, %w) {pads=[1,0,1,2], strides=[1,2]}
  return %y
}"""
PAIRS = replace(GroupTile(64, 128, 64, 128, 32, 4, most=2), cluster=2)
GRAPHS = {"batch": BATCH, "across": ACROSS, "layer": LAYER, "bytes": BYTES, "short": SHORT}
SMALL = GroupTile(128, 64, 64, 64, 32, 4, most=2)
FLOATS = """graph @g(%x: f32[70,136]) -> ? {
  const %w : f32[136,72] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}"""
ORDERED = (
    "await_phase(full", "await_phase(empty", "expect_bytes(full", "give_back(empty", "meet_warp()",
    "arrive_with_copies(full", "share_copies()", "fence_barriers()", "wait_products<0>",
    "begin_products()", "commit_products()", "__syncthreads()", "meet_cluster<",
)  # fmt: skip


def produced(text: str, tile: GroupTile = SMALL) -> CudaSource:
    """The CUDA C of a graph with a tile whose operands are boxes."""
    source = grouped(text, tile)
    assert "copy_box_" in source.text or "share_box_" in source.text
    return source


def agree(found, wanted, tolerance):
    found, wanted = (np.asarray(array, np.float64) for array in (found, wanted))
    np.testing.assert_allclose(found, wanted, tolerance, 1e-5 * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_the_simulator_agrees(name):
    source = produced(GRAPHS[name])
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(GRAPHS[name]), inputs)
    agree(simulate(source, (0, 1, 2))(inputs)[0], wanted, 8e-3 if name == "layer" else 1e-3)


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_the_ptx_agrees(name):
    source = produced(GRAPHS[name])
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(GRAPHS[name]), inputs)
    for order in (0, 1):
        found = run_ptx(source, HOPPER, order)(inputs)[0]
        agree(found, wanted, 8e-3 if name == "layer" else 1e-3)


@needs_nvcc
@pytest.mark.parametrize("split", [SPLITS[0], SPLITS[-1]], ids=lambda s: "x".join(map(str, s[0])))
def test_the_ptx_of_shared_depth_agrees(split):
    """Five slices, by four blocks and by eight, of which some have none."""
    sides, (stages, *_), parts = split
    source = produced(LAYER, GroupTile(*sides, 32, stages, parts=max(parts)))
    assert f"__cluster_dims__({max(parts)}, 1, 1)" in source.text
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(LAYER), inputs)
    agree(run_ptx(source, HOPPER)(inputs)[0], wanted, 8e-3)


@needs_compiler
@pytest.mark.parametrize("name", ["across", "layer"])
def test_clusters_share_columns(name):
    """Four blocks of rows, two at once: each of a cluster copies half of the columns to both."""
    text = GRAPHS[name].replace("136,72]", "136,200]").replace("bf16[150", "bf16[250")
    source = produced(text, PAIRS)
    assert "share_box_2<1>(" in source.text and "__cluster_dims__(2, 1, 1)" in source.text
    assert source.steps[-1].grid == 2
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(text), inputs)
    tolerance = 8e-3 if name == "layer" else 1e-3
    agree(simulate(source, (0, 1))(inputs)[0], wanted, tolerance)
    for order in (0, 1) if find_nvcc() else ():
        agree(run_ptx(source, HOPPER, order)(inputs)[0], wanted, tolerance)


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("line", ["give_back_to_both(empty", "meet_cluster<"])
def test_what_clusters_leave_out_is_a_fault(line):
    source = produced(ACROSS.replace("136,72]", "136,200]"), PAIRS)
    kept = [x for x in source.text.split("\n") if not x.strip().startswith(line)]
    with pytest.raises(PtxFault):
        run_ptx(replace(source, text="\n".join(kept)), HOPPER)(inputs_of(source.program))


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("sides", SIDES, ids=lambda s: "x".join(map(str, s)))
def test_every_tile(sides):
    text = ACROSS.replace("136,72", "136,264").replace("136,200", "136,264")
    if sides[1] < 64:
        text = LAYER.replace("bf16", "f16")  # whose columns are not the innermost of a slice
    source = produced(text, GroupTile(*sides, 32, 4, most=3))
    assert ("take_registers<" in source.text) == (source.steps[-1].block == 384)
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(text), inputs)
    agree(run_ptx(source, HOPPER)(inputs)[0], wanted, 1e-3)


@needs_compiler
@pytest.mark.parametrize("line, match", [
    ("expect_bytes(full", "wait at different barriers|ended while others wait"),
    ("give_back(empty", "wait at different barriers|ended while others wait"),
    ("make_barrier(empty", "never made"),
])  # fmt: skip
def test_what_is_left_out_is_noticed(line, match):
    source = produced(ACROSS, replace(SMALL, stages=2))
    text = "\n".join(x for x in source.text.split("\n") if not x.strip().startswith(line))
    with pytest.raises(SimulationError, match=match):
        simulate(replace(source, text=text), (0,))(inputs_of(source.program))


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("line", [
    "await_phase(full", "await_phase(empty", "expect_bytes(full", "give_back(empty",
    "fence_barriers()", "wait_products<", "begin_products()", "__syncthreads()",
])  # fmt: skip
def test_what_is_left_out_is_a_fault_of_the_ptx(line):
    source = produced(ACROSS, replace(SMALL, stages=2, most=1))
    kept = [x for x in source.text.split("\n") if not x.strip().startswith(line)]
    with pytest.raises(PtxFault):
        for order in (0, 1):
            run_ptx(replace(source, text="\n".join(kept)), HOPPER, order)(inputs_of(source.program))


@needs_nvcc
@needs_compiler
@pytest.mark.parametrize("name", ["convolution", "rounded", "split"])
def test_what_is_gathered_or_shared_is_ordered(name):
    """Every fence, wait and arrival where threads copy, round rows, or share the depth."""
    text = FLOATS if name == "rounded" else CONVOLUTION
    tile = GroupTile(64, 64, 64, 64, 32, 2, parts=2 if name == "split" else 1)
    source = grouped(text, tile, "tf32" if name == "rounded" else "f32")
    inputs = inputs_of(source.program)
    right = [run_ptx(source, HOPPER, order)(inputs)[0] for order in (0, 1)]
    np.testing.assert_array_equal(*right)
    lines = [line.strip() for line in source.text.split("\n")]
    used = [start for start in ORDERED if any(line.startswith(start) for line in lines)]
    assert len(used) >= 8
    for line in used:
        kept = [x for x in source.text.split("\n") if not x.strip().startswith(line)]
        with pytest.raises(PtxFault):
            for order in (0, 1):
                run_ptx(replace(source, text="\n".join(kept)), HOPPER, order)(inputs)


def test_boxes_are_cut_where_they_can_be_and_windows_are_gathered():
    large = ACROSS.replace("136,72", "512,1024").replace("136,200", "512,1024")
    source = emit(program_for(graph_of(large), "cuda", arch=HOPPER))
    assert "share_box_2" in source.text and len(source.plan()["launches"][0]["maps"]) == 2
    conv = CONVOLUTION.replace("2,9,8,64", "2,28,28,64").replace("72,64", "128,64")
    text = emit(program_for(graph_of(conv), "cuda", arch=HOPPER)).text
    assert "arrive_with_copies(" in text and "copy_box_2(" in text  # weights come in boxes
    assert "copy_box_" not in emit(program_for(graph_of(large), "cuda", arch="sm_90a,sm_80")).text


@needs_compiler
def test_the_runtime_makes_maps_for_the_addresses_of_a_run():
    source = produced(LAYER)
    plan, weights = launch_plan(source)
    model = Model(json.loads(json.dumps(plan)), weights, source.text.encode(), FakeDriver())
    inputs = inputs_of(source.program)
    (wanted,) = interpret(graph_of(LAYER), inputs)
    for _ in range(3):  # one by one, captured, replayed
        agree(model.run(inputs)[0], wanted, 8e-3)
    resident = model.to_device(inputs[0])
    agree(model.run([resident])[0].numpy(), wanted, 8e-3)


@needs_compiler
@needs_nvcc
def test_the_host_compiler_takes_the_maps_of_a_launcher(tmp_path):
    for path, contents in bundle_files(produced(LAYER)).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(contents)
    include = toolkit(find_nvcc()) / "include"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{include}", "-fsyntax-only"]
    subprocess.run([*command, "model.cpp"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("tile, arch", [(PAIRS, HOPPER), (SMALL, "sm_80")])
def test_a_tile_that_does_not_suit_is_refused(tile, arch):
    """Three tiles of rows are no pairs; Ampere has no warp groups."""
    graph = optimise(graph_of(SHORT.replace("72,", "136,")), target=Cuda())
    reasons = []

    def first(computation):
        reasons.append(lower_matrix_cores(computation, machine(arch), tile))
        return reasons[-1]

    lower(graph, [first, *strategies(arch)])
    assert f"operands and {arch} must suit the tile, found GroupTile" in reasons[0]
