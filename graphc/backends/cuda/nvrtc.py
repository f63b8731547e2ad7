"""Compiles CUDA C with NVRTC, NVIDIA's compiler as a library (PyPI: nvidia-cuda-nvrtc).

NVRTC has no headers of C's library: what kernels need of them is given to it as text.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from graphc.backends.cuda.nvcc import with_features
from graphc.errors import InternalError, ModelError, UnsupportedError

NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so")
INSTALL = "pip install nvidia-cuda-nvrtc"
OPTIONS = ("--std=c++17",)
HEADERS = {
    "stdint.h": """#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT64_C(x) x##LL
#define UINT64_C(x) x##ULL
"""
    + "".join(
        f"#define INT{bits}_MIN (-{2 ** (bits - 1) - 1}{suffix} - 1)\n"
        f"#define INT{bits}_MAX {2 ** (bits - 1) - 1}{suffix}\n"
        f"#define UINT{bits}_MAX {2**bits - 1}{'u' if bits >= 32 else ''}{suffix}\n"
        for bits, suffix in ((8, ""), (16, ""), (32, ""), (64, "ll"))
    ),
    "math.h": """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
""",
}


def find_nvrtc() -> Path | None:
    """NVRTC's library: the one PyPI's package holds, else what the system has."""
    for path in (*_packaged(), *map(Path, NAMES)):
        try:
            ctypes.CDLL(str(path))
            return path
        except OSError:
            continue
    return None


def _packaged() -> Iterator[Path]:
    """Libraries in nvidia-cuda-nvrtc, newest first."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob("*/lib/libnvrtc.so.[0-9]*"), reverse=True)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    path = find_nvrtc()
    if path is None:
        raise UnsupportedError(f"NVRTC was not found; {INSTALL}")
    # Some versions look for this by its name alone, which finds one that is loaded already.
    for part in path.parent.glob("libnvrtc-builtins.so*") if path.is_absolute() else ():
        ctypes.CDLL(str(part))
    return ctypes.CDLL(str(path))


def _call(name: str, *args: object) -> None:
    """A function of NVRTC; InternalError unless it succeeds."""
    status = getattr(_library(), name)(*args)
    if status:
        describe = _library().nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        raise InternalError(f"{name}: {describe(status).decode()}")


def nvrtc_version() -> str:
    """Like 13.0."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def nvrtc_architectures() -> tuple[str, ...]:
    """The architectures that NVRTC makes code for (sm_75, ...)."""
    count = ctypes.c_int()
    _call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _call("nvrtcGetSupportedArchs", numbers)
    return with_features([f"sm_{number}" for number in numbers], nvrtc_version())


def compile_nvrtc(text: str, arch: str, form: str, strict: bool = False) -> bytes:
    """The `form` (cubin or ptx) of a CUDA file for an architecture (sm_80). `strict`: warnings are
    errors.

    ModelError for an architecture NVRTC does not know, InternalError, with what it says, if it
    rejects the text.
    """
    if arch not in nvrtc_architectures():
        known = ", ".join(nvrtc_architectures())
        raise ModelError(f"NVRTC makes no code for {arch}; it does for {known}")
    program = ctypes.c_void_p()
    headers = (ctypes.c_char_p * len(HEADERS))(*(h.encode() for h in HEADERS.values()))
    names = (ctypes.c_char_p * len(HEADERS))(*(name.encode() for name in HEADERS))
    _call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu",
          len(HEADERS), headers, names)  # fmt: skip
    try:
        target = arch if form == "cubin" else arch.replace("sm_", "compute_")
        options = [option.encode() for option in (f"--gpu-architecture={target}", *OPTIONS)]
        given = (ctypes.c_char_p * len(options))(*options)
        status = _library().nvrtcCompileProgram(program, len(options), given)
        said = _read("nvrtcGetProgramLog", program).rstrip(b"\0").decode().strip()
        if status or (strict and re.search(r"\bwarning\b", said)):
            raise InternalError(f"NVRTC {arch} complains:\n{said[:4000]}")
        image = _read("nvrtcGetCUBIN" if form == "cubin" else "nvrtcGetPTX", program)
        return image if form == "cubin" else image.rstrip(b"\0")
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def _read(name: str, program: ctypes.c_void_p) -> bytes:
    """What a pair of functions NAMESize and NAME gives."""
    size = ctypes.c_size_t()
    _call(f"{name}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    _call(name, program, buffer)
    return buffer.raw[: size.value]
