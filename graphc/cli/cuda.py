"""graphc compile --target cuda -o FOLDER: kernels, machine code, weights, plan and launchers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from graphc.cli.options import target_of

if TYPE_CHECKING:
    from graphc.cli.models import Model
    from graphc.driver import Settings


def write_folder(model: Model, args: argparse.Namespace, settings: Settings) -> None:
    """Writes the folder; where there is no compiler, without machine code, which is noted."""
    from graphc.backends.cuda import emit
    from graphc.backends.cuda.bundle import CODE, bundle_files
    from graphc.backends.cuda.machine_code import architectures, missing
    from graphc.backends.cuda.machines import DEFAULT_ARCHS
    from graphc.cli.emit import program
    from graphc.cli.output import note
    from graphc.files import atomic_folder

    known = architectures()
    usual = [arch for arch in DEFAULT_ARCHS if arch in known]
    wanted = args.arch.split(",") if args.arch else usual
    if not known:
        note(f"no machine code is made: {missing()}")
        wanted = []
    source = emit(program(model, target_of(args), settings))
    files = bundle_files(source, wanted, Path(args.model).stem)
    with atomic_folder(args.output, stale=f"{CODE}*") as temporary:
        for name, contents in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_bytes(contents)
