"""A session with a GPU through real bindings, run in a process of its own by test_bindings.py.

    python bindings_session.py pycuda|cuda-python

Kernels run in the simulator, by way of fake_libcuda.cpp; on a GPU the same calls are made.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cuda_programs import BRANCHES, cuda_of, inputs_of
from fake_gpu import image_of

from graphc.backends.cuda.bundle import launch_plan
from graphc.backends.cuda.runtime import DeviceArray, DriverError, Model, adopt, open_driver


class Foreign:
    """An array of another library."""

    def __init__(self, array: DeviceArray):
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def main() -> None:
    """Prints what was seen as JSON."""
    driver = open_driver()
    source = cuda_of(BRANCHES)
    plan, weights = launch_plan(source)
    model = Model(plan, weights, image_of(source.text), driver)
    inputs = inputs_of(source.program)
    runs = [model.run(inputs) for _ in range(3)]
    resident = model.to_device(inputs[0])
    runs += [[y.numpy() for y in model.run([resident])] for _ in range(3)]
    foreign = adopt(Foreign(resident))
    runs.append([np.asarray(y) for y in model.run([foreign])])
    second = Model(plan, weights, image_of(source.text), driver)
    with ThreadPoolExecutor(4) as threads:  # two models, each in two threads
        jobs = [threads.submit(runner.run, [x]) for _ in range(6) for runner in (model, second)
                for x in (inputs[0], resident)]  # fmt: skip
        runs += [[np.asarray(y) for y in job.result()] for job in jobs]
    seen = {
        "driver": driver.name, "device": driver.device, "arch": driver.arch,
        "streams": plan["streams"],
        "equal": all(a.tobytes() == b.tobytes() for run in runs for a, b in zip(run, runs[0])),
        "sums": [float(y.sum()) for y in runs[0]],
        "times": model.times([resident], 2),
    }  # fmt: skip
    with driver.current():
        apart = driver.stream(apart=True)
        driver.begin_capture(apart)
        seen["read"] = resident.numpy().tobytes() == inputs[0].tobytes()
        driver.free_graph(driver.end_capture(apart))
    try:
        model.to_device(np.lib.stride_tricks.as_strided(inputs[0], (1 << 30, 1 << 10), (0, 0)))
    except DriverError as error:
        seen["memory"] = str(error)
    os.environ["FAKE_CUDA_BROKEN"] = plan["launches"][1]["function"]
    os.environ["GRAPHC_CUDA_CHECK"] = "1"
    try:
        model.run(inputs)
    except DriverError as error:
        seen["broken"] = str(error)
    print(json.dumps(seen))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()
