"""A program as the files of a C99 bundle.

    NAME.h, NAME.c, NAME_weights.c    the whole API; the code; the constants, all const
    NAME_test.c                       inputs and expected outputs, and a main that compares them
    CMakeLists.txt, README.md         how to build and call it
    report.json                       flash, arena, and what every function computes

The code calls no allocator and no stdio, keeps no state, and touches nothing but its arguments, so
that it may run from several threads with an arena each. The text depends on the program alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphc.backends.cfamily.printer import identifier
from graphc.backends.micro_c import documents, header, source, weights
from graphc.backends.micro_c.cpus import DEFAULT, cpu_of
from graphc.backends.micro_c.model import Model
from graphc.errors import ModelError
from graphc.ir.program import Program


@dataclass(frozen=True)
class BundleOptions:
    """`name` prefixes all files and symbols (default: from the program); `libm` spells exp, log,
    tanh and erf as calls of libm instead of polynomials; `samples` are (inputs, expected outputs)
    for NAME_test.c, and `tolerance` the largest error it accepts, in units of an output; `cpu` is
    the processor that the program was made for (cpus.py), which the documents tell."""

    name: str = ""
    libm: bool = False
    samples: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None
    tolerance: float = 1e-3
    cpu: str = DEFAULT


def bundle(program: Program, options: BundleOptions | None = None) -> dict[str, str]:
    """The text of every file by name; UnsupportedError if a kernel uses what C lacks."""
    options = options or BundleOptions()
    model = Model.of(program, bundle_name(options.name or program.name), options.libm)
    name = model.name
    files = {
        f"{name}.h": header.header(model),
        f"{name}.c": source.source(model),
        f"{name}_weights.c": weights.weights(model),
        "CMakeLists.txt": documents.cmake(model, options.samples is not None),
        "README.md": documents.readme(model, options.samples is not None, cpu_of(options.cpu)),
        "report.json": documents.report(model, options.cpu),
    }
    if options.samples is not None:
        inputs, outputs = options.samples
        files[f"{name}_test.c"] = documents.test(model, inputs, outputs, options.tolerance)
    return files


def write_bundle(
    program: Program, folder: str | os.PathLike, options: BundleOptions | None = None
) -> Mapping[str, str]:
    """Writes the bundle into a folder, which is made if need be; returns the files' texts."""
    files = bundle(program, options)
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ModelError(f"{target} is a file; a bundle needs a folder")
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8", newline="\n")
    return files


def bundle_name(name: str) -> str:
    """A C identifier to prefix everything with."""
    plain = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]", "_", name)).strip("_")[:40]
    return identifier(plain or "model")
