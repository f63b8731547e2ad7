"""Times on microcontrollers: the arithmetic of pipelines, counts in QEMU, and estimates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from bundles import float_model, micro_program
from onnx import helper

from graphc.backends.micro_c import BundleOptions
from graphc.backends.micro_c.boards import ARM, RISCV
from graphc.backends.micro_c.timing import measure
from graphc.backends.micro_c.timing.chips import CHIPS, Cache, Chip
from graphc.backends.micro_c.timing.counting import Block, Counts, host_compiler, read_counts
from graphc.backends.micro_c.timing.cycles import Cycles, cycles_of
from graphc.backends.micro_c.timing.disassembly import kind_of, read_disassembly
from graphc.backends.micro_c.timing.processors import PROCESSORS
from graphc.backends.micro_c.timing.report import OUTSIDE, bounds, data, text
from graphc.errors import InternalError, UnsupportedError
from graphc.targets import micro_c as target

LOOP = """
image.elf:     file format elf32-littlearm

00000100 <f>:
     100:\t6803      \tldr\tr3, [r0, #0]
     102:\t6844      \tldr\tr4, [r0, #4]
     104:\tfb23 5504 \tsmlad\tr5, r3, r4, r5
     108:\t3001      \tadds\tr0, #1
     10a:\t4288      \tcmp\tr0, r1
     10c:\td1f8      \tbne.n\t100 <f>
     10e:\te8bd 87f0 \tldmia.w\tsp!, {r4, r5, r6, r7, r8, r9, sl, pc}
     112:\t0000      \t.short\t0x0000
"""
CODE = read_disassembly(LOOP)
ROUNDS = Counts([Block(0x100, 0x10C, 10, 9), Block(0x10E, 0x10E, 1, 1)])
needs_arm = pytest.mark.skipif(
    bool(ARM.missing()) or host_compiler() is None, reason=f"{ARM.missing()} not installed"
)
needs_riscv = pytest.mark.skipif(
    bool(RISCV.missing()) or host_compiler() is None, reason=f"{RISCV.missing()} not installed"
)


def test_instructions_are_read():
    assert [i.kind for i in CODE.values()] == [
        "load", "load", "mac", "alu", "alu", "branch", "load multiple",
    ]  # fmt: skip
    mac, popped = CODE[0x104], CODE[0x10E]
    assert (mac.size, mac.writes, mac.reads) == (4, {"r5"}, {"r3", "r4", "r5"})
    assert popped.count == 8 and popped.jumps


@pytest.mark.parametrize(
    ("mnemonic", "operands", "kind"),
    [
        ("smlad", "r0, r1, r2, r0", "mac"), ("smull", "r0, r1, r2, r3", "long mul"),
        ("sdiv", "r0, r1, r2", "div"), ("muls", "r0, r1", "mul"),
        ("ldrsb.w", "r1, [r2, #1]", "load"),
        ("vldr", "s0, [r0]", "load"), ("vstr", "s0, [r0]", "store"), ("bhi.n", "1c2", "branch"),
        ("vfma.f32", "s0, s1, s2", "float mac"), ("vmul.f32", "s0, s1, s2", "float mul"),
        ("vdiv.f32", "s0, s1, s2", "float div"), ("vadd.f32", "s0, s1, s2", "float"),
        ("vldrb.s8", "q0, [r0]", "vector load"), ("vstrw.32", "q0, [r0]", "vector store"),
        ("vmlava.s8", "r0, q1, q2", "vector mac"), ("vfma.f32", "q0, q1, r2", "vector mac"),
        ("vadd.i32", "q0, q1, q2", "vector"), ("le", "lr, 10c", "loop end"), ("bl", "1c0", "call"),
        ("bics.w", "r0, r1", "alu"), ("lsls", "r0, r1, #2", "alu"), ("bx", "lr", "jump"),
        ("push", "{r4, lr}", "store multiple"), ("pop", "{r4, pc}", "load multiple"),
    ],
)  # fmt: skip
def test_classes_of_arm(mnemonic, operands, kind):
    assert kind_of(mnemonic, operands, riscv=False) == kind


@pytest.mark.parametrize(
    ("mnemonic", "kind"),
    [("lw", "load"), ("sb", "store"), ("mulh", "mul"), ("remu", "div"), ("bnez", "branch"),
     ("ret", "jump"), ("jal", "call"), ("addi", "alu"), ("blt", "branch")],
)  # fmt: skip
def test_classes_of_riscv(mnemonic, kind):
    assert kind_of(mnemonic, "a0, a1", riscv=True) == kind


def test_cycles_of_a_loop():
    """On a Cortex-M4 two loads in a row take 2 + 1 cycles, a taken branch 1 + 2, a list 1 + 8."""
    found = cycles_of(ROUNDS, CODE, PROCESSORS["cortex-m4"], None)
    assert found.instructions == 61 and found.classes["load"] == 20
    assert found.pipeline == 10 * (2 + 1 + 1 + 1 + 1 + 1) + 9 * 2 + 9 + 3
    plain = cycles_of(ROUNDS, CODE, PROCESSORS["cortex-m0plus"], None)
    assert plain.pipeline == 10 * (2 + 2 + 1 + 1 + 1 + 1) + 9 * 1 + 9 + 1


def test_two_instructions_in_a_cycle():
    """A Cortex-M7 pairs neither two loads nor what waits for another."""
    block = [CODE[at] for at in (0x100, 0x102, 0x104, 0x108, 0x10A, 0x10C)]
    processor = PROCESSORS["cortex-m7"]
    assert processor.block(block[:2]) == 2
    assert processor.block(block[:3]) == 4  # the product waits for the second load
    assert processor.block(block[2:4]) == 1
    assert processor.block(block[3:5]) == 2
    assert processor.left(block[-1], 10, 9) == processor.mispredicted


def test_misses_wait_for_flash():
    chip = Chip("x", "cortex-m4", 100, 5, Cache(64, 8, 2))
    counts = Counts([], fetches=3, reads=4)
    assert cycles_of(counts, CODE, PROCESSORS["cortex-m4"], chip).waiting == 35
    assert cycles_of(counts, CODE, PROCESSORS["cortex-m4"], None).waiting == 0


def test_chips_are_of_known_processors():
    assert set(CHIPS) == set(target.CHIPS)
    assert {chip.cpu for chip in CHIPS.values()} <= set(PROCESSORS)
    assert set(PROCESSORS) == set(target.CPUS) - {"generic"}


def test_counts_are_read():
    layer, rest = read_counts("block 0 256 268 10 9\nblock 1 2 2 1 0\nmisses 0 5 6\n", 1)
    assert layer == Counts([Block(256, 268, 10, 9)], 5, 6)
    assert rest == Counts([Block(2, 2, 1, 0)])


# ---------------------------------------------------------------- models


def product():
    random = np.random.default_rng(4)
    x = random.standard_normal((1, 64)).astype(np.float32)
    w = random.standard_normal((64, 32)).astype(np.float32)
    return float_model(helper.make_node("MatMul", ["x", "w"], ["y"]), x, {"w": w}), [x]


def timing(cpu: str, chip: Chip | None = None) -> measure.Timing:
    model, feeds = product()
    program = micro_program(model, cpu)
    return measure.timing_of(program, feeds, BundleOptions(cpu=cpu), 100, chip)


@pytest.fixture(scope="module")
def counted():
    return timing("cortex-m4", CHIPS["stm32l4r5"])


@needs_arm
def test_counted_on_a_board(counted):
    found = counted
    layer, outside = found.layers
    assert "QEMU" in found.how and not found.reason and outside.name == OUTSIDE
    classes = layer.cycles.classes
    products = classes.get("float mul", 0) + classes.get("float mac", 0)
    assert products == 64 * 32
    loads = classes["load"] + classes.get("load multiple", 0)
    assert loads >= 64 * 32 / 16  # weights, of which an instruction loads sixteen at most
    lines = 64 * 32 * 4 / 8  # of 64 bits, each of which is read once and waited for
    assert lines * 5 <= layer.cycles.waiting < 1.5 * lines * 5
    assert layer.cycles.pipeline > layer.cycles.instructions
    assert outside.cycles.instructions < 300
    assert found.code and 100 < found.code < 2000


@needs_arm
def test_counts_are_the_same_again(counted):
    again = timing("cortex-m4", CHIPS["stm32l4r5"])
    assert [x.cycles for x in again.layers] == [x.cycles for x in counted.layers]


@needs_arm
def test_each_read_of_data_waits_where_nothing_keeps_it():
    waiting = timing("cortex-m4", CHIPS["nrf52840"]).layers[0].cycles.waiting
    assert 64 * 32 * 2 <= waiting < 1.5 * 64 * 32 * 2


@needs_arm
@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m7", "cortex-m55"])
def test_other_processors(cpu):
    found = timing(cpu)
    assert not found.reason and found.cycles > 64 * 32 / 4
    assert sum(x.cycles.waiting for x in found.layers) == 0
    if cpu == "cortex-m55":
        assert found.layers[0].cycles.classes["vector mac"] == 64 * 32 / 4


@needs_riscv
def test_riscv():
    found = timing("rv32")
    assert not found.reason and found.layers[0].cycles.classes["mul"] > 0


@pytest.fixture
def bare(monkeypatch):
    """A machine without cross compilers and emulators."""
    known = shutil.which
    hidden = {ARM.compiler, ARM.emulator, RISCV.compiler, RISCV.emulator}

    def which(name, *args, **options):
        return None if name in hidden else known(name, *args, **options)

    monkeypatch.setattr(shutil, "which", which)


@pytest.mark.parametrize("cpu", list(PROCESSORS))
def test_estimated_without_tools(bare, cpu):
    found = timing(cpu)
    assert "not found" in found.reason and found.code is None
    assert found.error == measure.ESTIMATED and found.layers[0].cycles.total >= 64 * 32 / 4
    told = text(found)
    assert "estimate" in told and "not found" in told and "code:" not in told


@needs_arm
def test_estimates_are_as_good_as_told(monkeypatch, counted):
    cycles = sum(layer.cycles.pipeline for layer in counted.layers)

    def fails(*_):
        raise InternalError("the board fell off the table")

    monkeypatch.setattr(measure, "run_counted", fails)
    estimated = timing("cortex-m4")
    assert "fell off" in estimated.reason
    assert cycles / (1 + measure.ESTIMATED) < estimated.cycles < cycles * (1 + measure.ESTIMATED)


def test_refusals():
    model, feeds = product()
    with pytest.raises(UnsupportedError, match="--cpu"):
        measure.timing_of(micro_program(model), feeds, BundleOptions(), 100)


def test_what_is_told():
    layers = [
        measure.LayerTime("conv", "tiles_0", Cycles(800, 900.0, 100.0, {"alu": 800})),
        measure.LayerTime(OUTSIDE, "", Cycles(10, 20.0, 0.0, {"alu": 10})),
    ]
    found = measure.Timing("cortex-m4", 100, layers, 0.25, "counted", chip=CHIPS["stm32l4r5"])
    assert bounds(found) == pytest.approx((1020 / 1.25 / 1e8, 1020 * 1.25 / 1e8))
    told = json.loads(json.dumps(data(found)))
    assert told["cycles"] == 1020 and told["counted"] and told["chip"] == "stm32l4r5"
    assert told["seconds"] == pytest.approx(10.2e-6)
    assert [x["layer"] for x in told["layers"]] == ["conv", None]
    assert told["layers"][0]["cycles_flash"] == 100
    assert "1.02 k cycles, 10.2 µs (8.16 µs to 12.8 µs)" in text(found)
    assert "--chip" not in text(found) and "and 1 more" in text(found, 1)


def test_the_table_of_boards_agrees_with_what_is_told():
    """Errors that are told cover those that were found on boards."""
    page = Path(__file__).parents[3] / "docs" / "board_times.md"
    cells = [[c.strip() for c in row.split("|")[1:-1]] for row in page.read_text().splitlines()]
    rows = [row for row in cells if len(row) > 2 and row[2] in CHIPS]
    errors = [abs(float(row[-1].rstrip("%"))) / 100 for row in rows]
    assert len(errors) >= 23 and len({(row[1], row[2]) for row in rows}) >= 10
    assert max(errors) <= min(PROCESSORS[c].error for c in ("cortex-m4", "cortex-m33"))
