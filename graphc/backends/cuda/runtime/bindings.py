"""The choice between the two sets of Python bindings. Neither is needed to compile."""

from __future__ import annotations

import os

from .driver import Driver, DriverMissing, library

CHOICE = "GRAPHC_CUDA_DRIVER"  # names the bindings to use


def open_driver(ordinal: int = 0) -> Driver:
    """A GPU of this machine, through PyCUDA or else cuda-python; DriverMissing says why not.

    The variable GRAPHC_CUDA_DRIVER (pycuda, cuda-python) chooses one of them.
    """
    choice = os.environ.get(CHOICE, "")
    bindings = {"pycuda": _open_pycuda, "cuda-python": _open_cuda_python}
    if choice and choice not in bindings:
        raise DriverMissing(f"{CHOICE} is {choice!r}; it can be {' or '.join(bindings)}")
    library()
    reasons = []
    for name, attempt in bindings.items():
        if choice not in ("", name):
            continue
        try:
            return attempt(ordinal)
        except DriverMissing as error:
            reasons.append(f"{name}: {error}")
    raise DriverMissing("no GPU can be used: " + "; ".join(reasons))


def _open_pycuda(ordinal: int) -> Driver:
    from .pycuda_driver import open_pycuda

    return open_pycuda(ordinal)


def _open_cuda_python(ordinal: int) -> Driver:
    from .cuda_python import open_cuda_python

    return open_cuda_python(ordinal)
