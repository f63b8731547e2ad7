"""Users' own operators, rules, passes and targets: files given with --plugin, and packages.

A plugin is a Python file, or a module that an installed package names in the entry-point group
`graphc.plugins`. Importing it registers what it defines (`op`, `rule`, `register_pass`,
`register_target`): rules of the group "canonical" are applied by `canonicalise`; its passes run, in
the order they are defined, before the first pass that chooses layouts, unless a pipeline is given
that names them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from graphc.errors import GraphcError, ModelError, warn

GROUP = "graphc.plugins"
_NUMBERS = itertools.count()


def load_file(path: str) -> str:
    """Imports a plugin; the name of its module."""
    if not Path(path).is_file():
        raise ModelError(f"--plugin {path}: there is no such file")
    name = f"graphc_plugin_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"--plugin {path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the module of their class
    try:
        spec.loader.exec_module(module)
    except GraphcError as error:
        raise ModelError(f"--plugin {path}: {error}") from error
    except Exception as error:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = f" line {lines[-1]}" if lines else ""
        raise ModelError(f"--plugin {path}{line}: {type(error).__name__}: {error}") from error
    return name


@cache
def load_installed() -> tuple[str, ...]:
    """Imports the plugins of installed packages, once; the names of their modules. A warning names
    one that cannot be imported."""
    if not _may_have_plugins():
        return ()
    from importlib import metadata

    loaded = []
    for entry in metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            warn(f"plugin {entry.name} cannot be loaded: {type(error).__name__}: {error}")
        else:
            loaded.append(entry.module)
    return tuple(loaded)


def _may_have_plugins() -> bool:
    """Whether a package that is installed may name the group of plugins. Reading the metadata of
    all packages takes longer than loading a model."""
    finders = [f for f in sys.meta_path if hasattr(f, "find_distributions")]
    return any(f is not PathFinder for f in finders) or any(map(_names_group, sys.path))


def _names_group(place: str) -> bool:
    """Whether packages in a place where modules are looked for may name the group."""
    if os.path.isfile(place):
        return True  # an archive
    with contextlib.suppress(OSError), os.scandir(place or ".") as entries:
        for entry in entries:
            if entry.name.endswith(".egg"):
                return True
            if entry.name.endswith((".dist-info", ".egg-info")):
                with (
                    contextlib.suppress(OSError),
                    open(os.path.join(entry.path, "entry_points.txt"), "rb") as file,
                ):
                    if GROUP.encode() in file.read():
                        return True
    return False


def passes_of(modules: Sequence[str]) -> list[str]:
    """The names of the passes that modules define."""
    if not modules:
        return []
    from graphc.passes.manager.base import PASSES

    return [name for name, cls in PASSES.items() if cls.__module__ in modules]


def with_passes(pipeline: Iterable, names: Sequence[str]) -> list:
    """Passes with those named added before the first that chooses layouts (else at the end)."""
    from graphc.ir.phases import PHASES
    from graphc.passes.manager.pipeline import make_pass

    steps = list(pipeline)
    laid_out = PHASES.index("laid_out")
    later = [n for n, step in enumerate(steps) if PHASES.index(step.phase()) >= laid_out]
    position = min(later, default=len(steps))
    return [*steps[:position], *map(make_pass, names), *steps[position:]]
