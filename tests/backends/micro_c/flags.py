"""Bundles compiled with any compiler and flags, and run in a process of their own.

What a program is linked with may change how its whole process computes (crtfastmath.o has
subnormals count as 0), so nothing is loaded into the tests' own. The image reads its inputs from
files and writes its outputs to files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphc.backends.micro_c.bundle import BundleOptions, code_files, model_of, write_files
from graphc.backends.micro_c.model import Model
from graphc.ir.program import Program

MAIN = """\
#include "net.h"
#include <stdio.h>

static double arena[NET_ARENA_SIZE / 8 + 3];
{buffers}

static int moved(const char *name, const char *mode, void *data, unsigned long bytes)
{{
    FILE *file = fopen(name, mode);
    const unsigned long done = file == 0 ? 0 :
        mode[0] == 'r' ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file);
    return file != 0 && fclose(file) == 0 && done == bytes;
}}

int main(void)
{{
    net_inputs inputs;
    net_outputs outputs;
    unsigned char *start = (unsigned char *)arena;
    int ok = 1;
    while ((uintptr_t)start % NET_ARENA_ALIGN != 0) {{
        ++start;
    }}
    inputs.{first} = 0;
    {fields}
    {reads}
    ok = ok && net_run(&inputs, &outputs, start) == NET_OK;
    {writes}
    return ok ? 0 : 1;
}}
"""


class Flagged:
    """A program's bundle in a folder, to be compiled with many flags."""

    def __init__(self, program: Program, folder: Path, options: BundleOptions | None = None):
        self.program, self.folder = program, folder
        self.model = model_of(program, options or BundleOptions(name="net"))
        write_files({**code_files(self.model), "main.c": _main(self.model)}, folder)

    def compile(
        self, compiler: Sequence[str], flags: Sequence[str], linked: Sequence[str] = ()
    ) -> subprocess.CompletedProcess:
        """Compiles net.c with the flags and all else with `linked` only; the compiler's end."""
        code = [*compiler, *linked, *flags, "-w", "-c", "net.c", "-o", "net.o"]
        done = subprocess.run(code, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            return done
        rest = ["-x", "none", "net.o", "main.c", "net_weights.c", "-w", "-lm", "-o", "net"]
        return subprocess.run(
            [*compiler, *linked, *rest], cwd=self.folder, capture_output=True, text=True
        )

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of what was compiled last."""
        for number, array in enumerate(feeds):
            np.ascontiguousarray(array).tofile(self.folder / f"in{number}.bin")
        subprocess.run(["./net"], cwd=self.folder, check=True, timeout=120)
        return [
            np.fromfile(self.folder / f"out{n}.bin", t.dtype.np).reshape(t.static_shape)
            for n, (_, t) in enumerate(self.program.outputs)
        ]


def _main(model: Model) -> str:
    buffers, fields, reads, writes = [], [], [], []
    for _, short, tensors, _ in model.sides():
        for n, t in enumerate(tensors):
            buffers.append(f"static {t.c_type} {short}{n}[{max(t.elements, 1)}];")
            fields.append(f"{short}puts.{t.field} = {short}{n};")
            mode, lines = ("rb", reads) if short == "in" else ("wb", writes)
            lines.append(f'ok = ok && moved("{short}{n}.bin", "{mode}", {short}{n}, {t.nbytes}u);')
    first = model.inputs[0].field if model.inputs else "unused"
    return MAIN.format(
        buffers="\n".join(buffers), fields="\n    ".join(fields), reads="\n    ".join(reads),
        writes="\n    ".join(writes), first=first,
    )  # fmt: skip
