"""Bundles that train, compiled for an emulated board and run there: the state brought back.

The image reads the inputs and the target of each step from files, and writes the state to one.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.backends.micro_c.boards import Board
from graphc.backends.micro_c.bundle import BundleOptions, model_of
from graphc.backends.micro_c.emulator import (
    check_tools,
    compile_image,
    emulate,
    number,
    write_image,
)
from graphc.backends.micro_c.host import host_options
from graphc.backends.micro_c.joined import Training
from graphc.backends.micro_c.model import Model
from graphc.ir.program import Program

Batch = tuple[Sequence[np.ndarray], np.ndarray]
"""The inputs, and the target."""

MAIN = """\
#include "board.h"
#include "model.h"

static uint64_t arena[MODEL_ARENA_SIZE / 8 + 3];
static model_state state;
static {target} target[{elements}];
static float losses[{steps}];
{buffers}

/* Where instructions are counted from, and to. */
__attribute__((noinline)) void count_begin(void) {{ __asm__ volatile(""); }}
__attribute__((noinline)) void count_end(void) {{ __asm__ volatile(""); }}

static __attribute__((noinline)) model_status step(int number)
{{
    model_inputs inputs;
    model_status status;
    uint8_t *start = (uint8_t *)arena;
    start += (MODEL_ARENA_ALIGN - (uintptr_t)start % MODEL_ARENA_ALIGN) % MODEL_ARENA_ALIGN;
    {fields}
    count_begin();
    status = model_train_step(&inputs, target, {rate}f, losses + number, &state, start);
    count_end();
    return status;
}}

int board_main(void)
{{
    static const char *const files[][{columns}] = {{
{files}
    }};
    int n;
    model_train_init(&state);
    for (n = 0; n < {steps}; ++n) {{
        model_status status;
        {reads}
        paint_stack();
        status = step(n);
        if (status != MODEL_OK) {{
            say(model_status_string(status));
            return 2;
        }}
    }}
    say("stack ");
    say_number(stack_used());
    say("\\n");
    if (!transfer("state.bin", 5, &state, sizeof state)
        || !transfer("losses.bin", 5, losses, sizeof losses)) {{
        return 3;
    }}
    return 0;
}}
"""


@dataclass
class TrainedOnBoard:
    """The state by name, the loss of every step, bytes of stack that a step took, and, of the last
    step, the number of instructions, if they were counted."""

    state: dict[str, np.ndarray]
    losses: np.ndarray
    stack: int
    instructions: int = 0


def train_on_board(
    program: Program, training: Training, batches: Sequence[Batch], rate: float, board: Board,
    options: BundleOptions | None = None, flags: Sequence[str] = (), counter: str | None = None,
) -> TrainedOnBoard:  # fmt: skip
    """Takes a step for each batch on a board. `counter` is a plugin of QEMU that counts the
    instructions between the addresses `begin` and `end`, and prints `insns` and their number.

    UnsupportedError if the compiler or the emulator is missing, or the program does not fit;
    InternalError if it is rejected, faults, or gives a status other than OK.
    """
    check_tools(board)
    model = model_of(program, host_options(options, training))
    with tempfile.TemporaryDirectory(prefix="graphc-board-") as name:
        folder = Path(name)
        write_image(model, board, folder, _main(model, len(batches), rate))
        compile_image(model, board, folder, flags)
        for n, (inputs, target) in enumerate(batches):
            for k, array in enumerate((*inputs, target)):
                np.ascontiguousarray(array).tofile(folder / f"in{k}_{n}.bin")
        printed = emulate(board, folder, _counting(folder, counter) if counter else ())
        memory = np.fromfile(folder / "state.bin", np.uint8)
        losses = np.fromfile(folder / "losses.bin", np.float32)
    counted = [line.split()[1] for line in printed.splitlines() if line.startswith("insns ")]
    return TrainedOnBoard(
        model.state_of(memory), losses, number(printed, "stack"), int(counted[0]) if counted else 0
    )


def _counting(folder: Path, counter: str) -> list[str]:
    """Options of QEMU for a plugin that counts the instructions of a step."""
    listed = subprocess.run(["arm-none-eabi-nm", folder / "image.elf"], capture_output=True,
                            text=True, check=True)  # fmt: skip
    rows = [line.split() for line in listed.stdout.splitlines()]
    places = {row[2]: int(row[0], 16) & ~1 for row in rows if len(row) == 3}
    begin, end = places["count_begin"], places["count_end"]
    return ["-plugin", f"{counter},begin={begin:#x},end={end:#x}"]


def _main(model: Model, steps: int, rate: float) -> str:
    target = model.target
    assert target is not None
    tensors = [*model.inputs, target]
    places = [*(f"in{k}" for k in range(len(model.inputs))), "target"]
    return MAIN.format(
        target=target.c_type, elements=max(target.elements, 1), steps=steps, rate=float(rate),
        buffers="\n".join(f"static {t.c_type} {place}[{max(t.elements, 1)}];"
                          for t, place in zip(model.inputs, places)),
        fields="\n    ".join(f"inputs.{t.field} = {place};"
                             for t, place in zip(model.inputs, places)),
        columns=len(tensors),
        files="\n".join("        {" + ", ".join(f'"in{k}_{n}.bin"' for k in range(len(tensors)))
                        + "}," for n in range(steps)),
        reads="\n        ".join(
            f"if (!transfer(files[n][{k}], 1, {place}, {t.nbytes}u)) {{ return 3; }}"
            for k, (t, place) in enumerate(zip(tensors, places))
        ),
    )  # fmt: skip
