"""Programs compiled for an emulated board and run there; their outputs brought back.

The image reads its inputs from files and writes its outputs to files, by semihosting; the model's
code is the bundle's. The stack below the call is painted before and scanned after, which tells how
much the run took.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphc.backends.cfamily.calls import shaped
from graphc.backends.micro_c.boards import Board, linker_script, resource
from graphc.backends.micro_c.bundle import BundleOptions, code_files, model_of, write_files
from graphc.backends.micro_c.host import HOOKS, host_options
from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.traces import Trace, read_traces
from graphc.errors import InternalError, UnsupportedError
from graphc.ir.program import Program

TIMEOUT = 1800  # seconds of emulation


@dataclass
class BoardRun:
    """What a run gave: outputs, bytes of stack that it took, and the trace if it was asked for."""

    outputs: list[np.ndarray]
    stack: int
    traces: list[Trace] = field(default_factory=list)


def run_on_board(
    program: Program, inputs: Sequence[np.ndarray], board: Board,
    options: BundleOptions | None = None, traced: bool = False, flags: Sequence[str] = (),
) -> BoardRun:  # fmt: skip
    """Compiles a program for a board, with -O2 and then `flags`, and runs it there once.

    UnsupportedError if the compiler or the emulator is missing, or the program does not fit;
    InternalError if it is rejected, faults, or gives a status other than OK.
    """
    check_tools(board)
    model = model_of(program, host_options(options))
    with tempfile.TemporaryDirectory(prefix="graphc-board-") as name:
        folder = Path(name)
        prepare(model, board, folder, inputs, [*(HOOKS if traced else ()), *flags])
        printed = emulate(board, folder)
        outputs = [
            np.fromfile(folder / f"out{n}.bin", t.type.dtype.np)
            for n, t in enumerate(model.outputs)
        ]
        counts = tuple(map(int, np.fromfile(folder / "sizes.bin", np.int64))) if model.sizes else ()
    outputs = shaped(program, outputs, counts)
    return BoardRun(outputs, number(printed, "stack"), read_traces(printed))


def prepare(
    model: Model, board: Board, folder: Path, inputs: Sequence[np.ndarray], flags: Sequence[str]
) -> None:
    """Makes an image of a model, and the files that it reads its inputs from."""
    write_image(model, board, folder, _main(model))
    compile_image(model, board, folder, flags)
    for n, array in enumerate(inputs):
        np.ascontiguousarray(array).tofile(folder / f"in{n}.bin")


def check_tools(board: Board) -> None:
    """UnsupportedError if the compiler or the emulator is missing."""
    missing = board.tools.missing()
    if missing:
        raise UnsupportedError(
            f"--board {board.name}: {' and '.join(missing)} not found; on Debian: apt install "
            + board.tools.packages
        )


def number(printed: str, name: str) -> int:
    """The hexadecimal number that follows a name at the start of a line."""
    for line in printed.splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1], 16)
    raise InternalError(f"the board did not tell its {name}: {printed[-500:]}")


# ---------------------------------------------------------------- the image

MAIN = """\
#include "board.h"
#include "model.h"

static uint64_t arena[MODEL_ARENA_SIZE / 8 + 3];
{buffers}

#ifdef MODEL_PROFILE
/* A read of these tells a plugin of the emulator which layer begins or ends; of the last two, the
 * run. */
const volatile uint8_t marks[2 * MODEL_LAYERS + 2] = {{0}};
#define MARK_RUN(end) ((void)marks[2 * MODEL_LAYERS + (end)])

void model_profile(int layer, const char *name, int end)
{{
    (void)name;
    (void)marks[2 * layer + end];
}}
#else
#define MARK_RUN(end) ((void)0)
#endif

#ifdef MODEL_TRACE
static void start_line(const char *kind, int layer)
{{
    char number[12];
    int at = 11;
    unsigned rest = layer < 0 ? 0u - (unsigned)layer : (unsigned)layer;
    number[at] = 0;
    do {{
        number[--at] = (char)('0' + rest % 10u);
        rest /= 10u;
    }} while (rest != 0u);
    if (layer < 0) {{
        number[--at] = '-';
    }}
    say(kind);
    say(number + at);
    say(" ");
}}

void model_trace(int layer, const char *name, uint32_t crc)
{{
    start_line("trace ", layer);
    say_number(crc);
    say(" ");
    say(name);
    say("\\n");
}}

void model_summary(int layer, const char *name, float least, float most, float mean)
{{
    union {{ float numbers[3]; uint32_t bits[3]; }} u;
    int n;
    u.numbers[0] = least;
    u.numbers[1] = most;
    u.numbers[2] = mean;
    start_line("summary ", layer);
    for (n = 0; n < 3; ++n) {{
        say("0x");
        say_number(u.bits[n]);
        say(" ");
    }}
    say(name);
    say("\\n");
}}
#endif

static __attribute__((noinline)) model_status run(void)
{{
    model_status status;
    model_inputs inputs;
    model_outputs outputs;
    uint8_t *start = (uint8_t *)arena;
    start += (MODEL_ARENA_ALIGN - (uintptr_t)start % MODEL_ARENA_ALIGN) % MODEL_ARENA_ALIGN;
    {fields}
    MARK_RUN(0);
    status = model_run({sizes}&inputs, &outputs, start);
    MARK_RUN(1);
    return status;
}}

int board_main(void)
{{
    model_status status;
    {reads}
#ifndef MODEL_PROFILE
    paint_stack(); /* which takes longer than most models do */
#endif
    status = run();
    say("stack ");
    say_number(stack_used());
    say("\\n");
    if (status != MODEL_OK) {{
        say(model_status_string(status));
        return 2;
    }}
    {writes}
    return 0;
}}
"""


def write_image(model: Model, board: Board, folder: Path, main: str) -> None:
    """Writes what an image is made of."""
    write_files(code_files(model), folder)
    for name in ("startup.c", "board.h"):
        (folder / name).write_text(resource(name))
    (folder / "board.ld").write_text(linker_script(board))
    (folder / "main.c").write_text(main)


def _main(model: Model) -> str:
    buffers: list[str] = []
    fields: list[str] = []
    reads: list[str] = []
    writes: list[str] = []
    if model.sizes:
        buffers.append("static model_sizes sizes;")
        writes.append('if (!transfer("sizes.bin", 5, &sizes, sizeof sizes)) return 3;')
    for _, short, tensors, _ in model.sides():
        for n, t in enumerate(tensors):
            buffers.append(f"static {t.c_type} {short}{n}[{max(t.elements, 1)}];")
            fields.append(f"{short}puts.{t.field} = {short}{n};")
            mode, lines = (1, reads) if short == "in" else (5, writes)
            lines.append(f'if (!transfer("{short}{n}.bin", {mode}, {short}{n}, {t.nbytes}u)) '
                         "return 3;")  # fmt: skip
        if not tensors:
            fields.append(f"{short}puts.unused = 0;")
    return MAIN.format(
        buffers="\n".join(buffers), fields="\n    ".join(fields), reads="\n    ".join(reads),
        writes="\n    ".join(writes), sizes="&sizes, " if model.sizes else "",
    )  # fmt: skip


def compile_image(model: Model, board: Board, folder: Path, flags: Sequence[str]) -> None:
    """Compiles what was written to image.elf."""
    sources = [f for f in code_files(model) if f.endswith((".c", ".S"))]
    command = [
        *board.compiler(), "-O2", *flags, "-I.", "-ffunction-sections", "-Wl,--gc-sections",
        "-T", "board.ld", "startup.c", "main.c", *sources, "-lm", "-o", "image.elf",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "will not fit in region" in done.stderr or "overflowed by" in done.stderr:
        raise UnsupportedError(f"--board {board.name}: the model does not fit its memory")
    if done.returncode:
        raise InternalError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")


def emulate(board: Board, folder: Path, options: Sequence[str] = ()) -> str:
    """Runs the image, with more options of the emulator; what it printed."""
    command = [*board.emulator(), "image.elf", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    printed = done.stdout + done.stderr
    if done.returncode:
        raise InternalError(f"{board.name}: exit status {done.returncode}: {printed[-1000:]}")
    return printed
