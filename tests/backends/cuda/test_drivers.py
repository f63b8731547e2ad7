"""Which driver and compiler are found, and what is said where there is none."""

import ctypes
import sys

import numpy as np
import pytest
from cuda_programs import cuda_of, needs_nvcc

import graphc
from graphc.backends.cuda import machine_code as code
from graphc.backends.cuda import nvcc, nvrtc
from graphc.backends.cuda.gpu import image_for
from graphc.backends.cuda.runtime import DriverMissing, bindings, driver, open_driver
from graphc.errors import InternalError, ModelError, UnsupportedError

GRAPH = """graph @g(%x: f32[9]) -> ? {
  %y = Sqrt(%x)
  return %y
}"""


@pytest.fixture
def without_driver(monkeypatch):
    """There is no driver library."""

    found = ctypes.CDLL

    def missing(name, *args, **options):
        if name in driver.LIBRARIES:
            raise OSError(name)
        return found(name, *args, **options)

    driver.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    yield
    driver.library.cache_clear()


@pytest.fixture
def without_bindings(monkeypatch):
    """There is a driver library, but neither PyCUDA nor cuda-python."""
    monkeypatch.setattr(bindings, "library", lambda: None)
    for name in ("pycuda", "pycuda.driver", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv(bindings.CHOICE, raising=False)


def test_no_driver(without_driver):
    with pytest.raises(DriverMissing, match="NVIDIA's driver is not here .*libcuda.so.1"):
        open_driver()


def test_compiling_for_a_gpu_says_what_is_missing(without_driver):
    graph = graphc.parse(GRAPH)
    with pytest.raises(UnsupportedError, match=r"libcuda.so.1.*simulate=True \(--simulate\)"):
        graphc.compile(graph, target="cuda")
    model = graphc.compile(graph, target="cuda", simulate=True)
    assert model.run([np.full(9, 4, np.float32)])[0][0] == 2


def test_no_bindings(without_bindings):
    with pytest.raises(DriverMissing) as error:
        open_driver()
    text = str(error.value)
    assert "pycuda: cannot be imported" in text and "pip install pycuda" in text
    assert "cuda-python: cannot be imported" in text and "pip install cuda-python" in text


def test_one_of_the_bindings_is_chosen(without_bindings, monkeypatch):
    monkeypatch.setenv(bindings.CHOICE, "cuda-python")
    with pytest.raises(DriverMissing) as error:
        open_driver()
    assert "pycuda" not in str(error.value)
    monkeypatch.setenv(bindings.CHOICE, "opencl")
    with pytest.raises(DriverMissing, match="'opencl'; it can be pycuda or cuda-python"):
        open_driver()


def test_the_second_is_tried_if_the_first_fails(without_bindings, monkeypatch):
    monkeypatch.setattr(bindings, "_open_cuda_python", lambda ordinal: f"GPU {ordinal}")
    assert open_driver(3) == "GPU 3"


def test_devices_are_counted():
    with pytest.raises(DriverMissing, match="no GPU 2: there are 2, numbered from 0"):
        driver.check_ordinal(2, 2)
    with pytest.raises(DriverMissing, match="no GPU 0: the driver finds none"):
        driver.check_ordinal(0, 0)


# ---------------------------------------------------------------- compilers


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("NVCC", "no-such-compiler")
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: None)


def test_no_compiler(no_compiler):
    assert code.compiler() is None and code.architectures() == []
    for make in (code.machine_code, image_for):
        with pytest.raises(UnsupportedError, match="neither nvcc.*pip install nvidia-cuda-nvrtc"):
            make("", "sm_80")


def test_a_compiler_that_is_asked_for_is_not_there(monkeypatch, no_compiler):
    monkeypatch.setenv(code.COMPILER, "nvrtc")
    with pytest.raises(UnsupportedError, match=f"nvrtc, which {code.COMPILER} .* pip install"):
        code.machine_code("", "sm_80")


def test_a_compiler_is_chosen(monkeypatch, no_compiler):
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: "libnvrtc.so")
    assert code.compiler() == "nvrtc"
    monkeypatch.setenv(code.COMPILER, "nvcc")
    assert code.compiler() is None
    monkeypatch.setenv(code.COMPILER, "gcc")
    with pytest.raises(ModelError, match="'gcc'; it can be nvcc or nvrtc"):
        code.compiler()


def test_equal_text_is_compiled_once(monkeypatch, cache):
    made = []

    def compile(text, arch, form):
        made.append((text, arch, form))
        return f"{text} for {arch}".encode()

    monkeypatch.setattr(nvcc, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(nvcc, "nvcc_version", lambda: "13.0")
    monkeypatch.setattr(nvcc, "compile_cuda", compile)
    for text in ("a", "b", "a"):
        for arch in ("sm_80", "sm_90"):
            assert code.machine_code(text, arch) == f"{text} for {arch}".encode()
    assert len(made) == 4
    monkeypatch.setattr(nvcc, "nvcc_version", lambda: "13.1")
    code.machine_code("a", "sm_80")
    assert len(made) == 5


def test_a_gpu_newer_than_the_compiler_gets_ptx(monkeypatch):
    monkeypatch.setattr("graphc.backends.cuda.gpu.architectures", lambda: ["sm_75", "sm_90"])
    made = "graphc.backends.cuda.gpu.machine_code"
    monkeypatch.setattr(made, lambda text, arch, form="cubin": f"{form} {arch}")
    assert image_for("", "sm_90") == "cubin sm_90"
    assert image_for("", "sm_120") == "ptx sm_90"
    monkeypatch.setattr("graphc.backends.cuda.gpu.architectures", lambda: ["sm_90", "sm_90a"])
    assert image_for("", "sm_90") == "cubin sm_90a"
    assert image_for("", "sm_120") == "ptx sm_90"
    monkeypatch.setattr("graphc.backends.cuda.gpu.architectures", lambda: ["sm_75", "sm_90"])
    with pytest.raises(UnsupportedError, match="sm_70 is too old: .* from sm_75 on"):
        image_for("", "sm_70")


@needs_nvcc
def test_nvcc_is_kept_in_the_cache(cache):
    text = cuda_of(GRAPH).text
    first = code.machine_code(text, code.architectures()[-1])
    assert first.startswith(b"\x7fELF")
    assert code.machine_code(text, code.architectures()[-1]) == first


needs_nvrtc = pytest.mark.skipif(nvrtc.find_nvrtc() is None, reason="needs NVRTC")


@needs_nvrtc
@pytest.mark.parametrize("form", code.FORMS)
def test_nvrtc_compiles(form):
    arch = nvrtc.nvrtc_architectures()[0]
    found = nvrtc.compile_nvrtc(cuda_of(GRAPH).text, arch, form)
    assert found.startswith(b"\x7fELF") if form == "cubin" else b".visible .entry" in found


@needs_nvrtc
def test_what_nvrtc_says_is_told():
    with pytest.raises(InternalError, match="expected a"):
        nvrtc.compile_nvrtc("extern int", nvrtc.nvrtc_architectures()[0], "cubin")
    with pytest.raises(ModelError, match="no code for sm_1"):
        nvrtc.compile_nvrtc("", "sm_1", "cubin")
