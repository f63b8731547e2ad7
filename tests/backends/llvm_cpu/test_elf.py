"""The loader of object files: what it relocates, and what it leaves to LLVM."""

import ctypes
import sys

import pytest

from graphc.backends.llvm_cpu import elf, jit, objects
from graphc.backends.llvm_cpu.target import host_target
from graphc.errors import InternalError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or host_target().arch != "x86_64", reason="loads x86-64 ELF"
)

MODULE = """
@table = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
@count = internal global i32 5
@zeros = internal global [100 x i32] zeroinitializer
@entries = internal constant [2 x ptr] [ptr @first, ptr @second]
@exp.address = internal constant ptr @exp
declare double @exp(double)
declare i32 @outside(i32)

define internal i32 @first(i32 %x) noinline { ret i32 1 }
define internal i32 @second(i32 %x) noinline {
  %y = call i32 @outside(i32 %x)
  ret i32 %y
}
define i32 @read(i32 %n) {
  %wide = sext i32 %n to i64
  %at = getelementptr i32, ptr @table, i64 %wide
  %x = load i32, ptr %at
  ret i32 %x
}
define i32 @step() {
  %x = load volatile i32, ptr @count
  %y = add i32 %x, 1
  store volatile i32 %y, ptr @count
  %z = load volatile i32, ptr getelementptr (i32, ptr @zeros, i64 99)
  %sum = add i32 %y, %z
  ret i32 %sum
}
define i32 @choose(i32 %n, i32 %x) {
  %wide = sext i32 %n to i64
  %at = getelementptr ptr, ptr @entries, i64 %wide
  %f = load volatile ptr, ptr %at
  %y = call i32 %f(i32 %x)
  ret i32 %y
}
define double @power(double %x) {
  %f = load volatile ptr, ptr @exp.address
  %y = call double %f(double %x)
  %z = call double @exp(double %y)
  ret double %z
}
define ptr @whose() { ret ptr @outside }
"""


@pytest.fixture(scope="module")
def library():
    data = jit.compile_module(MODULE)
    twice = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: 2 * x)
    address = ctypes.cast(twice, ctypes.c_void_p).value
    names = ["read", "step", "choose", "power", "whose"]
    loaded = elf.load(data, names, {"outside": address})
    assert loaded is not None
    return objects.Library(loaded.addresses, (loaded.memory, twice)), address


def test_constants_variables_and_calls(library):
    loaded, address = library
    i32, f64 = ctypes.c_int, ctypes.c_double
    assert [loaded.function("read", i32, i32)(n) for n in range(4)] == [10, 20, 30, 40]
    step = loaded.function("step", i32)
    assert [step(), step()] == [6, 7]
    choose = loaded.function("choose", i32, i32, i32)
    assert choose(0, 21) == 1 and choose(1, 21) == 42
    assert loaded.function("power", f64, f64)(0.0) == pytest.approx(2.718281828459045)
    assert loaded.function("whose", ctypes.c_void_p)() == address


def test_no_page_is_written_and_executed(library):
    start = library[0].address("read")
    with open("/proc/self/maps") as file:
        spans = [line.split()[:2] for line in file]
    modes = {
        mode
        for span, mode in spans
        if int(span.split("-")[0], 16) <= start < int(span.split("-")[1], 16)
    }
    assert modes == {"r-xp"}


def test_what_it_does_not_know_is_left_to_llvm():
    text = """
@x = thread_local global i32 3
define i32 @f() {
  %p = call ptr @llvm.threadlocal.address.p0(ptr @x)
  %v = load i32, ptr %p
  ret i32 %v
}
declare ptr @llvm.threadlocal.address.p0(ptr)
"""
    assert elf.load(jit.compile_module(text), ["f"], {}) is None
    for data in (b"", b"no object", b"\x7fELF\x01\x01" + bytes(100)):
        assert elf.load(data, ["f"], {}) is None


def test_llvm_loads_the_same(monkeypatch):
    """What other machines do."""
    monkeypatch.setattr(elf, "load", lambda *_: None)
    data = jit.compile_module("define i32 @f(i32 %x) {\n  ret i32 %x\n}")
    assert objects.load_object(data, ["f"]).function("f", ctypes.c_int, ctypes.c_int)(7) == 7
    with pytest.raises(InternalError, match="cannot load"):
        objects.load_object(data, ["g"])


def test_a_function_that_is_not_there():
    data = jit.compile_module("define i32 @f() {\n  ret i32 7\n}")
    with pytest.raises(InternalError, match="there is no g"):
        elf.load(data, ["g"], {})
