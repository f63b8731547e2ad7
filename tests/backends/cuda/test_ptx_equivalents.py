"""Which planted errors change nothing."""

import numpy as np
import pytest
from cuda_programs import needs_nvcc
from ptx_equivalents import CODE, FENCE, VALUES, equivalent
from ptx_mutants import Subject
from ptx_texts import needs_c, ptx_of, run_test

from graphc.backends.cuda.ptx import PtxFault

pytestmark = [needs_c, needs_nvcc]
BODY = """
  setp.gt.u32 %p1, %r0, 20;
  selp.u32 %r1, 3, 5, %p1;
  and.b32 %r2, %r0, 96;
  add.u32 %r3, %r1, %r2;
  shl.b32 %r4, %r0, 2;
  cvt.u64.u32 %d1, %r4;
  add.s64 %d2, %q0, %d1;
  @%p2 st.global.u32 [%d2], %r4;
  ld.global.u32 %r5, [%d2];
  min.u32 %r6, %r5, 100;
  mul.lo.u32 %r7, %r5, %r1;
  add.s64 %d3, %q1, %d1;
  st.global.u32 [%d3], %r3;
"""


@pytest.mark.parametrize("before, after, threads, criterion", [
    ("and.b32 %r2, %r0, 96", "and.b32 %r2, %r0, 64", 32, VALUES),  # 0 of a warp
    ("and.b32 %r2, %r0, 96", "and.b32 %r2, %r0, 64", 64, ""),
    ("%p1, %r0, 20;", "%p1, %r0, 21;", 21, VALUES),  # no thread is between the bounds
    ("%p1, %r0, 20;", "%p1, %r0, 21;", 32, ""),
    ("selp.u32 %r1, 3, 5", "selp.u32 %r1, 4, 5", 32, ""),  # of what is stored
    ("min.u32 %r6, %r5, 100", "min.u32 %r6, %r5, 50", 32, CODE),  # nobody reads it
    ("@%p2 st.global.u32 [%d2], %r4;", "", 32, VALUES),  # never done
    ("[%d3], %r3", "[%d3], %r5", 32, ""),  # data
])  # fmt: skip
def test_values_that_nothing_uses(before, after, threads, criterion):
    text = ptx_of("  setp.gt.u32 %p2, %r0, 900;" + BODY, 2)
    data = np.arange(threads, dtype=np.uint32) + 7
    wanted = run_test(text, [data], np.zeros(threads, np.uint32), threads)

    def fault(lines):
        try:
            found = run_test("\n".join(lines), [data], np.zeros(threads, np.uint32), threads)
        except PtxFault as error:
            return str(error)
        return "" if (found == wanted).all() else "results differ"

    lines = text.splitlines()
    number = next(n for n, line in enumerate(lines) if before in line)
    changes = {number: lines[number].replace(before, after)}
    assert equivalent(lines, changes, "sm_90a", fault) == criterion


def test_fences_of_products_that_nothing_needs():
    """Of two fences the second is needless: only products of the same shape lie between."""
    subject = Subject("wgmma")
    fences = [n for n, line in enumerate(subject.lines) if "wgmma.fence" in line]
    first, second = fences

    def never(lines):
        raise AssertionError

    assert equivalent(subject.lines, {second: ""}, subject.arch, never) == FENCE
    assert equivalent(subject.lines, {first: ""}, subject.arch, lambda _: "fault") == ""
    assert equivalent(subject.lines, dict.fromkeys(fences, ""), subject.arch, lambda _: "x") == ""
    product = next(n for n in range(first, second) if "wgmma.mma_async" in subject.lines[n])
    sum = subject.lines[product].split("{")[1].split(",")[0]
    between = [*subject.lines]
    between[second - 1] += f"\n mov.f32 {sum}, 0f00000000;"  # what needs the second one
    between = "\n".join(between).splitlines()
    assert equivalent(between, {second + 1: ""}, subject.arch, lambda _: "fault") == ""
