"""How far the times of `graphc inspect --target c` are off: published times of boards, of code that
is public too.

    python benchmarks/board_times.py --v1.0 TINY_RESULTS_V1.0 --v1.1 TINY_RESULTS_V1.1 \
        --cmsis CMSIS_5_AT_51263182 --older-cmsis CMSIS_5_AT_b9667965 [NAME ...]

The first two are check-outs of github.com/mlcommons/tiny_results_v1.0 and v1.1, the others of
github.com/ARM-software/CMSIS_5 at the commits that the submissions name (in the older one,
arm_convolve_HWC_q7_fast_nonsquare.c replaced as Skymizer's README says). The code of submissions is
compiled with the options of theirs, run in QEMU on random inputs, and its instructions are counted
and weighed as those of bundles are (graphc/backends/micro_c/timing). The rows printed are those of
docs/board_times.md; published throughputs are read from the results' logs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from graphc.backends.micro_c.boards import BOARDS, linker_script, resource
from graphc.backends.micro_c.timing.chips import CHIPS, Cache, Chip
from graphc.backends.micro_c.timing.counting import run_counted
from graphc.backends.micro_c.timing.cycles import cycles_of
from graphc.backends.micro_c.timing.processors import PROCESSORS

# What its flash takes is not published: no wait, so that times are the least.
M467 = Chip("m467hj", "cortex-m4", 200, 0, Cache(1024, 8, 4))
MODELS = ("ad", "kws", "ic", "vww")
MARKS = '#include "board.h"\nconst volatile uint8_t marks[4] = {0};\n'
MAIN = """
static void fill(int8_t *to, unsigned long bytes) {
    unsigned seed = 12345u;
    while (bytes--) { seed = seed * 1664525u + 1013904223u; *to++ = (int8_t)(seed >> 24); }
}
int board_main(void) { PREPARE (void)marks[0]; RUN (void)marks[1]; (void)marks[3]; return 0; }
"""
TVM = """
#include "tvmgen_default.h"
#include <tvm/runtime/crt/stack_allocator.h>
static tvm_workspace_t workspace;
static uint8_t memory[WORKSPACE + 4096] __attribute__((aligned(16)));
void *TVMBackendAllocWorkspace(int a, int b, uint64_t bytes, int c, int d) {
    void *place = 0;
    StackMemoryManager_Allocate(&workspace, (unsigned)bytes, &place);
    return place;
}
int TVMBackendFreeWorkspace(int a, int b, void *place) {
    return StackMemoryManager_Free(&workspace, place);
}
void TVMPlatformAbort(tvm_crt_error_t error) { for (;;) {} }
void TVMLogf(const char *text, ...) {}
static int8_t in[40000] __attribute__((aligned(16))), out[4096] __attribute__((aligned(16)));
"""
ONNC = """
#include <stddef.h>
struct tensor { int8_t *data; size_t size; };
struct tensor onnc_get_input_tensor(void), onnc_main(void);
static char heap[400000] __attribute__((aligned(16)));
static char *heap_at = heap;
void *_sbrk(int bytes) { char *place = heap_at; heap_at += bytes; return place; }
"""
ROOTS = ("crt/include", "crt_config", "model/codegen/host/include")
HEADERS = ("CMSIS/Core/Include", "CMSIS/NN/Include", "CMSIS/DSP/Include")
NN = ("Activation", "BasicMath", "Concatenation", "Convolution", "FullyConnected", "NNSupport",
      "Pooling", "Reshape", "Softmax")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A submission's model: its names in the table, its code and its log, its board and chip, and
    whether it is of ONNC."""

    software: str
    model: str
    source: Path
    log: Path
    chip: str
    board: str
    optimisation: str = "-O2"
    onnc: bool = False


def cases(first: Path, second: Path) -> Iterator[Case]:
    """All that is public, by software."""
    octoml = first / "closed/OctoML"
    for kind, name in (("native", "TVM"), ("cmsis_nn", "TVM/CMSIS-NN")):
        for board, logged, chip, emulated in (
            ("NUCLEO_L4R5ZI", "NUCLEO_L4R5ZI", "stm32l4r5", "mps2-an386"),
            ("NRF5340DK", "NRF5340-DK", "nrf5340", "mps2-an505"),
        ):
            for model in MODELS:
                source = octoml / f"code/microtvm_{kind}" / board / model
                if source.exists():
                    log = octoml / f"results/microtvm_{kind}" / logged / model
                    yield Case(name, model, source, log, chip, emulated)
    for submitter, board, chip, level in (
        ("Skymizer", "NUCLEO_L4R5ZI-zephyr", "stm32l4r5", "-O2"),
        ("Skymizer", "NUCLEO_L4R5ZI-mbed_os", "stm32l4r5", "-O3"),
        ("Nuvoton", "NUMAKER_M467HJ-zephyr", M467.name, "-O2"),
    ):
        root = second / "closed" / submitter
        name = f"ONNC, {board.partition('-')[2].removesuffix('_os')}"
        for model in MODELS:
            code, log = root / "code" / board / model, root / "results" / board / model
            yield Case(name, model, code, log, chip, "mps2-an386", level, True)


def published(log: Path) -> float:
    """Inferences a second, of the last window."""
    text = (log / "performance/results.txt").read_text()
    return float(re.findall(r"Throughput\s*:\s*([\d.]+) inf", text)[-1])


def build(case: Case, folder: Path, cmsis: Path) -> Path:
    """The image of a submission's code."""
    board = BOARDS[case.board]
    for name in ("startup.c", "board.h"):
        (folder / name).write_text(resource(name))
    (folder / "board.ld").write_text(linker_script(board))
    (folder / "onnc_runtime.h").write_text("")
    files = _onnc(case, folder) if case.onnc else _tvm(case, folder)
    options = [*flags(case.board, case.optimisation, cmsis), f"-I{folder}",
               *(f"-I{case.source / part}" for part in ROOTS)]  # fmt: skip
    linked = []
    for file in files:
        linked.append(file if file.endswith(".c") else str(folder / "model.o"))
        if linked[-1] != file:
            command = [*options, "-fno-exceptions", "-fno-rtti", "-c", file, "-o", linked[-1]]
            subprocess.run(command, check=True)
    image = folder / "image.elf"
    command = [
        *options, "-std=gnu11", "-nostartfiles", "-Wl,--gc-sections",
        "-T", str(folder / "board.ld"), str(folder / "startup.c"), str(folder / "main.c"),
        *linked, str(library(case.board, case.optimisation, cmsis)), "--specs=nosys.specs", "-lm",
        "-o", str(image),
    ]  # fmt: skip
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return image


def flags(board: str, optimisation: str, cmsis: Path) -> list[str]:
    """The compiler and what all code is compiled with."""
    own = [flag for flag in BOARDS[board].compiler() if flag.startswith("-m")]
    headers = [f"-I{cmsis / part}" for part in HEADERS]
    return [BOARDS[board].tools.compiler, *own, optimisation, "-w", "-ffunction-sections",
            "-fdata-sections", *headers]  # fmt: skip


@cache
def library(board: str, optimisation: str, cmsis: Path) -> Path:
    """CMSIS-NN, compiled."""
    folder = Path(tempfile.mkdtemp(prefix="cmsis-nn-"))
    files = [str(f) for part in NN for f in cmsis.glob(f"CMSIS/NN/Source/{part}Functions/*.c")]
    compiler = flags(board, optimisation, cmsis.resolve())
    subprocess.run([*compiler, "-std=gnu11", "-c", *map(os.path.abspath, files)], cwd=folder,
                   check=True)  # fmt: skip
    archive = folder / "nn.a"
    tool = compiler[0].removesuffix("gcc") + "ar"
    subprocess.run([tool, "rcs", archive, *sorted(folder.glob("*.o"))], check=True)
    return archive


def _tvm(case: Case, folder: Path) -> list[str]:
    generated = case.source / "model/codegen/host"
    header = (generated / "include/tvmgen_default.h").read_text()
    told = re.findall(r"WORKSPACE_SIZE[ =](\d+)",
                      header + (case.source / "CMakeLists.txt").read_text())  # fmt: skip
    given = (
        re.search(r"inputs \{\s*void\* (\w+)", header),
        re.search(r"outputs \{\s*void\* (\w+)", header),
    )
    assert given[0] and given[1]
    floats = "float *f = (float *)in; int n; for (n = 0; n < 640; ++n) f[n] = (n * 37) % 100 - 50;"
    prepare = (
        f"fill(in, sizeof in); {floats if case.model == 'ad' else ''}"
        "StackMemoryManager_Init(&workspace, memory, sizeof memory);"
        f"struct tvmgen_default_inputs i = {{.{given[0][1]} = in}};"
        f"struct tvmgen_default_outputs o = {{.{given[1][1]} = out}};"
    )
    text = MARKS + f"#define WORKSPACE {max(map(int, told))}\n" + TVM + MAIN
    _write_main(folder, text, prepare, "tvmgen_default_run(&i, &o);")
    allocator = case.source / "crt/src/runtime/crt/memory/stack_allocator.c"
    return [*map(str, sorted((generated / "src").glob("*.c"))), str(allocator)]


def _onnc(case: Case, folder: Path) -> list[str]:
    prepare = "struct tensor t = onnc_get_input_tensor(); fill(t.data, t.size);"
    _write_main(folder, MARKS + ONNC + MAIN, prepare, "onnc_main();")
    return [str(case.source / f"{case.model}01_code/onnc_main.cpp")]


def _write_main(folder: Path, text: str, prepare: str, run: str) -> None:
    (folder / "main.c").write_text(text.replace("PREPARE", prepare).replace("RUN", run))


def row(case: Case, cmsis: Path) -> str:
    """A row of the table."""
    chip, board = {**CHIPS, M467.name: M467}[case.chip], BOARDS[case.board]
    with tempfile.TemporaryDirectory() as name:
        image = build(case, Path(name), cmsis)
        counted = run_counted(board, image, 1, chip)
    cycles = cycles_of(counted.layers[0], counted.code, PROCESSORS[board.cpu], chip)
    told, seconds = 1 / published(case.log), cycles.total / (chip.mhz * 1e6)
    return (
        f"| {case.software} | {case.model} | {chip.name} | {cycles.instructions / 1e6:.3g} M "
        f"| {cycles.total / 1e6:.3g} M | {seconds * 1e3:.3g} ms | {told * 1e3:.3g} ms "
        f"| {100 * (seconds / told - 1):+.1f}% |"
    )


def main() -> None:
    """Prints a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--v1.0", "--v1.1", "--cmsis", "--older-cmsis"):
        parser.add_argument(name, type=Path, required=True, dest=re.sub(r"\W", "_", name[2:]))
    parser.add_argument("names", nargs="*", help="of software or chips; by default all")
    args = parser.parse_args()
    for case in cases(args.v1_0, args.v1_1):
        if not args.names or {case.software, case.chip} & set(args.names):
            print(row(case, args.older_cmsis if case.onnc else args.cmsis), flush=True)


if __name__ == "__main__":
    main()
