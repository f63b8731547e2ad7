"""The official ONNX backend suite, as shipped in the onnx package, on the interpreter and targets.

The cases listed in conformance_sample.txt run by default. GRAPHC_CONFORMANCE=all runs every case,
and GRAPHC_CONFORMANCE=PATTERN those whose names match a regular expression. A case that raises
UnsupportedError is skipped; known_failures.txt lists those that fail, with reasons.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plain_c
import pytest
from onnx import numpy_helper

from graphc import backend
from graphc.backends.cuda.nvcc import find_nvcc
from graphc.errors import UnsupportedError

CHOICE = os.environ.get("GRAPHC_CONFORMANCE", "")
C_SHARE = 5  # one sampled case in so many is compiled by the C compiler too, and simulated
PTX_SHARE = 8  # and one in so many compiled by nvcc and run as PTX
SUITES = ("node", "simple", "pytorch-converted", "pytorch-operator")


def _lines(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


KNOWN = {name: why for name, why in (x.split(maxsplit=1) for x in _lines("known_failures.txt"))}


@dataclass(frozen=True)
class Case:
    """A model with sets of inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    data_sets: list
    rtol: float
    atol: float
    narrow: dict[str, float] = field(default_factory=lambda: {"bfloat16": 2.0**-6})


@lru_cache(maxsize=1)
def cases() -> dict[str, Any]:
    """The tests of all suites by name, as the loader gives them (about 15 seconds)."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = [test for suite in SUITES for test in load_model_tests(kind=suite)]
    return {test.name: test for test in sorted(tests, key=lambda test: test.name)}


def chosen() -> list[str]:
    """The names of the cases to run."""
    if not CHOICE:
        return _lines("conformance_sample.txt")
    return [name for name in cases() if CHOICE == "all" or re.search(CHOICE, name)]


def load(test: Any) -> Case:
    if test.model is not None:
        data_sets = [tuple([plain(v) for v in side] for side in pair) for pair in test.data_sets]
        return Case(test.name, test.model, data_sets, test.rtol, test.atol)
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    data_sets = [
        (
            read_values(inside, "input", model.graph.input),
            read_values(inside, "output", model.graph.output),
        )
        for inside in sorted(folder.glob("test_data_set*"))
    ]
    return Case(test.name, model, data_sets, test.rtol, test.atol)


def plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def read_values(folder: Path, prefix: str, declared: Any) -> list[Any]:
    paths = (folder / f"{prefix}_{n}.pb" for n in range(len(declared)))
    return [read_value(p, info.type) for p, info in zip(paths, declared) if p.exists()]


def read_value(path: Path, declared: onnx.TypeProto) -> Any:
    kind, raw = declared.WhichOneof("value"), path.read_bytes()
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(raw))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(raw))
    return numpy_helper.to_array(onnx.TensorProto.FromString(raw))


def compare(wanted: Any, found: Any, case: Case) -> None:
    """Structure, shape, dtype and values, with the tolerances of the official runner."""
    if isinstance(wanted, (list, tuple)):
        assert isinstance(found, (list, tuple)) and len(found) == len(wanted)
        for pair in zip(wanted, found):
            compare(*pair, case)
        return
    if wanted is None:
        assert found is None
        return
    assert found.shape == tuple(wanted.shape)
    if wanted.dtype.kind in "OUS":
        assert np.array_equal(found, wanted)
        return
    assert found.dtype == wanted.dtype
    rtol = max(case.rtol, case.narrow.get(wanted.dtype.name, 0.0))
    if wanted.dtype.isbuiltin != 1:
        wanted, found = wanted.astype(np.float32), found.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=case.atol)


def run(case: Case, device: str, **options: Any) -> None:
    if device in ("CUDA", "SIMULATOR", "PTX"):
        # Attention in one kernel stays in float32 where the reference rounds to the narrow type.
        case.narrow["float16"] = 2.0**-9
    try:
        prepare = plain_c.prepare if device == "PLAIN" else backend.prepare
        prepared = prepare(case.model, device, **options)
        results = [prepared.run(inputs) for inputs, _ in case.data_sets]
    except UnsupportedError as error:
        pytest.skip(str(error))
    for (_, wanted), found in zip(case.data_sets, results):
        compare(wanted, list(found), case)


def check(name: str, device: str, **options: Any) -> None:
    if name not in cases():
        pytest.skip("this version of onnx has no such case")
    if name in KNOWN:
        pytest.xfail(KNOWN[name])
    run(load(cases()[name]), device, **options)


@pytest.mark.suite(20)
@pytest.mark.parametrize("name", chosen())
def test_interpreter(name):
    check(name, "INTERP")


@pytest.mark.suite(30)
@pytest.mark.parametrize("name", chosen())
def test_cpu(name):
    check(name, "CPU")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("name", chosen() if CHOICE else chosen()[::C_SHARE])
def test_c(name):
    check(name, "C", sanitize=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("name", chosen() if CHOICE else chosen()[2::C_SHARE])
def test_plain_c(name):
    check(name, "PLAIN")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("name", chosen() if CHOICE else chosen()[1::C_SHARE])
def test_cuda_simulated(name):
    check(name, "SIMULATOR")


@pytest.mark.skipif(not (find_nvcc() and shutil.which("gcc")), reason="needs nvcc and gcc")
@pytest.mark.parametrize("name", chosen() if CHOICE else chosen()[3::PTX_SHARE])
def test_cuda_ptx(name):
    check(name, "PTX")


@pytest.mark.gpu
@pytest.mark.parametrize("name", chosen())
def test_cuda(name):
    check(name, "CUDA")
