"""A machine with a GPU, without one: a driver library and an nvcc, both on the host simulator.

    python tests/backends/cuda/fake_gpu.py FOLDER
    LD_LIBRARY_PATH=FOLDER NVCC=FOLDER/nvcc GRAPHC_CUDA_COMPILER=nvcc pytest -m gpu

FOLDER/libcuda.so.1 is fake_libcuda.cpp. FOLDER/nvcc makes "machine code" that it runs: the path of
kernels that the simulator has built, and what parameters point to. So everything that needs a GPU
can be rehearsed, through real bindings, except for times.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fake_driver import element_bytes

from graphc.backends.cuda.simulator.build import library_of
from graphc.backends.cuda.simulator.translate import KERNEL, MAP, POINTER, SIZE

HERE = Path(__file__).parent
ARCHS = ("sm_80", "sm_90", "sm_90a")
NVCC = """#!/bin/sh
PYTHONPATH={path} exec {python} {script} nvcc "$@"
"""


def make(folder: Path) -> Path:
    """Puts the two into a folder."""
    source = folder / "libcuda.cpp"
    text = (HERE / "fake_libcuda.cpp").read_text()
    absent = [name for name in wanted_by_pycuda() if f" {name}(" not in text]
    stubs = [f"EXPORT Status {name}() {{ return 801; }}  // not supported" for name in absent]
    source.write_text("\n".join([text, *stubs, ""]))
    command = ["g++", "-std=c++17", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden",
               source, "-o", folder / "libcuda.so.1", "-ldl"]  # fmt: skip
    subprocess.run(command, check=True)
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    compiler = folder / "nvcc"
    compiler.write_text(NVCC.format(path=path, python=sys.executable, script=HERE / "fake_gpu.py"))
    compiler.chmod(0o755)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a process that finds the two."""
    libraries = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    return {**os.environ, "LD_LIBRARY_PATH": libraries, "NVCC": str(folder / "nvcc"),
            "GRAPHC_CUDA_COMPILER": "nvcc", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
            "GRAPHC_CACHE_DIR": str(folder / "cache"), **more}  # fmt: skip


def wanted_by_pycuda() -> list[str]:
    """All functions of the driver that PyCUDA needs to be loaded."""
    spec = importlib.util.find_spec("pycuda")
    if spec is None or spec.origin is None:
        return []
    (binary,) = Path(spec.origin).parent.glob("_driver.*")
    listed = subprocess.run(["nm", "-D", "-u", binary], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"\bcu[A-Z]\w*", listed)))


def image_of(text: str) -> bytes:
    """What fake_libcuda.cpp takes for a module."""
    lines = [str(library_of(text)._name)]
    for kernel in KERNEL.finditer(text):
        sizes = [element_bytes(p["type"]) for p in POINTER.finditer(kernel["params"])]
        sizes += [0 for _ in SIZE.finditer(kernel["params"])]  # numbers after the pointers
        sizes += [-1 for _ in MAP.finditer(kernel["params"])]  # and maps of tensors
        lines.append(" ".join(map(str, [kernel["name"], *sizes])))
    return "\n".join(lines).encode()


def nvcc(arguments: Sequence[str]) -> None:
    """What graphc asks of nvcc."""
    if "--version" in arguments:
        print("fake, V0.0")
    elif "--list-gpu-arch" in arguments:
        print("\n".join(arch.replace("sm_", "compute_") for arch in ARCHS))
    else:
        target = Path(arguments[arguments.index("-o") + 1])
        sources = [Path(a) for a in arguments if a.endswith(".cu")]
        if "-cubin" in arguments or "-ptx" in arguments:
            target.write_bytes(image_of(sources[0].read_text()))
        else:
            link(target, [a for a in arguments if a.endswith(".cpp")], sources)


def link(target: Path, sources: Sequence[str], kernels: Sequence[Path]) -> None:
    """A program of the C++ launcher, with NAME_kernels.cu of one model or more. Needs the headers
    of CUDA's toolkit."""
    lines, known = [], []
    for path in kernels:
        image = image_of((path.parent / "kernels.cu").read_text()).decode()
        for name, symbol in re.findall(r"^#define (\w+) (\w+)$", path.read_text(), re.MULTILINE):
            lines.append(f'extern "C" void {symbol}() {{}}')
            known.append(f"X({symbol}, {json.dumps(image)}, {json.dumps(name)})")
    glue = target.with_suffix(".inc")
    glue.write_text("\n".join([*lines, f"#define KERNELS(X) {' '.join(known)}", ""]))
    flags = ("-std=c++17", "-Wall", f"-I{toolkit() / 'include'}", f'-DGLUE="{glue.resolve()}"')
    command = ["g++", *flags, *sources, HERE / "fake_cudart.cpp", "-o", target, "-ldl"]
    subprocess.run(command, check=True)


def toolkit(nvcc: str = "nvcc") -> Path:
    """The folder of CUDA's toolkit, as the real nvcc tells it."""
    said = subprocess.run([nvcc, "--dryrun", "x.cu"], capture_output=True, text=True).stderr
    (top,) = [line.split("=", 1)[1] for line in said.splitlines() if line.startswith("#$ TOP=")]
    return Path(top.strip())


if __name__ == "__main__":
    if sys.argv[1:2] == ["nvcc"]:
        nvcc(sys.argv[2:])
    else:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        make(Path(sys.argv[1]).resolve())
