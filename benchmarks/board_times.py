"""How far the times of `graphc inspect --target c` are off: published times of boards, of code that
is public too.

    python benchmarks/board_times.py --v1.0 TINY_RESULTS_V1.0 --v1.1 TINY_RESULTS_V1.1 \
        --cmsis CMSIS_5_AT_51263182 --older-cmsis CMSIS_5_AT_b9667965 --bakenn BAKENN \
        --coremark COREMARK [NAME ...]

The first two are check-outs of github.com/mlcommons/tiny_results_v1.0 and v1.1, the others of
github.com/ARM-software/CMSIS_5 at the commits that the submissions name (in the older one,
arm_convolve_HWC_q7_fast_nonsquare.c replaced as Skymizer's README says). The code of submissions is
compiled with the options of theirs, run in QEMU on random inputs, and its instructions are counted
and weighed as those of bundles are (graphc/backends/micro_c/timing). BAKENN is a check-out of
github.com/scienthoon/bakeNN at 68940e5, which makes C of its small models; they run once before, as
there. COREMARK is one of github.com/eembc/coremark. Rows without a path are left out. The table is
that of docs/board_times.md; published throughputs are read from the results' logs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from graphc.backends.micro_c.boards import BOARDS, linker_script, resource
from graphc.backends.micro_c.timing.chips import CHIPS, UNCACHED, Cache, Chip
from graphc.backends.micro_c.timing.counting import run_counted
from graphc.backends.micro_c.timing.cycles import cycles_of
from graphc.backends.micro_c.timing.processors import PROCESSORS

# What its flash takes is not published: no wait, so that times are the least.
M467 = Chip("m467hj", "cortex-m4", 200, 0, Cache(1024, 8, 4))
# Espressif's figure is of code in RAM, compiled with gcc 12.2 -O3 (its component coremark 1.1.0).
ESP32C3, COREMARKS = Chip("esp32c3", "rv32", 160, 0, UNCACHED), 409.249028
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
BAKENN = """
#include "bknn_m.h"
static int8_t in[64], out[64];
static uint8_t arena[64] __attribute__((aligned(16)));
#define infer() bknn_m_infer(BKNN_M_ARENA_SIZE ? arena : 0, in, out)
"""
COREMARK = """
#include "coremark.h"
volatile ee_s32 seed1_volatile = 0, seed2_volatile = 0, seed3_volatile = 0x66,
    seed4_volatile = 1, seed5_volatile = 0;
ee_u32 default_num_contexts = 1;
void start_time(void) { (void)marks[0]; }
void stop_time(void) { (void)marks[1]; (void)marks[3]; }
CORE_TICKS get_time(void) { return 1; }
secs_ret time_in_secs(CORE_TICKS ticks) { return 11; }
void portable_init(core_portable *p, int *argc, char *argv[]) { p->portable_id = 1; }
void portable_fini(core_portable *p) { p->portable_id = 0; }
int ee_printf(const char *format, ...) { return 0; }
void coremark_main(void);
int board_main(void) { coremark_main(); return 0; }
"""
PORT = {"HAS_FLOAT": 0, "HAS_TIME_H": 0, "USE_CLOCK": 0, "MEM_METHOD": "MEM_STATIC",
        "MAIN_HAS_NOARGC": 1}  # fmt: skip
GENERATE = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/src"]
import bakenn
from benchmarks.tflm_compare.model_fixtures import cmsis_mlp_graph
from tests.p0.model_fixtures import tiny_cnn_graph
graph, names = tiny_cnn_graph(), ("input", "conv.weight", "conv.bias", "conv.output")
graph = cmsis_mlp_graph() if sys.argv[3] == "fc" else replace(
    graph, ops=graph.ops[:1], outputs=("conv.output",),
    values={n: graph.values[n] for n in names},
    constants={n: graph.constants[n] for n in names if n in graph.constants},
)
target = bakenn.resolve_target("cortex-m4" if sys.argv[4] else "portable32")
bakenn.compile(graph, Path(sys.argv[2]), model_name="m", target=target,
    backend_options=bakenn.CBackendOptions(
        kernel_policy=bakenn.KernelPolicy("auto" if sys.argv[4] else "portable"),
        enable_cmsis_nn=bool(sys.argv[4]), target=target))
"""
ROOTS = ("crt/include", "crt_config", "model/codegen/host/include")
HEADERS = ("CMSIS/Core/Include", "CMSIS/NN/Include", "CMSIS/DSP/Include")
NN = ("Activation", "BasicMath", "Concatenation", "Convolution", "FullyConnected", "NNSupport",
      "Pooling", "Reshape", "Softmax")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model: its names in the table, its code, its published time in seconds, its chip and board,
    and how its code is found."""

    software: str
    model: str
    source: Path
    published: float
    chip: str
    board: str
    maker: str
    optimisation: str = "-O2"


def octoml(root: Path) -> Iterator[Case]:
    """Those of v1.0."""
    octoml = root / "closed/OctoML"
    for kind, name in (("native", "TVM"), ("cmsis_nn", "TVM/CMSIS-NN")):
        for board, logged, chip, emulated in (
            ("NUCLEO_L4R5ZI", "NUCLEO_L4R5ZI", "stm32l4r5", "mps2-an386"),
            ("NRF5340DK", "NRF5340-DK", "nrf5340", "mps2-an505"),
        ):
            for model in MODELS:
                source = octoml / f"code/microtvm_{kind}" / board / model
                if source.exists():
                    log = octoml / f"results/microtvm_{kind}" / logged / model
                    yield Case(name, model, source, published(log), chip, emulated, "tvm")


def skymizer(second: Path) -> Iterator[Case]:
    """Those of v1.1."""
    for submitter, board, chip, level in (
        ("Skymizer", "NUCLEO_L4R5ZI-zephyr", "stm32l4r5", "-O2"),
        ("Skymizer", "NUCLEO_L4R5ZI-mbed_os", "stm32l4r5", "-O3"),
        ("Nuvoton", "NUMAKER_M467HJ-zephyr", M467.name, "-O2"),
    ):
        root = second / "closed" / submitter
        name = f"ONNC, {board.partition('-')[2].removesuffix('_os')}"
        for model in MODELS:
            code, log = root / "code" / board / model, root / "results" / board / model
            yield Case(name, model, code, published(log), chip, "mps2-an386", "onnc", level)


def bakenn(root: Path) -> Iterator[Case]:
    """Those of BakeNN, whose cycles are told."""
    folder, mhz = root / "benchmarks/tflm_compare/results", CHIPS["nrf52840"].mhz
    with (folder / "iotlab_447626_direct_cmsis_fc.csv").open() as file:
        told = {row["implementation"]: int(row["median_cycles"]) for row in csv.DictReader(file)}
    conv = json.loads((folder / "iotlab_447609_conv.json").read_text())["implementations"]["bakenn"]
    for name, model, cycles in (
        ("BakeNN", "fc", told["bakenn_portable"]),
        ("BakeNN/CMSIS-NN", "fc", told["bakenn_direct_cmsis"]),
        ("BakeNN", "conv", conv["metrics"]["inference_median_cycles"]["value"]),
    ):
        yield Case(name, model, root, cycles / (mhz * 1e6), "nrf52840", "mps2-an386", "bakenn")


def coremark(root: Path) -> Iterator[Case]:
    """No model, but a check of the pipeline alone."""
    chip, board = ESP32C3.name, "riscv32-virt"
    yield Case("CoreMark", "one iteration", root, 1 / COREMARKS, chip, board, "coremark", "-O3")


def published(log: Path) -> float:
    """Seconds for an inference, of the last window."""
    text = (log / "performance/results.txt").read_text()
    return 1 / float(re.findall(r"Throughput\s*:\s*([\d.]+) inf", text)[-1])


def build(case: Case, folder: Path, cmsis: Path | None) -> Path:
    """The image of a submission's code."""
    board = BOARDS[case.board]
    for name in ("startup.c", "board.h"):
        (folder / name).write_text(resource(name))
    (folder / "board.ld").write_text(linker_script(board))
    (folder / "onnc_runtime.h").write_text("")
    files = {"onnc": _onnc, "tvm": _tvm, "bakenn": _bakenn, "coremark": _coremark}[case.maker](
        case, folder
    )
    options = [*flags(case.board, case.optimisation, cmsis), f"-I{folder}",
               *(f"-I{case.source / part}" for part in ROOTS),
               *(f"-I{path}" for path in (folder / "made").glob("**/Include")),
               f"-I{folder / 'made'}", "-DBAKENN_CMSIS_NN_BUILTIN_MEMORY"]  # fmt: skip
    libraries = [str(library(case.board, case.optimisation, cmsis))] if cmsis else []
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
        *linked, *libraries, *(board.tools.options or ["--specs=nosys.specs"]), "-lm",
        "-o", str(image),
    ]  # fmt: skip
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return image


def flags(board: str, optimisation: str, cmsis: Path | None) -> list[str]:
    """The compiler and what all code is compiled with."""
    own = [flag for flag in BOARDS[board].compiler() if flag.startswith("-m")]
    headers = [f"-I{cmsis / part}" for part in HEADERS] if cmsis else []
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


def _bakenn(case: Case, folder: Path) -> list[str]:
    made = folder / "made"
    how = "cmsis" if "CMSIS" in case.software else ""
    command = [sys.executable, "-c", GENERATE, str(case.source), str(made), case.model, how]
    subprocess.run(command, check=True)
    prepare = "for (unsigned n = 0; n < sizeof in; ++n) in[n] = BKNN_M_INPUT_ZERO_POINT; infer();"
    _write_main(folder, MARKS + BAKENN + MAIN, prepare, "infer();")
    return [str(file) for file in sorted(made.glob("**/*.c"))]


def _coremark(case: Case, folder: Path) -> list[str]:
    port = (case.source / "barebones/core_portme.h").read_text()
    for name, value in PORT.items():
        port = re.sub(rf"#define {name} \S+", f"#define {name} {value}", port)
    options = '#include <stddef.h>\n#define main coremark_main\n#define COMPILER_FLAGS ""\n'
    (folder / "core_portme.h").write_text(options + port)
    (folder / "main.c").write_text(MARKS + COREMARK)
    names = ("list_join", "main", "matrix", "state", "util")
    files = [folder / f"core_{name}.c" for name in names]
    for file in (*files, folder / "coremark.h"):
        file.write_text((case.source / file.name).read_text())
    return [str(file) for file in files]


def _write_main(folder: Path, text: str, prepare: str, run: str) -> None:
    (folder / "main.c").write_text(text.replace("PREPARE", prepare).replace("RUN", run))


def row(case: Case, cmsis: Path | None) -> str:
    """A row of the table."""
    chip = {**CHIPS, M467.name: M467, ESP32C3.name: ESP32C3}[case.chip]
    board = BOARDS[case.board]
    with tempfile.TemporaryDirectory() as name:
        image = build(case, Path(name), cmsis)
        counted = run_counted(board, image, 1, chip)
    cycles = cycles_of(counted.layers[0], counted.code, PROCESSORS[board.cpu], chip)
    told, seconds = case.published, cycles.total / (chip.mhz * 1e6)
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
    for name in ("--v1.0", "--v1.1", "--cmsis", "--older-cmsis", "--bakenn", "--coremark"):
        parser.add_argument(name, type=Path, dest=re.sub(r"\W", "_", name[2:]))
    parser.add_argument("names", nargs="*", help="of software or chips; by default all")
    args = parser.parse_args()
    for read, root, cmsis in (
        (octoml, args.v1_0, args.cmsis), (skymizer, args.v1_1, args.older_cmsis),
        (bakenn, args.bakenn, None), (coremark, args.coremark, None),
    ):  # fmt: skip
        for case in read(root) if root else ():
            if not args.names or {case.software, case.chip} & set(args.names):
                print(row(case, cmsis), flush=True)


if __name__ == "__main__":
    main()
