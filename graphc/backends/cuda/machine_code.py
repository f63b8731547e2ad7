"""Machine code for CUDA C: by nvcc, else by NVRTC, kept in the disk cache by content.

The key of an entry is the text, the architecture and the compiler, so that equal kernels are
compiled once, whichever model they come from.
"""

from __future__ import annotations

import hashlib
import os

from graphc.backends.cache import default_cache
from graphc.backends.cuda import nvcc, nvrtc
from graphc.errors import ModelError, UnsupportedError

FORMS = nvcc.FORMS
COMPILER = "GRAPHC_CUDA_COMPILER"  # nvcc or nvrtc, where not what is found
INSTALL = {
    "nvcc": "install CUDA's toolkit (or set NVCC to the path of nvcc)",
    "nvrtc": nvrtc.INSTALL,
}


def compiler() -> str | None:
    """Which compiler there is: nvcc, nvrtc or none; $GRAPHC_CUDA_COMPILER chooses one."""
    finders = {"nvcc": nvcc.find_nvcc, "nvrtc": nvrtc.find_nvrtc}
    choice = os.environ.get(COMPILER, "")
    if choice not in ("", *finders):
        raise ModelError(f"{COMPILER} is {choice!r}; it can be {' or '.join(finders)}")
    return next((name for name in finders if choice in ("", name) and finders[name]()), None)


def missing() -> str:
    """What to say where there is no compiler."""
    choice = os.environ.get(COMPILER)
    if choice:
        return f"{choice}, which {COMPILER} asks for, was not found: {INSTALL[choice]}"
    return f"neither nvcc nor NVRTC was found: {', or '.join(INSTALL.values())}"


def architectures() -> list[str]:
    """The architectures that code can be made for here (sm_75, ...); none without a compiler."""
    name = compiler()
    if name is None:
        return []
    return nvcc.architectures() if name == "nvcc" else list(nvrtc.nvrtc_architectures())


def machine_code(text: str, arch: str, form: str = "cubin") -> bytes:
    """The `form` of a CUDA file for an architecture (sm_80).

    UnsupportedError without a compiler, ModelError for an architecture it does not know,
    InternalError, with what the compiler says, if it rejects the text.
    """
    name = compiler()
    if name is None:
        raise UnsupportedError(missing())
    if form not in FORMS:
        raise ModelError(f"form {form!r} is not one of {', '.join(FORMS)}")
    version = nvcc.nvcc_version() if name == "nvcc" else nvrtc.nvrtc_version()
    cache = default_cache()
    digest = hashlib.sha256()
    for part in ("cuda", name, version, arch, form, text):
        digest.update(f"{len(part)}:{part}".encode())
    key = digest.hexdigest()
    image = None if cache is None else cache.get(key)
    if image is None:
        make = nvcc.compile_cuda if name == "nvcc" else nvrtc.compile_nvrtc
        image = make(text, arch, form)
        if cache is not None:
            cache.put(key, image)
    return image
