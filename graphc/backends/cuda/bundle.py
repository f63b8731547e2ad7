"""The files of a compiled model: what launchers need, and what a person reads.

    kernels.cu            the CUDA C, one function per launch
    kernels.ARCH.cubin    its machine code, and kernels.ARCH.ptx, for every architecture asked for
    plan.json             launches in order, operands, streams, sizes, where weights lie, and
                          digests of what is read to run them
    weights.bin           the constants one after another, each aligned to 256 bytes
    run_NAME.py           runs the model from Python; needs numpy, and PyCUDA or cuda-python
    graphc_cuda/          what it uses, a copy of graphc.backends.cuda.runtime
    NAME.h, NAME.cpp      runs the model from C++; needs CUDA's runtime library only
    graphc_model.h        what NAME.cpp uses
    NAME_example.cpp      a program that does so
    CMakeLists.txt        builds the last two
    README.md             how to use all this

Contents depend on the program alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc.backends import digests
from graphc.backends.block import Block
from graphc.backends.cfamily.names import bundle_name
from graphc.backends.cuda import runtime
from graphc.backends.cuda.emit import CudaSource
from graphc.backends.cuda.launcher import cpp_files, python_files
from graphc.backends.cuda.machine_code import FORMS, machine_code
from graphc.backends.cuda.runtime.artifact import plan_digest
from graphc.backends.cuda.schedule import one_stream, schedule
from graphc.ir import dtypes
from graphc.provenance import Provenance

ALIGNMENT = 256  # of constants, as memory comes from the driver
CODE = "kernels.sm_"  # what the names of machine code begin with
PACKAGE = "graphc_cuda"  # what the runtime is called beside a model
READ = (".bin", ".py", *(f".{form}" for form in FORMS))  # suffixes of what is read to run a model


def bundle_files(
    source: CudaSource,
    archs: Sequence[str] = (),
    name: str = "",
    provenance: Provenance | None = None,
) -> dict[str, bytes]:
    """Contents by file name; errors as `machine_code` if architectures are given.

    `name` prefixes files and functions (default: the program's). With `provenance` texts say where
    they come from.
    """
    name = bundle_name(name or source.program.name, taken=["graphc_model"])
    plan, weights = launch_plan(source)
    texts = {"kernels.cu": source.text, **python_files(name, plan)}
    texts |= cpp_files(name, plan, archs, weights)
    for module in (*sorted(Path(runtime.__file__).parent.glob("*.py")), Path(digests.__file__)):
        texts[f"{PACKAGE}/{module.name}"] = module.read_text(encoding="utf-8")
    codes = {
        f"kernels.{arch}.{form}": machine_code(source.text, arch, form)
        for arch in archs for form in FORMS
    }  # fmt: skip
    texts |= {path: codes.pop(path).decode() for path in list(codes) if path.endswith(".ptx")}
    if provenance is not None:
        texts = {path: provenance.stamped(path, text) for path, text in texts.items()}
        plan["made_by"] = provenance.data
    files = {"weights.bin": weights, **{path: text.encode() for path, text in texts.items()}}
    files |= codes
    read = sorted(file for file in files if file.endswith(READ))
    plan["files"] = dict(zip(read, digests.digests([files[file] for file in read])))
    plan["digest"] = plan_digest(plan)
    files["plan.json"] = (json.dumps(plan, indent=1) + "\n").encode()
    return files


def launch_plan(source: CudaSource) -> tuple[dict[str, Any], bytes]:
    """The launch plan with everything that a launcher needs, and the weights in one piece.

    The `true_shape` of an output whose shape depends on data: the number of the output that holds
    it, and its first element there. With `checks`, the last output holds a u64 for each: `low` plus
    it, modulo 2^64, is out of range if it is more than `most`. Launches `wait` for those on other
    streams; on those that are `awaited` another stream waits. With control flow there is but one.
    """
    plan = source.plan()
    weights, offsets = _weights(source.program.constants)
    plan["weights_bytes"] = len(weights)
    for entry, offset in zip(plan["constants"], offsets):
        entry["offset"] = offset
    for entry in (*plan["inputs"], *plan["outputs"]):
        entry["numpy"] = dtypes.of(entry["dtype"]).np.name
    for number, (position, cell) in source.program.true_sizes.items():
        plan["outputs"][number]["true_shape"] = {"output": position, "first": cell}
    planned = schedule(source.steps) if source.flow is None else one_stream(source.steps)
    plan["streams"] = planned.count
    for number, launch in enumerate(plan["launches"]):
        launch["stream"] = planned.streams[number]
        launch["waits"] = planned.waits[number]
        launch["awaited"] = number in planned.awaited
    return plan, weights


def _weights(constants: Sequence[np.ndarray]) -> tuple[bytes, list[int]]:
    """All constants in one piece, and where each starts."""
    block = Block(ALIGNMENT)
    offsets = [block.add_array(array) for array in constants]
    return b"".join(block.parts), offsets
