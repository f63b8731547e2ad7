"""C for microcontrollers, run to be checked: on the host, on an emulated board, or by its trace."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphc.cli.firmware import cpu_name, micro_program
from graphc.errors import ModelError

if TYPE_CHECKING:
    from graphc.cli.models import Model

TRACE_RTOL = 1e-3  # of the range of a layer's result, between processors that round otherwise


def run_code(model: Model, feeds: Mapping[str, Any], args: argparse.Namespace) -> list[Any]:
    """The outputs of the C code: on the host, or on a board, whose use of memory is told."""
    from graphc.analysis.text import nbytes
    from graphc.backends.micro_c import BundleOptions
    from graphc.backends.micro_c.boards import BOARDS
    from graphc.backends.micro_c.emulator import run_on_board
    from graphc.backends.micro_c.host import HostModel
    from graphc.cli.output import progress
    from graphc.driver import Settings
    from graphc.ir.program import true_outputs

    program = micro_program(model, args, Settings(threads=1, checks=args.checks))
    code = BundleOptions(libm=args.libm, cpu=cpu_name(args), opt=args.opt)
    if not args.board:
        with progress(f"compiling {model.path.name} for the host"):
            run = HostModel(program, code, sanitize=True)
        return true_outputs(program, run(list(feeds.values())))
    with progress(f"running {model.path.name} on {args.board}"):
        done = run_on_board(program, list(feeds.values()), BOARDS[args.board], code)
    constants = sum(c.nbytes for c in program.constants)
    print(f"{args.board}: arena {nbytes(program.arena_bytes)}, stack {nbytes(done.stack)}, "
          f"constants {nbytes(constants)}")  # fmt: skip
    return true_outputs(program, done.outputs)


def compare_trace(model: Model, feeds: Mapping[str, Any], args: argparse.Namespace) -> int:
    """Names the first layer that a device's log has otherwise than the host; the exit code."""
    from pathlib import Path

    from graphc.backends.micro_c import BundleOptions
    from graphc.backends.micro_c.host import HostModel
    from graphc.backends.micro_c.traces import compared, read_traces
    from graphc.driver import Settings

    try:
        device = read_traces(Path(args.trace).read_text(errors="replace"))
    except OSError as error:
        raise ModelError(f"--trace {args.trace}: {error.strerror}") from error
    if not device:
        raise ModelError(f"--trace {args.trace}: no line has the form `trace LAYER CRC NAME`")
    program = micro_program(model, args, Settings(threads=1, checks=args.checks))
    code = BundleOptions(libm=args.libm, cpu=cpu_name(args), opt=args.opt)
    host = HostModel(program, code, traced=True).trace(list(feeds.values()))
    rtol = TRACE_RTOL if args.rtol is None else args.rtol
    try:
        found = compared(host, device, rtol)
    except ModelError as error:
        raise ModelError(f"--trace {args.trace}: {error}") from error
    if found.problem:
        print(f"FAILED: {found.problem}")
        return 1
    print(f"passed: {found.equal} of {len(host)} results are those of the host" + (
        f"; {found.rounded} differ in rounding, by {found.error:.2g} of their range (rtol {rtol:g})"
        if found.rounded else ""))  # fmt: skip
    return 0
