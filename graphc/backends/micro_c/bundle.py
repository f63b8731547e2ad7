"""A program as the files of a C99 bundle.

    NAME.h, NAME.c                    the whole API; the code
    NAME_weights.c                    the constants, all const (or .bin and .S, see weights.py)
    NAME_text.c, NAME_text.h          a tokenizer, sampling, and a loop that generates text
    NAME_say.c                        a main that prints a text
    NAME_test.c                       inputs and expected outputs, and a main that compares them
    CMakeLists.txt, README.md         how to build and call it
    report.json                       flash, arena, stack, and what every function computes

The code calls no allocator and no stdio, keeps no state of its own, and touches nothing but its
arguments, so that it may run from several threads with an arena each. The text depends on the
program alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.backends.cfamily.names import bundle_name
from graphc.backends.micro_c import documents, header, self_test, source, weights
from graphc.backends.micro_c.boards import BOARDS, firmware_files
from graphc.backends.micro_c.cpus import DEFAULT, cpu_of
from graphc.backends.micro_c.goals import SIZE, SPEED, goal_of
from graphc.backends.micro_c.joined import Training
from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.packages import package
from graphc.backends.micro_c.text_sources import text_files
from graphc.backends.micro_c.tokenizer_file import Tokenizer
from graphc.errors import ModelError
from graphc.ir.program import Program
from graphc.provenance import Provenance


@dataclass(frozen=True)
class BundleOptions:
    """`name` prefixes all files and symbols (default: from the program). `libm`: call it for exp,
    log, tanh and erf too instead of using polynomials (True), or for nothing at all (False).
    `weights_as` says how constants are stored: as C, as a binary file with an assembler file
    (incbin), or as a binary file alone (bin). `samples` are (inputs, expected outputs) for
    NAME_test.c, and `tolerance` the largest error it accepts, in units of an output (default: by
    the output's type). `cpu` is the processor that the program was made for (cpus.py), which the
    documents tell, `package` the ecosystem that the files are laid out for (packages.py), and
    `board` the emulated one that the test is made an image for (boards). `opt` is what the program
    was made for (goals.py). `training` tells which part of the program trains (joined.py),
    `tokenizer` what text is made of with a model that takes a token at a time (text_sources.py),
    and `provenance` what the files say of where they come from. With `pushed` there is
    NAME_push_rows (pushed_rows.py)."""

    name: str = ""
    libm: bool | None = None
    weights_as: str = "c"
    samples: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None
    tolerance: float | None = None
    cpu: str = DEFAULT
    package: str | None = None
    board: str | None = None
    opt: str = SPEED.name
    training: Training | None = None
    provenance: Provenance | None = None
    tokenizer: Tokenizer | None = None
    pushed: bool = False


Files = dict[str, str | bytes]


def bundle(program: Program, options: BundleOptions | None = None) -> Files:
    """The contents of every file by name; UnsupportedError if a kernel uses what C lacks."""
    options = options or BundleOptions()
    model = model_of(program, options)
    name = model.name
    files: Files = {
        **code_files(model),
        "CMakeLists.txt": documents.cmake(model, options.samples is not None),
        "README.md": documents.readme(
            model, options.samples is not None, cpu_of(options.cpu), options.package, options.board
        ),
        "report.json": documents.report(model, options.cpu),
    }
    if options.samples is not None:
        inputs, outputs = options.samples
        files[f"{name}_test.c"] = self_test.self_test(model, inputs, outputs, options.tolerance)
    main, sources = f"{name}_test.c", model.sources
    if options.tokenizer is not None:
        files |= text_files(model, options.tokenizer)
        main, sources = f"{name}_say.c", [f"{name}_text.c", *sources]
    if options.board is not None:
        files |= firmware_files(BOARDS[options.board], name, main, sources)
    if options.package is not None:
        files = package(model, files, options.package)
    return files if options.provenance is None else _stamped(files, options.provenance)


def _stamped(files: Files, provenance: Provenance) -> Files:
    """The files, each with what made it."""
    return {
        name: provenance.stamped(name, text) if isinstance(text, str) else text
        for name, text in files.items()
    }


def code_files(model: Model) -> Files:
    """The header, the code and the constants."""
    return {
        f"{model.name}.h": header.header(model),
        f"{model.name}.c": source.source(model),
        **weights.files(model),
    }


def model_of(program: Program, options: BundleOptions) -> Model:
    """The program with the names and functions of its bundle."""
    name = bundle_name(options.name or program.name)
    small = goal_of(options.opt) is SIZE
    return Model.of(program, name, options.libm, options.weights_as, small, cpu_of(options.cpu),
                    options.training, options.pushed)  # fmt: skip


def write_bundle(
    program: Program, folder: str | os.PathLike, options: BundleOptions | None = None
) -> Files:
    """Writes the bundle into a folder, which is made if need be; returns the files' contents."""
    files = bundle(program, options)
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ModelError(f"{target} is a file; a bundle needs a folder")
    write_files(files, target)
    return files


def write_files(files: Files, folder: Path) -> None:
    """Writes files, text as UTF-8, into a folder, which is made if need be with those inside."""
    for name, contents in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
