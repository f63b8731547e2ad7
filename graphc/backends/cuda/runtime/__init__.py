"""Launches a compiled model on a GPU. This package stands alone: it needs Python's own library,
numpy, and one of PyCUDA and cuda-python, and is copied as it is beside the models it runs.

    driver          what is asked of a GPU
    bindings        the choice between the two sets of bindings
    pycuda_driver   through PyCUDA
    cuda_python     through NVIDIA's cuda-python
    arrays          arrays in the memory of a GPU, exchanged with other libraries without copies
    constants       weights, shared by the models that have them
    plan            a launch plan at some sizes
    model           a launch plan with its weights and machine code, ready to run
    artifact        the same from the files of a folder
"""

from .arrays import DeviceArray, adopt
from .bindings import open_driver
from .driver import Driver, DriverError, DriverMissing
from .model import Model

__all__ = [
    "DeviceArray", "Driver", "DriverError", "DriverMissing", "Model", "adopt", "open_driver",
]  # fmt: skip
