"""Users' own passes and rules, from files given with --plugin.

A plugin is a Python file. Importing it registers its passes (`register_pass`) and rules (`rule`):
rules of the group "canonical" are applied by `canonicalise`; its passes run, in the order they are
defined, before the first pass that chooses layouts, unless a pipeline is given that names them.
"""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Sequence
from pathlib import Path

from graphc.errors import GraphcError, ModelError
from graphc.ir.phases import PHASES
from graphc.passes.manager.base import PASSES, Pass
from graphc.passes.manager.pipeline import parse_pipeline


def load_plugins(paths: Sequence[str]) -> list[str]:
    """Imports plugins; the names of the passes they define."""
    known = set(PASSES)
    for number, path in enumerate(paths):
        _import(Path(path), f"graphc_plugin_{number}")
    return [name for name in PASSES if name not in known]


def _import(path: Path, name: str) -> None:
    if not path.is_file():
        raise ModelError(f"--plugin {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"--plugin {path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except GraphcError as error:
        raise ModelError(f"--plugin {path}: {error}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = f" line {lines[-1]}" if lines else ""
        raise ModelError(f"--plugin {path}{line}: {type(error).__name__}: {error}") from error


def pipeline_with(pipeline: str | Sequence[Pass], names: Sequence[str]) -> str:
    """A pipeline with passes added before the first that chooses layouts (else at the end)."""
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else list(pipeline)
    laid_out = PHASES.index("laid_out")
    later = [n for n, step in enumerate(passes) if PHASES.index(step.phase()) >= laid_out]
    position = min(later, default=len(passes))
    return ", ".join(map(str, [*passes[:position], *names, *passes[position:]]))
