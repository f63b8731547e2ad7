"""One library with code for several processors: which it takes, under emulators of some."""

import re
import subprocess
from pathlib import Path

import pytest
from installed import needs

from graphc.backends.llvm_cpu.processors import ARCHITECTURES
from graphc.backends.llvm_cpu.processors.detection import AARCH64_LINUX, X86
from graphc.cli import main as cli
from graphc.errors import ModelError, UnsupportedError
from graphc.targets.cpu import Cpu

DIGITS = Path(__file__).parents[3] / "models" / "digits_cnn.onnx"
PROGRAM = """#include <stdio.h>
#include "net.h"
int main(void) {
  static float x[NET_INPUT0_ELEMENTS], y[NET_OUTPUT0_ELEMENTS];
  const void *inputs[] = {x};
  void *outputs[] = {y};
  for (int n = 0; n < NET_INPUT0_ELEMENTS; n++) x[n] = n % 7 * 0.1f;
  net_context *context = net_create(1);
  const char *processor = net_processor();
  int status = net_run(context, inputs, outputs);
  printf("%s %d %.3f %s", processor ? processor : "none", status, y[0], net_error(context));
  net_destroy(context);
}
"""


X86_64 = needs("qemu-x86_64", "x86_64-linux-gnu-gcc")
AARCH64 = needs("qemu-aarch64", "aarch64-linux-gnu-gcc")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Makes, once, a program around a library for several processors."""
    made = {}

    def make(triple, levels, suffix):
        if (triple, suffix) not in made:
            folder = tmp_path_factory.mktemp("dispatch")
            library, program = folder / f"net{suffix}", folder / "program"
            options = ["--dim", "N=1", "--triple", triple, "--mcpu", levels, "-o", str(library)]
            assert cli(["compile", str(DIGITS), *options]) == 0
            (folder / "main.c").write_text(PROGRAM)
            linked = ["-static", "net.a"] if suffix == ".a" else ["net.so", f"-Wl,-rpath,{folder}"]
            command = [f"{triple}-gcc", "main.c", *linked, "-lm", "-pthread", "-o", "program"]
            subprocess.run(command, cwd=folder, check=True)
            made[triple, suffix] = program
        return made[triple, suffix]

    return make


@pytest.mark.parametrize("cpu, level", [
    ("Nehalem", "x86-64-v2"), ("Denverton", "x86-64-v2"), ("Haswell", "x86-64-v3"),
    ("core2duo", "none"),
])  # fmt: skip
@pytest.mark.parametrize("suffix", [".so", ".a"])
@X86_64
def test_the_greatest_level_of_x86(programs, cpu, level, suffix):
    levels = "x86-64-v4,x86-64-v2,x86-64-v3"
    command = ["qemu-x86_64", "-cpu", cpu, programs("x86_64-linux-gnu", levels, suffix)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told == ([level, "0", "-0.438"] if level != "none" else ["none", "-1", "0.000",
                                                                    *told[3:]])  # fmt: skip


@pytest.mark.parametrize("cpu, level", [("cortex-a53", "neon"), ("cortex-a76", "dotprod")])
@AARCH64
def test_the_greatest_level_of_aarch64(programs, cpu, level):
    program = programs("aarch64-linux-gnu", "neon,dotprod,bf16", ".a")
    command = ["qemu-aarch64", "-cpu", cpu, program]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told == [level, "0", "-0.438"]


@needs("cc", "nm")
def test_others_see_the_functions_of_the_model_alone(tmp_path):
    library = tmp_path / "net.so"
    levels = ["--mcpu", "x86-64-v2,x86-64-v3"]
    triple = ["--triple", "x86_64-linux-gnu"]
    assert cli(["compile", str(DIGITS), "--dim", "N=1", *triple, *levels, "-o", str(library)]) == 0
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    parts = ("create", "destroy", "error", "place", "run", "processor")
    assert names == {f"net_{part}" for part in parts}
    assert "of x86-64-v2, x86-64-v3: the greatest" in (tmp_path / "net.h").read_text()


@pytest.mark.parametrize("architecture, detection", [("x86_64", X86), ("aarch64", AARCH64_LINUX)])
def test_every_level_can_be_told(architecture, detection):
    """And each asks for more than the one before it, or for other instructions."""
    levels = ARCHITECTURES[architecture].levels
    asked = [detection.masks(level) for level in levels.values()]
    assert len({tuple(sorted(masks.items())) for masks in asked}) == len(levels)
    for level, masks in zip(levels.values(), asked):
        count = sum(mask.bit_count() for mask in masks.values())
        kept = detection.states.get(level.vector_bits, 0).bit_count()
        assert count == len(level.features - detection.always) + kept


def test_registers_of_512_bits_are_the_systems_to_keep():
    """XCR0: SSE, AVX, the masks, the upper halves, and the second sixteen (Intel, 13.3)."""
    assert X86.masks(ARCHITECTURES["x86_64"].levels["x86-64-v4"])[0] == 0b11100110
    assert X86.masks(ARCHITECTURES["x86_64"].levels["x86-64-v3"])[0] == 0b110
    assert 0 not in X86.masks(ARCHITECTURES["x86_64"].levels["x86-64-v2"])


@pytest.mark.parametrize("triple, mcpu, error, told", [
    ("x86_64-linux-gnu", "haswell,x86-64-v3", ModelError, "of different levels"),
    ("x86_64-linux-gnu", "haswell,", ModelError, "an empty name"),
    ("x86_64-linux-gnu", "haswell,486", ModelError, "no level or CPU of x86_64"),
    ("riscv64-linux-gnu", "rv64gc,rv64gcv", UnsupportedError, "found riscv64-linux-gnu"),
    ("arm64-apple-macos", "apple-m1,apple-m2", UnsupportedError, "needs x86-64, or AArch64"),
])  # fmt: skip
def test_processors_that_are_not_told_apart(triple, mcpu, error, told):
    with pytest.raises(error, match=re.escape(told)):
        Cpu(triple=triple, mcpu=mcpu)


def test_what_several_processors_do_not_make(tmp_path, capsys):
    levels = ["--triple", "x86_64-linux-gnu", "--mcpu", "x86-64-v2,x86-64-v3"]
    assert cli(["compile", str(DIGITS), "--dim", "N=1", *levels, "-o", str(tmp_path / "x.o")]) == 2
    assert "needs .so or .a" in capsys.readouterr().err
    assert cli(["run", str(DIGITS), "--dim", "N=1", *levels]) == 2
    assert "one processor is needed" in capsys.readouterr().err
