"""Shapes that data decides, in bundles for microcontrollers, on emulated boards and in libraries:
they give what ONNX Runtime gives, and tell the true sizes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import test_counts
from differential import assert_same

import graphc
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.boards import ARM, BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.backends.micro_c.host import HostModel
from graphc.cli import main
from graphc.driver import configured, policy, to_program
from graphc.ir.program import Program
from graphc.passes.counts import counted
from graphc.passes.specialise import specialise

sys.path.insert(0, str(Path(__file__).parent / "frontend"))
sys.path.insert(0, str(Path(__file__).parent / "backends" / "micro_c"))

from bundles import SANITISED, STRICT, checked
from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

BOTH = """g (float[12,17] x, bool[12] c) => (i, d) {
    i = NonZero(x)
    d = Compress<axis = 0>(x, c)
}"""
CASES = {
    **test_counts.CASES,
    "both": (BOTH, [(test_counts.sparse(p, 12, 17), np.arange(12) < 12 * p) for p in (0.4, 0, 1)]),
}


def program_of(source: str, **options: object) -> Program:
    target, settings = configured("c", None, options)
    graph = specialise(graphc.import_onnx(model(source)), partial=True, policy=policy(target))
    typed = counted(graph, policy(target), print)
    assert typed is not None
    return to_program(typed, target, settings)


def by_onnx_runtime(source: str, inputs) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model(source).SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], inputs)))


@pytest.mark.parametrize("io", ["caller", "arena"])
@pytest.mark.parametrize("name", CASES)
def test_c_code_gives_what_onnx_runtime_does(name, io):
    source, cases = CASES[name]
    run = HostModel(program_of(source, io=io), sanitize=True)
    assert run.model.program.counts
    for inputs in cases:
        assert_same(run(list(inputs)), by_onnx_runtime(source, inputs), 1e-5, "in C")


@pytest.mark.parametrize("size_type", ["int64_t", "int32_t"])
@pytest.mark.parametrize("name", ["values", "rows", "both", "stacked", "boxes"])
def test_bundles_test_the_shapes_that_they_tell(name, size_type, tmp_path):
    source, cases = CASES[name]
    samples = list(cases[0]), by_onnx_runtime(source, cases[0])
    write_bundle(program_of(source), tmp_path, BundleOptions("net", samples=samples))
    flags = ["-std=c99", "-O1", f"-DNET_SIZE_T={size_type}", *STRICT, *SANITISED]
    checked(["gcc", *flags, "net.c", "net_weights.c", "net_test.c", "-lm", "-o", "t"], tmp_path)
    assert checked(["./t"], tmp_path).count("accepted") == len(samples[1])
    text = (tmp_path / "net_test.c").read_text()
    (tmp_path / "net_test.c").write_text(text.replace("shape[0] != ", "shape[0] == "))
    checked(["gcc", *flags, "net.c", "net_weights.c", "net_test.c", "-lm", "-o", "t"], tmp_path)
    done = subprocess.run(["./t"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "FAILED: the shape is another" in done.stdout


def test_outputs_need_room_for_the_most(tmp_path):
    """Whether they overlap is judged before the true sizes are known."""
    write_bundle(program_of(CASES["values"][0]), tmp_path, BundleOptions("net"))
    text = (tmp_path / "net.c").read_text()
    assert "net_apart(outputs->y, 816u, inputs->x, 816u)" in text
    assert "y: f32[count0], at most 816 bytes" in (tmp_path / "net.h").read_text()
    assert "count0: 0 to 204, which a run writes" in (tmp_path / "net.h").read_text()


@pytest.mark.skipif(bool(ARM.missing()), reason=f"{ARM.missing()} not installed")
@pytest.mark.parametrize("name", ["values", "boxes"])
def test_boards_tell_true_sizes(name):
    source, cases = CASES[name]
    program = program_of(source, cpu="cortex-m4")
    for inputs in cases[:2]:
        done = run_on_board(program, inputs, BOARDS["mps2-an386"])
        assert_same(done.outputs, by_onnx_runtime(source, inputs), 1e-5, "on a board")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
@pytest.mark.parametrize("name", ["values", "boxes", "both"])
def test_libraries_tell_true_sizes(name, tmp_path):
    source, cases = CASES[name]
    onnx.save(model(source), tmp_path / "m.onnx")
    library = tmp_path / "m.so"
    assert main(["compile", str(tmp_path / "m.onnx"), "-o", str(library)]) == 0
    code = ctypes.CDLL(str(library))
    code.m_create.restype = ctypes.c_void_p
    context = ctypes.c_void_p(code.m_create(1))
    for inputs in cases:
        expected = by_onnx_runtime(source, inputs)
        sizes = (ctypes.c_int64 * 8)(*[-1] * 8)
        room = [np.empty(4096, y.dtype) for y in expected]
        given = (ctypes.c_void_p * 8)(*(x.ctypes.data for x in inputs))
        places = (ctypes.c_void_p * 8)(*(y.ctypes.data for y in room))
        assert code.m_run(context, sizes, given, places) == 0
        for number, (y, wanted) in enumerate(zip(room, expected)):
            shape = (ctypes.c_int64 * 8)()
            assert getattr(code, f"m_output_shape_{number}")(sizes, shape) == 0
            assert tuple(shape[: wanted.ndim]) == wanted.shape
            assert_same([y[: wanted.size].reshape(wanted.shape)], [wanted], 1e-5, "a library")
    wrong = (ctypes.c_int64 * 8)(*[-1] * 8)
    assert code.m_output_shape_0(wrong, shape) == 2
    assert code.m_run(context, None, given, places) == -1
    code.m_destroy(context)


def test_what_has_no_size_is_refused_with_its_reason(tmp_path, capsys):
    onnx.save(model(test_counts.TOPMOST), tmp_path / "m.onnx")
    folder = str(tmp_path / "out")
    assert main(["compile", str(tmp_path / "m.onnx"), "--target", "c", "-o", folder]) == 2
    told = capsys.readouterr().err
    assert "it depends on what inputs hold" in told and "TopK: k is 2, but the axis has 0" in told
