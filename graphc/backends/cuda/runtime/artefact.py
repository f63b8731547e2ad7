"""A compiled model in a folder: plan.json, weights.bin, and kernels.ARCH.cubin or .ptx."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np

from .driver import Driver, DriverMissing, open_driver
from .model import Model


def load(folder: str | os.PathLike, device: int = 0, driver: Driver | None = None) -> Model:
    """The model in a folder, on a GPU. DriverMissing if no GPU, or no code for it, is there."""
    path = Path(folder)
    driver = driver or open_driver(device)
    plan = json.loads((path / "plan.json").read_text())
    weights = np.fromfile(path / "weights.bin", np.uint8)
    return Model(plan, weights, code_for(path, driver.arch), driver)


def code_for(folder: Path, arch: str) -> bytes:
    """Machine code that an architecture runs: its own, or that of an older one of the same major
    number; else PTX of an older one, which the driver compiles."""
    wanted = _number(arch)
    cubins = {_number(p.name): p for p in folder.glob("kernels.sm_*.cubin")}
    texts = {_number(p.name): p for p in folder.glob("kernels.sm_*.ptx")}
    near = [n for n in cubins if n <= wanted and n // 10 == wanted // 10]
    older = [n for n in texts if n <= wanted]
    if near:
        return cubins[max(near)].read_bytes()
    if older:
        return texts[max(older)].read_bytes()
    raise DriverMissing(
        f"{folder} holds no code that an {arch} GPU runs; make it there with: "
        f"nvcc -cubin -arch={arch} -o kernels.{arch}.cubin kernels.cu"
    )


def _number(text: str) -> int:
    """90 of sm_90 or kernels.sm_90a.ptx."""
    found = re.search(r"sm_(\d+)", text)
    return int(found[1]) if found else 0
