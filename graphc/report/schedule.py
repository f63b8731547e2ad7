"""The schedule of a kernel in sentences, read off its loops.

Of several statements, the loops that run most often are described: the nest that takes the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from graphc.ir.kernel import Alloc, Body, Buffer, For, Intrin, Kernel, bodies, walk_stmts
from graphc.ir.simplify import bounds

KINDS = {"serial": "", "parallel": "parallel ", "unroll": "unrolled ", "vector": "vector "}


def trips(loop: For) -> int:
    """How often a loop runs at most."""
    return loop.extent if isinstance(loop.extent, int) else int(bounds(loop.extent)[1])


def schedule(kernel: Kernel) -> list[str]:
    """Threads, loops, tiles, vectors, unrolling, memory and instructions of a kernel."""
    loops = [s for s in walk_stmts(kernel.body) if isinstance(s, For)]
    lines = [*_threads(loops), *_nest(kernel.body), *_registers(kernel, loops)]
    memory = {scope: _bytes(kernel, scope) for scope in ("shared", "scratch", "stack")}
    lines += [f"{size} bytes of {scope} memory" for scope, size in memory.items() if size]
    names = sorted({s.name for s in walk_stmts(kernel.body) if isinstance(s, Intrin)})
    return [*lines, f"instructions: {', '.join(names)}"] if names else lines


def _threads(loops: list[For]) -> Iterator[str]:
    """How the work is divided among threads."""
    blocks = [trips(loop) for loop in loops if loop.kind == "block"]
    threads = [loop for loop in loops if loop.kind == "thread"]
    if threads:
        most, held = max(map(trips, threads)), max(t.width for t in threads)
        several = f", {held} blocks at once on a multiprocessor" if held else ""
        yield f"{max(blocks, default=1)} blocks of {most} threads{several}"
    parallel = [trips(loop) for loop in loops if loop.kind == "parallel"]
    if max(parallel, default=1) > 1:
        yield f"up to {max(parallel)} parts that threads share"
    elif not threads:
        yield "one thread"


def _nest(body: Body) -> Iterator[str]:
    """The loops of the nest that runs most often, outermost first, and what it repeats."""
    path = [x for x in _longest(body) if x.kind not in ("block", "thread") and trips(x) > 1]
    if path:
        told = (f"{KINDS.get(x.kind, x.kind + ' ')}{trips(x)}" for x in path)
        yield f"loops, outermost first: {' > '.join(told)}"
    else:
        yield "no loops within a thread"


def _longest(body: Body) -> list[For]:
    """The loops, from the outside in, around what runs most often."""
    best: list[For] = []
    for stmt in body:
        paths = [_longest(inner) for inner in bodies(stmt)]
        path = max(paths, key=_trips, default=[])
        path = [stmt, *path] if isinstance(stmt, For) else path
        best = max(best, path, key=lambda p: (_trips(p), len(p)))
    return best


def _trips(path: list[For]) -> int:
    return math.prod(trips(loop) for loop in path)


def _registers(kernel: Kernel, loops: list[For]) -> Iterator[str]:
    """Vectors, tiles of sums that stay in registers, and copies of bodies."""
    widths = sorted({loop.width or trips(loop) for loop in loops if loop.kind == "vector"})
    if widths:
        yield f"vectors of {', '.join(map(str, widths))} elements"
    elif not any(loop.kind == "thread" for loop in loops):
        yield "no vectors: one element at a time"
    tiles = _allocated(kernel, "reg")
    if tiles:
        shown = ", ".join(f"{b.dtype}{list(b.shape)}" for b in tiles[:4])
        yield f"tiles in registers: {shown}{' ...' if len(tiles) > 4 else ''}"
    copies = sorted({trips(loop) for loop in loops if loop.kind == "unroll"} - {1})
    if copies:
        yield f"unrolled {', '.join(map(str, copies))} times"


def _allocated(kernel: Kernel, scope: str) -> list[Buffer]:
    """The local arrays of a scope, each shape once, the largest first; no single numbers."""
    unique = {(b.dtype.name, b.shape): b for b in _arrays(kernel, scope) if b.size > 1}
    return sorted(unique.values(), key=lambda b: -b.size)


def _bytes(kernel: Kernel, scope: str) -> int:
    return sum(b.size * b.dtype.size for b in _arrays(kernel, scope))


def _arrays(kernel: Kernel, scope: str) -> Iterator[Buffer]:
    """The local arrays of a scope."""
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Alloc) and stmt.scope == scope:
            yield stmt.buffer
