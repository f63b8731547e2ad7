"""Contractions on matrix cores: every type, odd sizes, convolutions; and faults that are caught."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cuda_programs import (
    bank_conflicts,
    chosen_architectures,
    graph_of,
    inputs_of,
    needs_compiler,
    needs_nvcc,
)

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.nvcc import compile_cuda, find_nvcc
from graphc.backends.cuda.simulator import SimulationError, simulate
from graphc.backends.cuda.simulator.profile import profile
from graphc.backends.cuda.strategies import strategies
from graphc.backends.cuda.strategies.contraction.costs import Problem, ranked
from graphc.backends.cuda.strategies.contraction.matrix_cores import lower_matrix_cores
from graphc.backends.cuda.strategies.contraction.panels import Panel
from graphc.backends.cuda.strategies.contraction.warp_mma import SIDES, SLICES, WARP_TILES, WarpTile
from graphc.driver import optimise, program_for
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.passes.lower import lower
from graphc.targets.cuda import Cuda

PRODUCT = """graph @g(%x: f32[70,72]) -> ? {
  const %w : f32[72,50] = random(seed=1)
  const %b : f32[50] = random(seed=2)
  %a = MatMul(%x, %w)
  %c = Add(%a, %b)
  %y = Relu(%c)
  return %y
}"""
ODD = """graph @g(%x: f32[2,3,33,37], %w: f32[2,3,35,37]) -> ? {
  %t = Transpose(%w) {perm=[0,1,3,2]}
  %y = MatMul(%x, %t)
  return %y
}"""
DEEP = """graph @g(%x: f32[20,300]) -> ? {
  const %w : f32[300,24] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}"""
CONVOLUTIONS = """graph @g(%x: f32[1,3,13,11]) -> ? {
  const %w : f32[32,3,3,3] = random(seed=1)
  const %v : f32[24,32,3,3] = random(seed=2)
  %a = Conv(%x, %w) {pads=[1,1,1,1], strides=[2,1]}
  %b = Relu(%a)
  %y = Conv(%b, %v) {pads=[1,0,1,2]}
  return %y
}"""
HALVES = """graph @g(%x: f16[40,64], %w: f16[64,24]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""
BYTES = """graph @g(%x: i8[40,96]) -> ? {
  const %w : i8[96,24] = random(seed=1)
  %y = MatMulInteger(%x, %w)
  return %y
}"""
BOTH_ACROSS = """graph @g(%x: f16[3,40,48], %w: f16[3,40,56]) -> ? {
  %t = Transpose(%x) {perm=[0,2,1]}
  %y = MatMul(%t, %w)
  return %y
}"""
FIRST = """graph @g(%x: f32[3,3,25,23]) -> ? {
  const %w : f32[20,3,7,7] = random(seed=1)
  %a = Conv(%x, %w) {pads=[3,3,3,3], strides=[2,2]}
  %y = Relu(%a)
  return %y
}"""
BYTES_FIRST = """graph @g(%x: u8[2,3,25,23]) -> ? {
  const %w : i8[20,3,5,5] = random(seed=1)
  const %z : u8[] = 7
  %y = ConvInteger(%x, %w, %z) {pads=[2,2,2,2], strides=[2,2]}
  return %y
}"""
ACROSS = HALVES.replace("f16", "f32")
NARROW = {
    "f16": HALVES, "i8": BYTES, "across": BOTH_ACROSS, "odd": BOTH_ACROSS.replace("56", "52"),
    "bf16": HALVES.replace("f16", "bf16"), "no whole slice": HALVES.replace("64", "16"),
}  # fmt: skip
GRAPHS = {
    "product": PRODUCT, "odd": ODD, "deep": DEEP, "convolutions": CONVOLUTIONS, "across": ACROSS,
}  # fmt: skip


def narrowed(text: str, precision: str) -> CudaSource:
    """The CUDA C of a graph with contractions in a precision."""
    return emit(program_for(graph_of(text), "cuda", precision=precision))


def expected(text: str, precision: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """What the graph means once its factors are rounded."""
    graph = optimise(graph_of(text), passes=f"decompose, precision{{type={precision}}}")
    return interpret(graph, inputs)


@needs_compiler
@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("name", GRAPHS)
def test_products_of_narrow_floats(name, precision):
    source = narrowed(GRAPHS[name], precision)
    assert not any(step.function.startswith("tiles") for step in source.steps)
    assert any(step.function.startswith("cores") for step in source.steps)
    inputs = inputs_of(source.program)
    for found, wanted in zip(simulate(source)(inputs), expected(GRAPHS[name], precision, inputs)):
        tolerance = 1e-5 if name != "convolutions" else 2e-3  # a rounding between two of them
        np.testing.assert_allclose(found, wanted, tolerance, tolerance * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("text", NARROW.values(), ids=NARROW)
def test_models_of_narrow_types(text):
    source = emit(program_for(graph_of(text), "cuda"))
    assert "cores" in source.steps[-1].function
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0, 1, 2))(inputs)
    (wanted,) = interpret(graph_of(text), inputs)
    found, wanted = (np.asarray(array, np.float64) for array in (found, wanted))
    tolerance = 8e-3 if "bf16" in text else 1e-3  # of a rounding to the type of the result
    np.testing.assert_allclose(found, wanted, tolerance, 1e-5 * np.ptp(wanted))


def test_both_operands_of_a_convolution_are_copied():
    """Channels are stored last, and weights laid out as they are read."""
    text = narrowed(CONVOLUTIONS, "f16").text
    last = text[text.rindex(") cores_") :]
    assert "copy16(tile_a" in last and "copy16(tile_b" in last


@needs_compiler
@pytest.mark.parametrize("sides", SIDES, ids=lambda sides: "x".join(map(str, sides[:2])))
def test_every_tile(sides):
    tile = WarpTile(*sides, *SLICES[SIDES.index(sides) % len(SLICES)])
    text = PRODUCT.replace("70,72", "150,264").replace("72,50", "264,140").replace("[50]", "[140]")
    graph = optimise(graph_of(text), target=Cuda(precision="f16"))
    source = emit(lower(graph, [lambda c: lower_matrix_cores(c, machine(), tile), *strategies()]))
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0,))(inputs)
    (wanted,) = expected(text, "f16", inputs)
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5 * np.ptp(wanted))


@needs_compiler
@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32", "f32"])
def test_a_thread_puts_together_windows_of_its_own_position(precision):
    """The loop over slices is written out; f32: of bytes, with a zero point."""
    text = BYTES_FIRST if precision == "f32" else FIRST
    tile = WarpTile(128, 64, 64, 32, 32 if precision == "tf32" else 16, 3)
    graph = optimise(graph_of(text), target=Cuda(precision=precision))
    source = emit(lower(graph, [lambda c: lower_matrix_cores(c, machine(), tile), *strategies()]))
    assert "#pragma unroll\n    for (int32_t slice" in source.text
    assert "store_vector(tile_a" in source.text
    inputs = inputs_of(source.program)
    (found,) = simulate(source, (0, 1))(inputs)
    (wanted,) = (
        interpret(graph_of(text), inputs)
        if precision == "f32"
        else (expected(text, precision, inputs))
    )
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5 * np.ptp(wanted))


def cores(text: str, tile: WarpTile) -> Program:
    """The program of a contraction with a tile; of float32s in TF32."""
    graph = optimise(graph_of(text), target=Cuda(precision="tf32"))
    return lower(graph, [lambda c: lower_matrix_cores(c, machine(), tile), *strategies()])


@needs_compiler
@pytest.mark.parametrize(
    ("sides", "words"),
    [((32, 64, 32, 16), 16), ((128, 64, 64, 32), 32), ((32, 32, 16, 16), 16)],
)
@pytest.mark.parametrize(
    "text", [HALVES, BOTH_ACROSS, NARROW["no whole slice"], ACROSS],
    ids=["f16", "both across", "no whole slice", "tf32"],
)  # fmt: skip
def test_no_bank_is_asked_twice(text, sides, words):
    program = cores(text, WarpTile(*sides, words, 3))
    assert bank_conflicts(program, "cores") == {"tile_a": 0, "tile_b": 0}


@needs_compiler
def test_conflicts_are_counted(monkeypatch):
    monkeypatch.setattr(Panel, "_place", lambda self, stage, row, chunk: (stage, row, chunk * 4))
    found = bank_conflicts(cores(BOTH_ACROSS, WarpTile(64, 64, 32, 32, 32, 3)), "cores")
    assert min(found.values()) > 0


def test_chunks_are_copied_whichever_way_an_operand_lies():
    text = emit(program_for(graph_of(BOTH_ACROSS), "cuda")).text
    assert text.count("load_matrices_transposed(a") == text.count("load_matrices_transposed(b") > 0
    assert "copy16(tile_a" in text and "copy16(tile_b" in text


@needs_compiler
@pytest.mark.parametrize("text", [HALVES.replace("64,24", "64,48"), DEEP], ids=["f16", "f32"])
def test_results_fill_sectors(text):
    source = narrowed(text, "f16")
    (found,) = [
        traffic
        for kernel in profile(source, inputs_of(source.program), blocks=64)
        for site, traffic in kernel.sites.items()
        if site.array == "out0" and site.kernel.startswith("cores")
    ]
    assert found.sectors == found.least_sectors > 0


def test_tiles_are_those_that_suit_a_gpu():
    def best(arch: str, *sizes: int) -> WarpTile:
        return ranked(WARP_TILES, machine(arch), Problem(1, *sizes))[0]

    for arch in ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120"):
        gpu, large, small = machine(arch), best(arch, 4096, 4096, 2048), best(arch, 64, 64, 2048)
        area, least = (tile.rows * tile.columns for tile in (large, small))
        assert area > least and large.shared <= gpu.block_shared
        assert gpu.resident(large.threads, large.shared, large.registers)
    large = best("sm_90", 4096, 4096, 2048)
    assert large.rows * large.columns == 128 * 256
    assert best("sm_90,sm_86", 4096, 4096, 2048).shared <= machine("sm_86").block_shared


@needs_nvcc
def test_registers_are_enough_for_the_largest_tiles(tmp_path):
    large = BOTH_ACROSS.replace("3,40,48", "1,256,256").replace("3,40,56", "1,256,512")
    graph = optimise(graph_of(large), target=Cuda())
    source = emit(lower(graph, [lambda c: lower_matrix_cores(c, machine("sm_90"), WARP_TILES[0])]))
    path = tmp_path / "kernels.cu"
    path.write_text(source.text)
    command = [find_nvcc(), "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", tmp_path / "x", path]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert " 0 bytes spill stores, 0 bytes spill loads" in said, said


@needs_compiler
@pytest.mark.parametrize("missing", ["__syncthreads();", "wait_copies<2>();", "commit_copies();"])
def test_a_missing_wait_is_caught(missing):
    source = narrowed(DEEP.replace("300", "320"), "f16")
    inputs = inputs_of(source.program)
    simulate(source)(inputs)
    pieces = source.text.split(missing)
    text = missing.join(pieces[:-1]) + pieces[-1]
    with pytest.raises(SimulationError, match="no barrier between|unwritten element"):
        simulate(replace(source, text=text))(inputs)


@needs_compiler
def test_misaligned_copies_are_caught():
    source = narrowed(PRODUCT, "f16")
    inputs = inputs_of(source.program)
    copy = source.text.index("copy16(tile_a")
    place = source.text.index("]", source.text.index(", ", copy))
    text = f"{source.text[:place]} + 1{source.text[place:]}"
    with pytest.raises(SimulationError, match="not aligned"):
        simulate(replace(source, text=text))(inputs)


@needs_nvcc
@pytest.mark.parametrize("arch", chosen_architectures())
def test_nvcc_compiles_matrix_cores(arch):
    for precision in ("f16", "bf16", "tf32"):
        assert compile_cuda(narrowed(CONVOLUTIONS, precision).text, arch, strict=True)
    assert compile_cuda(emit(program_for(graph_of(BYTES), "cuda")).text, arch, strict=True)


def test_what_is_added_is_read_before_the_first_result_is_stored():
    """Threads do not wait for one residual after another."""
    text = """graph @g(%x: f32[4096,64], %r: f32[4096,256]) -> ? {
  const %w : f32[64,256] = random(seed=1)
  %a = MatMul(%x, %w)
  %y = Add(%a, %r)
  return %y
}"""
    kernel = narrowed(text, "f16").text
    epilogue = kernel[kernel.rindex("mma_f16(sums") :]
    first = epilogue[: epilogue.index("store_vector(out0")]
    assert first.count("load_vector(in") >= 4, first
