"""Machine code of kernels: what is read of it, how often it is executed, and times predicted."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_programs import attention_of, graph_of, needs_nvcc, needs_nvdisasm
from hopper_programs import HOPPER, grouped
from kernel_budgets import ARCHS, GRAPHS, budgets, taken
from ptx_texts import needs_c
from test_cuda_open_sizes import open_graph, open_program

import graphc
from graphc.backends.cuda import emit
from graphc.backends.cuda.machine_code import machine_code
from graphc.backends.cuda.machines import machine
from graphc.backends.cuda.prediction import figures, sample, sass
from graphc.backends.cuda.prediction.executions import executions
from graphc.backends.cuda.prediction.kinds import kind_of_ptx, kind_of_sass
from graphc.backends.cuda.prediction.model import Launched, code_of, predicted, resident
from graphc.backends.cuda.prediction.report import data, inspected, text
from graphc.backends.cuda.prediction.sample import Sample, mean, samples
from graphc.backends.cuda.prediction.sass import Instruction, disassembled, parsed
from graphc.backends.cuda.strategies.contraction.wgmma import GroupTile
from graphc.cli import main
from graphc.driver import program_for
from graphc.errors import UnsupportedError

DIGITS = str(Path(graphc.__file__).parents[1] / "models" / "digits_cnn.onnx")
NESTED = """
\t.section\t.nv.info,"",@"SHT_CUDA_INFO"
\t//----- nvinfo : EIATTR_REGCOUNT
        /*0004*/ \t.word\tindex@(k)
        /*0008*/ \t.word\t0x00000028
\t//----- nvinfo : EIATTR_FRAME_SIZE
        /*0004*/ \t.word\tindex@(k)
        /*0008*/ \t.word\t0x00000010
\t.section\t.text.k,"ax",@progbits
k:
.text.k:
        /*0000*/                   LDG.E.128 R4, [R2.64] ;
.L_outer:
        /*0010*/                   LDS.64 R8, [R3] ;
.L_inner:
        /*0020*/                   HMMA.16816.F32 R24, R12.reuse, R4, RZ ;
        /*0030*/                   HMMA.16816.F32 R28, R12.reuse, R4, RZ ;
        /*0040*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0050*/              @!P0 BRA `(.L_inner) ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/               @P1 BRA `(.L_outer) ;
        /*0080*/               @P2 BRA `(.L_rare) ;
.L_back:
        /*0090*/                   STL [R1], R5 ;
        /*00a0*/                   STG.E.64 [R2.64], R8 ;
        /*00b0*/                   EXIT ;
.L_rare:
        /*00c0*/                   MUFU.RCP R3, R3 ;
        /*00d0*/                   BRA `(.L_back);
.L_end:
        /*00e0*/                   BRA `(.L_end);
\t.section\t.nv.shared.k,"aw",@nobits
\t.zero\t\t2048
"""
PRODUCT = """graph @g(%x: f16[256,512], %w: f16[512,256]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""


def _kernel() -> sass.Sass:
    return parsed(NESTED)["k"]


def test_what_a_kernel_takes_is_read():
    code = code_of(_kernel(), 1000)
    assert (code.registers, code.stack, code.shared, code.spills) == (40, 16, 3048, 1)
    assert code.per_product == 2 and code.barriers == 1


def test_loops_are_natural_loops():
    kernel = _kernel()
    assert [sorted(loop.body) for loop in kernel.loops] == [[*range(1, 8)], [2, 3, 4, 5]]
    assert kernel.places == [-1, 0, 1, 1, 1, 1, 0, 0, -1, -1, -1, -1, -1, -1, -2]


def test_executions_add_up_to_what_was_counted():
    counted = {"load 16": 4, "shared load 8": 12, "product": 120, "barrier": 12, "store 8": 4}
    sample = Sample(4, executions=Counter(counted))
    found = executions(_kernel(), sample)
    assert found == pytest.approx({-1: 4, 0: 12, 1: 60})


def test_warps_that_copy_alone_do_not_do_what_others_do():
    """What is outside loops is executed by as many warps as the counts say."""
    counted = {"load 16": 4, "shared load 8": 12, "product": 120, "barrier": 12, "store 8": 4}
    sample = Sample(8, executions=Counter(counted), is_specialised=True)
    assert executions(_kernel(), sample) == pytest.approx({-1: 4, 0: 12, 1: 60})


@needs_c
@needs_nvcc
@needs_nvdisasm
def test_copies_of_boxes_are_counted():
    """Four blocks of a cluster, which each read a quarter of the depth: two slices of 64."""
    text = """graph @g(%x: f16[64,512]) -> ? {
  const %w : f16[512,32] = random(seed=1)
  %y = MatMul(%x, %w)
  return %y
}"""
    (kernel,) = inspected(grouped(text, GroupTile(64, 32, 64, 32, 32, 4, parts=4)), HOPPER)
    assert kernel.prediction is not None and kernel.sample is not None
    assert kernel.sample.remote_bytes == 4 * 64 * 32  # a quarter of the sums of each of four
    assert kernel.sample.group_products["f16"] == 64 * 32 * 128
    assert kernel.sample.moved >= 2 * (64 + 32) * 128
    # Half of the eight warps bring boxes: they meet the cluster at the beginning, the others also
    # when sums are there and when they have been read. Waiting counts once, however long it takes.
    assert kernel.sample.meetings == (4 + 4 * 3) / 8


def test_reserved_shared_memory_is_not_the_kernels():
    more = '\t.section\t.nv.shared.reserved.0,"aw",@nobits\n\t.zero\t\t0\n'
    assert parsed(NESTED + more)["k"].shared == 1024


@pytest.mark.parametrize(
    ("ptx", "opcode"),
    [
        ("ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];", "LDG.E.128.CONSTANT"),
        ("@%p1 ld.shared.u16 %rs1, [%r1];", "LDS.U16"),
        ("st.shared.v2.b32 [%r1], {%r2, %r3};", "STS.64"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;", "LDGSTS.E.BYPASS.128"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];", "LDSM.16.M88.4"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1};", "HMMA.16816.F32"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1};", "HGMMA.64x64x16.F32"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global [%r1], [%rd1], [%r2];", "UTMALDG.2D"),
        ("ex2.approx.ftz.f32 %f1, %f2;", "MUFU.EX2"),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", "FFMA"),
        ("bar.sync 0;", "BAR.SYNC.DEFER_BLOCKING"),
        ("shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;", "SHFL.BFLY"),
        ("add.s32 %r1, %r2, %r3;", "IADD3"),
    ],
)
def test_instructions_are_of_one_kind_in_ptx_and_machine_code(ptx, opcode):
    assert kind_of_ptx(ptx) == kind_of_sass(Instruction(0, "", opcode, ""))


def test_occupancy():
    """Of CUDA's occupancy calculator."""
    a100, hopper = machine("sm_80"), machine("sm_90a")
    assert resident(a100, 256, 32, 0) == 8  # by threads
    assert resident(a100, 256, 96, 0) == 2  # by registers: 96 * 32 of 24 warps at most
    assert resident(a100, 128, 33, 0) == 12  # 40 as they are allocated
    assert resident(a100, 32, 16, 0) == 32  # by blocks
    assert resident(a100, 128, 64, 80 * 1024) == 2  # with 1 KiB of each for the system
    assert resident(hopper, 384, 166, 225 * 1024) == 1


def test_what_bounds_a_kernel():
    sample = Sample(4, executions=Counter({"product": 80000}))
    sample.products["f16"] = 80000 * 2048
    times = [
        predicted(_kernel(), sample, Launched(108 * n, 128, 0, 1 << 20, 1 << 20), machine("sm_80"))
        for n in (1, 2, 100)
    ]
    assert all(t.bound == "matrix cores" for t in times) and times[0].even == 1
    assert times[0].seconds < times[1].seconds < times[2].seconds
    clocks = 80000 * 2048 / 2 / 512  # words of two factors
    assert times[0].seconds == pytest.approx(clocks / 1.41e9, rel=0.3)
    uneven = predicted(_kernel(), sample, Launched(109, 128, 0, 1, 1), machine("sm_80"))
    assert uneven.bound == "waves" and uneven.even == pytest.approx(109 / 216)
    sample.moved = 1 << 30
    most = predicted(_kernel(), sample, Launched(108, 128, 0, 64 << 30, 0), machine("sm_80"))
    assert most.bound == "memory" and most.bytes == 64 << 30
    small = predicted(_kernel(), Sample(1), Launched(1, 32, 0, 0, 0), machine("sm_80"))
    assert small.bound == "launch"


def test_assumptions_have_sources():
    names = [a.name for a in figures.ASSUMPTIONS]
    assert len(set(names)) == len(names) and all(a.unit and a.source for a in figures.ASSUMPTIONS)
    assert figures.figures("sm_86")["double"] == 32 and figures.figures("sm_120")["double"] == 64


@needs_c
@needs_nvcc
@needs_nvdisasm
@pytest.mark.parametrize("arch", ARCHS)
def test_products_are_counted(arch):
    source = emit(program_for(graph_of(PRODUCT), "cuda", arch=arch))
    (kernel,) = inspected(source, arch)
    products = {**kernel.sample.products, **kernel.sample.group_products}
    (step,) = kernel.steps
    assert products["f16"] * step.grid == 256 * 256 * 512
    assert kernel.code.spills == 0 and kernel.sample.wavefronts == kernel.sample.least_wavefronts
    assert kernel.prediction.wide_loads == 1.0
    assert 1e-6 < kernel.prediction.seconds < 1e-4
    (entry,) = json.loads(json.dumps(data([kernel])))
    assert entry["predicted"]["bound"] == kernel.prediction.bound and entry["registers"] > 0
    assert kernel.prediction.bound in text([kernel], arch)


@needs_c
@needs_nvcc
def test_blocks_that_are_sampled_stand_for_all(monkeypatch):
    """Of causal attention each block of rows does more than the one before. Blocks that all run at
    once take as long as the slowest."""
    source = emit(
        program_for(graph_of(attention_of("f16", 2, 256, 256, 16, "is_causal=1")), "cuda")
    )
    (step,), ptx = source.steps, machine_code(source.text, "sm_80", "ptx").decode()
    gpu = replace(machine("sm_80"), multiprocessors=1)
    (found,) = samples(source, ptx, gpu).values()
    (slowest,) = samples(source, ptx, machine("sm_80")).values()
    every: list[Sample] = []
    monkeypatch.setattr(
        sample, "of_grid", lambda grid, _, run: every.extend(map(run, range(grid))) or every[0]
    )
    samples(source, ptx, gpu)
    wanted = mean(every)
    assert len(every) == step.grid > 4
    assert slowest.instructions == max(block.instructions for block in every)
    assert slowest.instructions > 1.2 * wanted.instructions
    assert found.instructions == pytest.approx(wanted.instructions, rel=0.02)
    assert found.products["f16"] == wanted.products["f16"]


@needs_c
@needs_nvcc
@needs_nvdisasm
def test_open_sizes_are_the_largest():
    program = open_program(open_graph("(%x: f32[N,S,64]) -> ? {} { %r = Softmax(%x)"))
    source = emit(program)
    (kernel,) = inspected(source, "sm_80")
    assert kernel.prediction is not None and kernel.steps[0].grid > 1


@needs_nvcc
@needs_nvdisasm
@pytest.mark.suite(3)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", GRAPHS)
def test_hot_kernels_keep_to_their_budgets(name, arch):
    allowed = budgets()[f"{name}, {arch}"]
    found = taken(name, arch)
    assert found.keys() == allowed.keys()
    for kernel, code in found.items():
        budget = allowed[kernel]
        assert code["spills"] <= budget["spills"] == 0
        assert code["shared"] <= budget["shared"]
        assert code["registers"] <= budget["registers"] + 4  # compilers differ a little
        if budget["per_product"] is not None:
            assert code["per_product"] <= 1.03 * budget["per_product"]


@needs_c
@needs_nvcc
@needs_nvdisasm
def test_inspect_machine_code(capsys):
    pins = ["inspect", DIGITS, "--dim", "N=1", "--target", "cuda", "--machine-code"]
    assert main(pins) == 0
    out = capsys.readouterr().out
    assert "machine code for sm_80" in out and "registers  spills" in out
    assert main([*pins, "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["programs"][0]["machine_code"]
    assert all(np.isfinite(k["predicted"]["seconds"]) and k["spills"] == 0 for k in kernels)


def test_what_is_missing_is_said_before_anything_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    with pytest.raises(UnsupportedError, match="nvdisasm, .*was not found: pip install"):
        disassembled(b"")
    # Not even the model is read: there is none of this name.
    assert main(["inspect", "none.onnx", "--target", "cuda", "--machine-code"]) == 2
    assert "nvdisasm" in capsys.readouterr().err
