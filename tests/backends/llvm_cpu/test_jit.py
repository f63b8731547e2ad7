"""From LLVM IR to running code: passes, errors, symbols of the process, object files, the cache."""

import contextlib
import ctypes
import gc
import re
import threading

import numpy as np
import pytest

from graphc.backends.cache import DiskCache
from graphc.backends.llvm_cpu import jit, objects
from graphc.backends.llvm_cpu.target import host_target, named_target
from graphc.errors import InternalError

LIBM = """
declare float @expf(float)
declare float @erff(float)
declare double @tanh(double)
declare float @llvm.exp.f32(float)
define double @f(double %x) {
  %s = fptrunc double %x to float
  %a = call float @expf(float %s)
  %b = call float @erff(float %s)
  %c = call float @llvm.exp.f32(float %s)
  %d = call double @tanh(double %x)
  %ab = fadd float %a, %b
  %abc = fadd float %ab, %c
  %w = fpext float %abc to double
  %r = fadd double %w, %d
  ret double %r
}
"""


def _accumulators(rows: int, vectors: int, depth: int = 64) -> str:
    """A micro-kernel that keeps rows x vectors sums in an array on the stack."""
    vec = "<16 x float>"
    lines = [
        "define void @micro(ptr noalias %a, ptr noalias %b, ptr noalias %c) {",
        "entry:",
        f"  %sums = alloca [{rows * vectors * 16} x float], align 64",
    ]
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    for i, j in cells:
        lines.append(f"  %s{i}.{j} = getelementptr float, ptr %sums, i64 {(i * vectors + j) * 16}")
        lines.append(f"  store {vec} zeroinitializer, ptr %s{i}.{j}, align 64")
    lines += ["  br label %loop", "loop:", "  %k = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    lines += [f"  %row = mul i64 %k, {vectors * 16}"]
    for j in range(vectors):
        lines.append(f"  %o{j} = add i64 %row, {j * 16}")
        lines.append(f"  %p{j} = getelementptr float, ptr %b, i64 %o{j}")
        lines.append(f"  %b{j} = load {vec}, ptr %p{j}, align 4")
    for i in range(rows):  # each broadcast next to its use: the order keeps few registers alive
        lines.append(f"  %q{i} = add i64 %k, {i * depth}")
        lines.append(f"  %r{i} = getelementptr float, ptr %a, i64 %q{i}")
        lines.append(f"  %a{i} = load float, ptr %r{i}")
        lines.append(f"  %e{i} = insertelement {vec} poison, float %a{i}, i64 0")
        lines.append(
            f"  %v{i} = shufflevector {vec} %e{i}, {vec} poison, <16 x i32> zeroinitializer"
        )
        for j in range(vectors):
            lines.append(f"  %x{i}.{j} = load {vec}, ptr %s{i}.{j}, align 64")
            operands = f"{vec} %v{i}, {vec} %b{j}, {vec} %x{i}.{j}"
            lines.append(f"  %y{i}.{j} = call {vec} @llvm.fma.v16f32({operands})")
            lines.append(f"  store {vec} %y{i}.{j}, ptr %s{i}.{j}, align 64")
    lines += ["  %next = add i64 %k, 1", f"  %more = icmp ult i64 %next, {depth}"]
    lines += ["  br i1 %more, label %loop, label %done", "done:"]
    for i, j in cells:
        lines.append(f"  %z{i}.{j} = load {vec}, ptr %s{i}.{j}, align 64")
        lines.append(f"  %t{i}.{j} = getelementptr float, ptr %c, i64 {(i * vectors + j) * 16}")
        lines.append(f"  store {vec} %z{i}.{j}, ptr %t{i}.{j}, align 4")
    lines += ["  ret void", "}", f"declare {vec} @llvm.fma.v16f32({vec}, {vec}, {vec})"]
    return "\n".join(lines)


@pytest.mark.parametrize("pipeline", jit.PIPELINES)
def test_functions_of_libm_resolve(pipeline):
    library = objects.load_object(jit.compile_module(LIBM, pipeline=pipeline), ["f"])
    f = library.function("f", ctypes.c_double, ctypes.c_double)
    x = 0.4
    expected = 2 * np.exp(x) + 0.42839235504666845 + np.tanh(x)
    assert f(x) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("target", ["host", "scalar"])
def test_micro_kernel_computes_a_product(target):
    rows, vectors, depth = 6, 2, 64
    data = jit.compile_module(_accumulators(rows, vectors, depth), named_target(target))
    micro = objects.load_object(data, ["micro"]).function("micro", None, *[ctypes.c_void_p] * 3)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((depth, vectors * 16)).astype(np.float32)
    c = np.zeros((rows, vectors * 16), np.float32)
    micro(a.ctypes.data, b.ctypes.data, c.ctypes.data)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(host_target().arch != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("pipeline", ["light", "full"])
@pytest.mark.parametrize("rows, vectors", [(14, 2), (9, 3), (6, 4)])
def test_accumulators_on_the_stack_become_registers(pipeline, rows, vectors):
    text = _accumulators(rows, vectors)
    code = jit.assembly(text, named_target("avx512"), pipeline)
    assert code.count("vfmadd") == rows * vectors
    assert not re.search(r"zmm.*rsp|rsp.*zmm", code)


def test_invalid_ir_is_an_internal_error():
    with pytest.raises(InternalError, match="not valid"):
        jit.compile_module("define void @f( {")
    with pytest.raises(InternalError, match="not valid"):
        jit.compile_module("define i32 @f() {\n  %y = add i32 %y, 1\n  ret i32 %y\n}")


def test_unknown_pipeline():
    with pytest.raises(ValueError, match="not one of light, ordered, full, none"):
        jit.compile_module(LIBM, pipeline="fast")


def _caller(callee: str) -> bytes:
    return jit.compile_module(f"""
declare i32 @{callee}(i32)
define i32 @f(i32 %x) {{
  %y = call i32 @{callee}(i32 %x)
  ret i32 %y
}}
""")


def test_missing_symbol_is_an_internal_error(capfd):
    with pytest.raises(InternalError, match="cannot load"):
        objects.load_object(_caller("no_such"), ["f"])


def test_imports_and_lifetime():
    twice = "define i32 @twice(i32 %x) {\n  %y = shl i32 %x, 1\n  ret i32 %y\n}"
    callee = objects.load_object(jit.compile_module(twice), ["twice"])
    caller = objects.load_object(_caller("twice"), ["f"], {"twice": callee.address("twice")})
    f = caller.function("f", ctypes.c_int, ctypes.c_int)
    del caller
    gc.collect()  # the function keeps its code
    assert f(21) == 42


def test_equal_modules_may_be_loaded_twice():
    data = jit.compile_module("define i32 @f() {\n  ret i32 7\n}")
    libraries = [objects.load_object(data, ["f"]) for _ in range(2)]
    assert len({x.address("f") for x in libraries}) == 2
    assert [x.function("f", ctypes.c_int)() for x in libraries] == [7, 7]


def test_threads_compile_at_once():
    results: dict[int, int] = {}

    def work(n: int) -> None:
        data = jit.compile_module(f"define i32 @f() {{\n  ret i32 {n}\n}}")
        results[n] = objects.load_object(data, ["f"]).function("f", ctypes.c_int)()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: n for n in range(8)}


def test_cached_object(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    first = objects.cached_object(LIBM, host_target(), cache)
    monkeypatch.setattr(jit, "compile_module", lambda *_: pytest.fail("compiled again"))
    assert objects.cached_object(LIBM, host_target(), cache) == first


def test_target_and_pipeline_are_part_of_the_key(tmp_path):
    cache = DiskCache(tmp_path)
    objects.cached_object(LIBM, host_target(), cache)
    objects.cached_object(LIBM, host_target(), cache, "light")
    objects.cached_object(LIBM, named_target("scalar"), cache)
    assert len(list(cache._entries())) == 3


def test_options_of_the_process_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    lsr = [("-disable-lsr", "-disable-lsr=false")]
    scheduler = [("-enable-misched=false", "-enable-misched")]
    monkeypatch.setattr(jit.llvm, "set_option", lambda name, option: given.append(option))
    for text in ("define i32 @f() {\n  ret i32 7\n}", "define void @f( {"):
        for pipeline, options in (("light", lsr), ("ordered", [*lsr, *scheduler])):
            given.clear()
            with contextlib.suppress(InternalError):
                jit.compile_module(text, pipeline=pipeline)
            assert given == [set_ for set_, _ in options] + [usual for _, usual in options]
