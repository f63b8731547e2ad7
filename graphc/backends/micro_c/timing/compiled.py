"""Code as the cross compiler makes it, to see how large it is, and what it can run on."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from graphc.backends.micro_c import header, source
from graphc.backends.micro_c.boards import BOARDS
from graphc.backends.micro_c.bundle import write_files
from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.timing.counting import tool
from graphc.errors import InternalError

OPTIMISATION = "-O2"
# What the code of a processor runs on: a Cortex-M4 takes that of a Cortex-M0+, an M55 that of
# others with its vectors.
EMULATED = {board.cpu: board for board in BOARDS.values()}
EMULATED["cortex-m0plus"] = replace(EMULATED["cortex-m4"], cpu="cortex-m0plus")
for _cpu in ("cortex-m52", "cortex-m85"):
    EMULATED[_cpu] = replace(EMULATED["cortex-m55"], cpu=_cpu)


def code_bytes(model: Model) -> int | None:
    """Bytes of machine code of a bundle, less what it calls of libm and libgcc; None without a
    compiler for its processor."""
    board = EMULATED.get(model.cpu.name)
    if board is None or board.tools.compiler in board.tools.missing():
        return None
    with tempfile.TemporaryDirectory(prefix="graphc-code-") as name:
        folder = Path(name)
        text = {f"{model.name}.h": header.header(model), f"{model.name}.c": source.source(model)}
        write_files(dict(text), folder)
        command = [
            *board.compiler(), OPTIMISATION, "-ffunction-sections", "-c", f"{model.name}.c",
            "-o", "code.o",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise InternalError(f"{' '.join(command)} failed:\n{done.stderr[:4000]}")
        lines = tool(board, "size", "-A", str(folder / "code.o")).splitlines()
    rows = [line.split() for line in lines if line.startswith(".text")]
    return sum(int(size) for _, size, _ in rows)
