"""The contents of a compiled model (.gcm), listed without loading its code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from graphc.analysis.text import nbytes, table

if TYPE_CHECKING:
    from graphc.backends.llvm_cpu.container import Container
    from graphc.backends.llvm_cpu.image import Image

TRUST = "It holds native code: load it only if you trust its author."


def contents(path: str, top: int | None) -> str:
    """What a file holds, at most `top` shapes and kernels of it; ModelError if it is damaged."""
    from graphc.runtime.saved import interface, open_container

    container = open_container(path)
    inputs, outputs = interface(container)
    images = container.images()
    for shapes in images:
        container.check(shapes)
    about = container.interface
    kernels = sorted({name for image in images.values() for name in image.kernels})
    size = nbytes(container.data.nbytes)
    return "\n".join(
        [
            f"{path}: {size}, of graph {_line(about.get('model'))}, saved by graphc "
            f"{_line(about.get('graphc'))}; every byte matches its digest",
            _target(container),
            "",
            *(f"in   {_line(s.name)}: {_line(s.type)}" for s in inputs),
            *(f"out  {_line(s.name)}: {_output(n, images)}" for n, s in enumerate(outputs)),
            "",
            _images(list(images.items())[:top]),
            *_more(len(images), top, "shapes"),
            *_sizes(list(images.values())),
            "",
            f"{len(kernels)} kernels: {', '.join(map(_line, kernels[:top]))}",
            *_more(len(kernels), top, "kernels"),
            "",
            TRUST,
        ]
    )


def _target(container: Container) -> str:
    """The processor that the code is for, and whether that is this one."""
    from graphc.backends.llvm_cpu.target import host_target

    words = _line(container.target).split()
    features = [f[1:] for f in (words[-1].split(",") if words else ()) if f.startswith("+")]
    here = "this machine" if container.target == host_target().key else "another machine"
    return f"compiled for {here}: {' '.join(words[:-1])} with {' '.join(features)}"


def _output(number: int, images: Mapping[tuple, Image]) -> str:
    """The type of an output, for the first of several shapes of the inputs."""
    types = dict.fromkeys(str(image.outputs[number][1]) for image in images.values())
    first, *others = map(_line, types)
    return first + (" (and by the inputs)" if others else "")


def _images(images: Sequence[tuple[tuple, Image]]) -> str:
    """A row for each shape of the inputs."""
    rows = [("inputs", "steps", "kernels", "code", "constants", "arena")]
    rows += [
        (
            " ".join(map(_shape, shapes)) or "none",
            str(image.steps),
            str(len(image.kernels)),
            nbytes(len(image.code)),
            nbytes(sum(c.nbytes for c in image.constants)),
            nbytes(image.arena_bytes),
        )
        for shapes, image in images
    ]
    return table(rows)


def _shape(dims: Sequence[object]) -> str:
    """Dims of an input: integers, or expressions over sizes."""
    return f"[{', '.join(map(_line, dims))}]"


def _sizes(images: Sequence[Image]) -> list[str]:
    """The sizes at which a program of open shape runs."""
    sizes = [size for image in images for size in image.sizes]
    return [f"where {_line(size.name)} is in {size.lo}..{size.hi}" for size in sizes]


def _more(count: int, top: int | None, what: str) -> list[str]:
    return [f"and {count - top} more {what} (--all)"] if top is not None and count > top else []


def _line(value: object) -> str:
    """Text of a file, which may hold anything, on a line of a terminal."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text)
