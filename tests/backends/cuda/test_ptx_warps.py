"""The PTX machine's warps, barriers and memory: what they do, and what is a fault."""

import numpy as np
import pytest
from ptx_texts import needs_c, ptx_of, run_test

from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels

pytestmark = needs_c
LANES = np.arange(32)
SHARED = "  mov.u32 %r1, room;\n  mad.lo.u32 %r2, %r0, 4, %r1;\n"
OUT = "  mad.wide.u32 %d1, %r0, 4, %q0;\n"


def ran(body, threads=32, inputs=(), dtype=np.uint32, **more):
    output = np.zeros(threads * more.get("grid", 1), dtype)
    return run_test(ptx_of(body, len(inputs) + 1), inputs, output, threads, **more)


def fault(body, match, threads=32, **more):
    with pytest.raises(PtxFault, match=match):
        ran(body, threads, **more)


@pytest.mark.parametrize("order", [0, 1])
def test_branches_meet_again(order):
    body = f"""{OUT}
  setp.lt.u32 %p1, %r0, 5;
  mov.u32 %r5, 0;
  @%p1 bra LOW;
  setp.lt.u32 %p2, %r0, 20;
  @%p2 bra MIDDLE;
  mov.u32 %r5, 3;
  bra.uni END;
MIDDLE:
  mov.u32 %r5, 2;
  bra.uni END;
LOW:
  mov.u32 %r5, 1;
END:
  shfl.sync.idx.b32 %r6, %r5, 31, 31, -1;
  mad.lo.u32 %r7, %r6, 10, %r5;
  st.global.u32 [%d1], %r7;
"""
    wanted = np.where(LANES < 5, 31, np.where(LANES < 20, 32, 33))
    np.testing.assert_array_equal(ran(body, order=order), wanted)


def test_loops_of_different_lengths():
    body = f"""{OUT}
  mov.u32 %r5, 0; mov.u32 %r6, 0;
LOOP:
  add.u32 %r5, %r5, %r6;
  add.u32 %r6, %r6, 1;
  setp.le.u32 %p1, %r6, %r0;
  @%p1 bra LOOP;
  vote.sync.ballot.b32 %r9, 1, -1;
  popc.b32 %r9, %r9;
  add.u32 %r5, %r5, %r9;
  st.global.u32 [%d1], %r5;
"""
    np.testing.assert_array_equal(ran(body), LANES * (LANES + 1) // 2 + 32)


@pytest.mark.parametrize("how, by, clamp, source", [
    ("bfly", 5, 31, LANES ^ 5), ("up", 3, 0, np.where(LANES >= 3, LANES - 3, LANES)),
    ("down", 3, 31, np.where(LANES + 3 <= 31, LANES + 3, LANES)), ("idx", 7, 31, LANES * 0 + 7),
    ("bfly", 1, 0x1C03, LANES ^ 1), ("down", 2, 0x1803, None),
    ("idx", 1, 0x181F, LANES // 8 * 8 + 1),
])  # fmt: skip
def test_shuffles(how, by, clamp, source):
    if source is None:  # segments of 8 whose last lane is 3
        source = np.where(LANES % 8 + 2 <= 3, LANES + 2, LANES)
    body = f"{OUT}  shfl.sync.{how}.b32 %r5|%p1, %r0, {by}, {clamp}, -1;\n"
    found = ran(f"{body}  st.global.u32 [%d1], %r5;\n")
    np.testing.assert_array_equal(found, source)


def test_votes_matches_and_reductions():
    body = f"""{OUT}
  and.b32 %r1, %r0, 3;
  match.any.sync.b32 %r2, %r1, -1;
  redux.sync.add.u32 %r3, %r0, -1;
  setp.lt.u32 %p1, %r0, 9;
  vote.sync.any.pred %p2, %p1, -1;
  vote.sync.all.pred %p3, %p1, -1;
  selp.u32 %r4, 1, 0, %p2; selp.u32 %r5, 1, 0, %p3;
  add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5; xor.b32 %r3, %r3, %r2;
  st.global.u32 [%d1], %r3;
"""
    wanted = (496 + 1) ^ (0x11111111 << (LANES & 3))
    np.testing.assert_array_equal(ran(body), wanted)


def test_atomic_sums_and_barriers_that_count():
    body = f"""{OUT}{SHARED}
  setp.eq.u32 %p1, %r0, 0;
  @%p1 st.shared.u32 [room], 0;
  bar.sync 0;
  red.shared.add.u32 [room], %r0;
  setp.lt.u32 %p2, %r0, 40;
  bar.red.popc.u32 %r4, 0, %p2;
  ld.shared.u32 %r3, [room];
  add.u32 %r3, %r3, %r4;
  st.global.u32 [%d1], %r3;
"""
    assert (ran(body, 96) == 95 * 96 // 2 + 40).all()


def test_named_barriers_order_those_that_meet():
    body = f"""{OUT}{SHARED}
  setp.ge.u32 %p1, %r0, 64;
  @%p1 bra LAST;
  st.shared.u32 [%r2], %r0;
  bar.sync 1, 64;
  xor.b32 %r3, %r0, 32; mad.lo.u32 %r4, %r3, 4, %r1;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%d1], %r5;
  bra.uni END;
LAST:
  st.global.u32 [%d1], 7;
END:
"""
    np.testing.assert_array_equal(ran(body, 96), [*(np.arange(64) ^ 32), *[7] * 32])
    fault(body.replace("bar.sync 1, 64;", "bar.sync 1, 32;"), "race|never written", 96)


def test_generic_addresses_and_vectors():
    body = f"""
  mov.u64 %d2, room; cvta.shared.u64 %d3, %d2;
  mad.wide.u32 %d4, %r0, 16, %d3;
  add.u32 %r1, %r0, 1;
  st.v4.u32 [%d4], {{%r0, %r1, %r0, %r1}};
  ld.v2.u32 {{%r5, %r6}}, [%d4+8];
  mad.lo.u32 %r5, %r6, 100, %r5;
  {OUT}
  st.global.u32 [%d1], %r5;
"""
    np.testing.assert_array_equal(ran(body), 101 * LANES + 100)


def test_functions_are_called():
    function = """.func (.param .b32 back) twice(.param .b32 x)
{ .reg .b32 %r<3>; ld.param.u32 %r1, [x];
  add.u32 %r2, %r1, %r1; st.param.b32 [back+0], %r2; ret; }
"""
    body = f"""{OUT}
  {{ .param .b32 a; st.param.b32 [a+0], %r0; .param .b32 back0;
  call.uni (back0), twice, (a); ld.param.b32 %r5, [back0+0]; }}
  st.global.u32 [%d1], %r5;
"""
    found = run_test(ptx_of(body, 1, variables=function), [], np.zeros(32, np.uint32))
    np.testing.assert_array_equal(found, 2 * LANES)


STORE, LOAD = "  st.shared.u32 [%r2], %r0;\n", "  ld.shared.u32 %r5, [%r2+4];\n"
FAULTS = {
    "read that no barrier orders": (SHARED + STORE + "  bar.sync 0;\n" + STORE + LOAD, "race"),
    "write that no barrier orders": (SHARED + STORE + "  st.shared.u32 [room], %r0;\n", "race"),
    "never written": (SHARED + LOAD, "never written"),
    "register": (OUT + "  st.global.u32 [%d1], %r77;\n", "never written"),
    "guard": ("  @%p7 st.global.u32 [%q0], 1;\n", "never written"),
    "bounds": (OUT + "  st.global.u32 [%d1+4], %r0;\n", "bytes 128..132 of parameter 0"),
    "shared bounds": (SHARED + "  st.shared.u32 [%r2+4000], %r0;\n", "shared memory"),
    "alignment": ("  st.global.u32 [%q0+2], 1;\n", "not a multiple of 4"),
    "no buffer": ("  mov.u64 %d1, 64; ld.global.u32 %r1, [%d1];\n", "in no buffer"),
    "unwritten": (OUT + "  ld.global.u32 %r1, [%d1];\n", "never written"),
    "diverged barrier": (
        "  setp.lt.u32 %p1, %r0, 5;\n  @%p1 bra SKIP;\n  bar.sync 0;\nSKIP:\n", "diverged"),
    "diverged shuffle": (
        "  setp.lt.u32 %p1, %r0, 5;\n  @%p1 shfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;\n", "diverged"),
    "absent lane": (
        "  setp.lt.u32 %p1, %r0, 1;\n  @%p1 shfl.sync.bfly.b32 %r3, %r0, 1, 31, 1;\n",
        "does not take part"),
    "endless": ("AGAIN:\n  bra.uni AGAIN;\n", "does not end"),
    "trap": ("  trap;\n", "traps"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told(name):
    body, match = FAULTS[name]
    fault(body, match)


def test_barriers_that_others_do_not_reach():
    body = "  setp.ge.u32 %p1, %r0, 32;\n  @%p1 bra LAST;\n  bar.sync 0, 64;\nLAST:\n"
    fault(body, "others do not reach", 64)


def test_races_between_blocks():
    body = "  mov.u32 %r3, %ctaid.x;\n  st.global.u32 [%q0], %r3;\n"
    fault(body, "another block", 1, grid=2)
    ran("  red.global.add.u32 [%q0], 1;\n".replace("red", "st").replace(".add", ""), 1, grid=2)


def test_what_lanes_drop_may_be_undefined():
    body = f"""{OUT}
  setp.lt.u32 %p1, %r0, 5;
  @%p1 mov.u32 %r3, 7;
  add.u32 %r4, %r3, 1;
  selp.u32 %r5, %r4, 9, %p1;
  st.global.u32 [%d1], %r5;
"""
    np.testing.assert_array_equal(ran(body), np.where(LANES < 5, 8, 9))
    fault(body.replace("selp.u32 %r5, %r4, 9", "selp.u32 %r5, 9, %r4"), "never written")


def test_vectors_may_be_longer_than_a_buffer_if_nobody_uses_the_rest():
    """As compilers join loads of a row of three."""
    body = """
  mad.wide.u32 %d1, %r0, 4, %q1;
  ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%q0];
  add.u32 %r5, %r2, %r3;
  st.global.u32 [%d1], %r5;
"""
    three = np.array([5, 6, 7], np.uint32)
    assert (ran(body, inputs=[three]) == 13).all()
    for other in (body.replace("%r2, %r3;", "%r2, %r4;"), body.replace("[%q0]", "[%q0+16]")):
        with pytest.raises(PtxFault, match="never written|are accessed"):
            ran(other, inputs=[three])


def test_what_is_unknown_is_named():
    with pytest.raises(PtxError, match="line 11: the PTX machine does not know 'frob"):
        ran("  frob.u32 %r1, %r2;\n")
    with pytest.raises(PtxError, match="no label NOWHERE"):
        ran("  bra.uni NOWHERE;\n")
    with pytest.raises(PtxError, match=r"must name its \.target"):
        PtxKernels("nothing")
    with pytest.raises(PtxError, match="has no function other"):
        PtxKernels(ptx_of("", 0)).launch("other", 1, 32, [])


@pytest.mark.parametrize("text", [
    "shfl.sync.bfly.b32 %r1, %d1, 1, 31, -1;", "shfl.sync.bfly.b32 %r1, %r2, 1;",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3},"
    " {%f1, %f2, %f3, %f4};", "atom.global.add.u32 %r1, [%q0], %d1;", "add.u32 %r1, %r2;",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2}, [%r3];", "mov.u32 %r1, %elsewhere;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %d1, %d2, 1, 3, 1;",
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(text):
    with pytest.raises(PtxError, match="line 11"):
        ran(f"  {text}\n")
