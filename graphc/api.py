"""`graphc.compile` and `graphc.load`. Neither imports a compiler where it can be avoided."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphc.collector import collecting_rarely
from graphc.plugins import load_installed

if TYPE_CHECKING:
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.runnable import Runnable
    from graphc.targets.base import Target

CACHED = "cpu"  # the target whose models are kept whole


def compile(
    source: Any,
    target: str | Target = CACHED,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    **options: Any,
) -> CompiledModel:
    """Compiles a model (path, bytes, ModelProto or Graph) for a target.

    `shapes` pins inputs, `dims` dimension symbols (a pair gives bounds), and `values` binds inputs
    to contents (they are inputs no more). If this fixes all shapes the model is compiled at once,
    otherwise when it is run. `threads` is the number of CPU threads (default: all). `options` are
    the other fields of `Settings`, and the options of the target (the fields of its class in
    graphc/targets). A model that was compiled before, for the CPU and with the same arguments, is
    taken from the cache. Raises ModelError, UnsupportedError.
    """
    load_installed()
    arguments: dict[str, Any] = {"shapes": shapes, "dims": dims, "values": values}
    entry = None
    if target == CACHED and (threads is None or (type(threads) is int and threads > 0)):
        from graphc.runtime.model_cache import Entry

        entry = Entry.of(source, arguments, options)

    def make() -> CompiledModel:
        with collecting_rarely():
            from graphc import driver  # hundreds of modules

            return driver.compile(
                source, target, **arguments, threads=threads, entry=entry, **options
            )

    known = None if entry is None else entry.model(threads, make)
    return make() if known is None else known


def load(path: str | os.PathLike, threads: int | None = None) -> Runnable:
    """A model that `CompiledModel.save` wrote, ready to run without being compiled again.

    ModelError if the file is damaged, here or when weights are read for the first run, or was made
    for another CPU. It holds native code, which runs with all your rights: load only what comes
    from somebody you trust.
    """
    from graphc.runtime.saved import load as load_saved

    return load_saved(path, threads)
