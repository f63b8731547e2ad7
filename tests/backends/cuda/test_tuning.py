"""Tiles that are chosen by measuring them, on a driver whose GPU is the simulator."""

import re

import numpy as np
import pytest
from cuda_programs import graph_of, needs_compiler, needs_nvcc, needs_nvdisasm
from fake_driver import FakeDriver
from ptx_texts import needs_c

from graphc.backends import tuning as choices
from graphc.backends.cache import DiskCache
from graphc.backends.cuda import tuning
from graphc.backends.cuda.runtime.driver import DriverMissing
from graphc.backends.cuda.simulator import simulate
from graphc.backends.cuda.strategies import strategies
from graphc.driver import program_for
from graphc.errors import ModelError, ModelWarning, UnsupportedError
from graphc.ir.interp import interpret
from graphc.passes.lower import lower

PRODUCT = """graph @g(%x: f32[40,36], %w: f32[36,44]) -> ? {
  %y = MatMul(%x, %w)
  return %y
}"""


class Timed(FakeDriver):
    """A GPU on which each candidate takes less time than the one before, but for the last."""

    candidates = 0

    def load(self, image: bytes):
        self.candidates += 1
        return super().load(image)

    def elapsed(self, start, end) -> float:
        return 9.0 if self.candidates == choices.TRIED else 1.0 / self.candidates


@pytest.fixture
def driver(monkeypatch) -> Timed:
    monkeypatch.setattr(tuning, "image_for", lambda text, arch: text.encode())
    return Timed()


@pytest.fixture
def tuner(driver, tmp_path) -> choices.Tuner:
    machine, measure = tuning.machine_name(driver), tuning.measure(driver)
    return choices.Tuner(machine, measure, DiskCache(tmp_path))


@pytest.mark.suite
@needs_compiler
def test_the_fastest_is_taken_and_remembered(tuner, driver):
    seen = []

    def choose(about, ranked, kernels_of):
        seen.append((ranked, tuner.choose(about, ranked, kernels_of)))
        return seen[-1][1]

    for _ in range(2):
        lower(graph_of(PRODUCT), strategies("sm_90", choose))
        assert driver.candidates == choices.TRIED  # measured once
    (ranked, taken), again = seen
    assert taken is ranked[choices.TRIED - 2] and again[1] == taken


@needs_compiler
def test_a_tuned_model_computes_the_same(driver, monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "tuned_device", lambda ordinal, arch: driver)
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))
    from graphc.backends.cuda import emit

    program = program_for(graph_of(PRODUCT), "cuda", tune=True)
    assert driver.candidates == choices.TRIED
    inputs = [np.ones(t.static_shape, np.float32) for _, t in program.inputs]
    (found,) = simulate(emit(program))(inputs)
    np.testing.assert_allclose(found, interpret(graph_of(PRODUCT), inputs)[0], 1e-5)


@needs_compiler
def test_candidates_that_do_not_run_are_left_out(tuner, driver):
    driver.limit = 0  # bytes of memory
    taken = []

    def choose(about, ranked, kernels_of):
        taken.append((ranked, tuner.choose(about, ranked, kernels_of)))
        return taken[-1][1]

    lower(graph_of(PRODUCT), strategies("sm_90", choose))
    ((ranked, tile),) = taken
    assert tile is ranked[0]


def test_without_a_gpu_it_is_said(monkeypatch):
    def missing(ordinal):
        raise DriverMissing("no GPU can be used: none")

    monkeypatch.setattr("graphc.backends.cuda.gpu.open_driver", missing)
    monkeypatch.setattr(tuning, "find_nvdisasm", lambda: None)
    with pytest.raises(UnsupportedError, match="no GPU can be used"):
        program_for(graph_of(PRODUCT), "cuda", tune=True)


@needs_c
@needs_nvcc
@needs_nvdisasm
def test_without_a_gpu_times_are_predicted(monkeypatch, tmp_path):
    def missing(ordinal):
        raise DriverMissing("no GPU can be used: none")

    monkeypatch.setattr("graphc.backends.cuda.gpu.open_driver", missing)
    with pytest.warns(ModelWarning, match="sm_90 are chosen by predicted.*no GPU can"):
        timing = tuning.timing_for(0, "sm_90,sm_80")
    assert timing.arch == "sm_90" and "predicted" in timing.machine
    monkeypatch.setattr(choices, "TRIED", 2)
    seen = []

    def measure(candidates):
        seen.append(timing.measure(candidates))
        return seen[-1]

    tuner = choices.Tuner(timing.machine, measure, DiskCache(tmp_path))
    lower(graph_of(PRODUCT), strategies("sm_90", tuner.choose))
    ((first, second),) = seen
    assert 1e-3 < first < 1 and 1e-3 < second < 1


def test_tiles_are_measured_where_they_run(monkeypatch):
    monkeypatch.setattr(tuning, "open_gpu", lambda ordinal: FakeDriver())
    assert tuning.tuned_device(0, "sm_90,sm_80").arch == "sm_90"
    with pytest.raises(ModelError, match=re.escape("found sm_80,sm_90")):
        tuning.tuned_device(0, "sm_80,sm_90")
