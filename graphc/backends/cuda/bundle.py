"""The files of a compiled model: what a launcher needs, and what a person reads.

    kernels.cu          the CUDA C, one function per launch
    kernels.ARCH.cubin  its machine code, and kernels.ARCH.ptx, for every architecture asked for
    plan.json           launches in order, operands, sizes, and where weights lie
    weights.bin         the constants one after another, each aligned to 256 bytes

Contents depend on the program alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.nvcc import FORMS, compile_cuda

ALIGNMENT = 256  # of constants, as memory comes from the driver


def bundle_files(source: CudaSource, archs: Sequence[str] = ()) -> dict[str, bytes]:
    """Contents by file name; errors as `compile_cuda` if architectures are given."""
    weights, offsets = _weights(source.program.constants)
    plan = source.plan()
    plan["weights_bytes"] = len(weights)
    for entry, offset in zip(plan["constants"], offsets):
        entry["offset"] = offset
    files = {
        "kernels.cu": source.text.encode(),
        "plan.json": (json.dumps(plan, indent=1) + "\n").encode(),
        "weights.bin": weights,
    }
    for arch in archs:
        for form in FORMS:
            files[f"kernels.{arch}.{form}"] = compile_cuda(source.text, arch, form)
    return files


def _weights(constants: Sequence[np.ndarray]) -> tuple[bytes, list[int]]:
    """All constants in one piece, and where each starts."""
    pieces: list[bytes] = []
    offsets: list[int] = []
    end = 0
    for array in constants:
        offsets.append(end)
        contents = np.ascontiguousarray(array).tobytes()
        padding = -len(contents) % ALIGNMENT
        pieces += [contents, bytes(padding)]
        end += len(contents) + padding
    return b"".join(pieces), offsets
