"""A compiled model in a folder: plan.json, weights.bin, and kernels.ARCH.cubin or .ptx.

The plan has a digest of itself and of every file that is read to run it. Machine code that somebody
made later is in no plan, and is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from .bindings import open_driver
from .digests import digest
from .driver import Driver, DriverMissing
from .model import Model

PARTS = {
    "name",
    "sizes",
    "inputs",
    "outputs",
    "checks",
    "constants",
    "launches",
    "streams",
    "arena_bytes",
    "weights_bytes",
    "files",
    "digest",
}
AGAIN = "compile the model into this folder again"


def load(folder: str | os.PathLike, device: int = 0, driver: Driver | None = None) -> Model:
    """The model in a folder, on a GPU. DriverMissing if no GPU, or no code for it, is there;
    ValueError names a file that is damaged."""
    path = Path(folder)
    plan = _plan(path / "plan.json")
    weights = np.fromfile(path / "weights.bin", np.uint8)
    if weights.size != plan["weights_bytes"]:
        wanted = plan["weights_bytes"]
        raise ValueError(
            f"{path / 'weights.bin'} holds {weights.size} bytes, expected {wanted}: it is damaged, "
            f"or of another model; {AGAIN}"
        )
    _check(path, "weights.bin", weights, plan)
    for pattern in ("run_*.py", "graphc_cuda/*.py"):
        for file in path.glob(pattern):
            _check(path, file.relative_to(path).as_posix(), file.read_bytes(), plan)
    driver = driver or open_driver(device)
    code = code_for(path, driver.arch)
    image = code.read_bytes()
    _check(path, code.name, image, plan)
    return Model(plan, weights, image, driver)


def _check(folder: Path, name: str, contents: Any, plan: dict[str, Any]) -> None:
    """ValueError if a file that the plan knows is not what was written with it."""
    wanted = plan["files"].get(name)
    if wanted is not None and digest(contents) != wanted:
        raise ValueError(f"{folder / name} is damaged, or of another model; {AGAIN}")


def plan_digest(plan: dict[str, Any]) -> str:
    """The digest of all that a plan says, but for its own."""
    rest = {key: value for key, value in plan.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _plan(path: Path) -> dict[str, Any]:
    """What a file says is to be launched."""
    try:
        plan = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(plan, dict) or not plan.keys() >= PARTS:
        raise ValueError(f"{path} is no launch plan: it lacks some of {', '.join(sorted(PARTS))}")
    if plan["digest"] != plan_digest(plan):
        raise ValueError(f"{path} is damaged: its digest differs; {AGAIN}")
    return plan


def code_for(folder: Path, arch: str) -> Path:
    """The file of machine code that an architecture runs: its own, or that of an older one of the
    same major number; else PTX of an older one, which the driver compiles. Code with features of
    one architecture (sm_90a) is for no other."""
    wanted, _ = _parts(arch)
    for form in ("cubin", "ptx"):
        images = {_parts(p.name): p for p in folder.glob(f"kernels.sm_*.{form}")}
        older = [image for image in images if image[0] < wanted and not image[1]]
        if form == "cubin":
            older = [image for image in older if image[0] // 10 == wanted // 10]
        fitting = [*older, *(image for image in images if image[0] == wanted)]
        if fitting:
            return images[max(fitting)]
    raise DriverMissing(
        f"{folder} holds no code that an {arch} GPU runs; make it there with: "
        f"nvcc -cubin -arch={arch} -o kernels.{arch}.cubin kernels.cu"
    )


def _parts(text: str) -> tuple[int, str]:
    """90 and what is there of its own, of sm_90 or kernels.sm_90a.ptx."""
    parts = re.search(r"sm_(\d+)([af]?)", text)
    return (int(parts[1]), parts[2]) if parts else (0, "")
