"""Matrices in the PTX machine: fragments, products, asynchronous copies, and what orders them."""

import re

import numpy as np
import pytest
from ptx_texts import needs_c, ptx_of, run_test

from graphc.backends.cuda.ptx import PtxFault

pytestmark = needs_c
OUT = "  mad.wide.u32 %d1, %r0, {}, %q{};\n"
RANDOM = np.random.default_rng(1)


def regs(letter, first, count):
    return "{" + ", ".join(f"%{letter}{first + n}" for n in range(count)) + "}"


def halves(*shape):
    return RANDOM.integers(-8, 8, shape).astype(np.float16)


@pytest.mark.parametrize("across", [False, True])
def test_matrices_from_shared_memory(across):
    matrix = np.arange(256, dtype=np.uint16).reshape(32, 8)  # four of 8 x 8
    trans = ".trans" if across else ""
    body = f"""
  mad.wide.u32 %d1, %r0, 16, %q0;
  ld.global.v4.u32 {regs("r", 10, 4)}, [%d1];
  mov.u32 %r1, room; mad.lo.u32 %r2, %r0, 16, %r1;
  st.shared.v4.u32 [%r2], {regs("r", 10, 4)};
  bar.sync 0;
  ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {regs("r", 20, 4)}, [%r2];
  mad.wide.u32 %d2, %r0, 16, %q1;
  st.global.v4.u32 [%d2], {regs("r", 20, 4)};
"""
    found = run_test(ptx_of(body, 2), [matrix], np.zeros((32, 4, 2), np.uint16))
    for lane in range(32):
        g, q = lane // 4, lane % 4
        for m in range(4):
            one = matrix[8 * m : 8 * m + 8]
            one = one.T if across else one
            assert list(found[lane, m]) == list(one[g, 2 * q : 2 * q + 2])


MMA = {
    "m16n8k16.row.col.f32.f16.f16.f32": ("f16", 16, 4, 2, np.float32),
    "m16n8k8.row.col.f32.f16.f16.f32": ("f16", 8, 2, 1, np.float32),
    "m16n8k8.row.col.f32.tf32.tf32.f32": ("tf32", 8, 4, 2, np.float32),
    "m16n8k32.row.col.s32.s8.s8.s32": ("s8", 32, 4, 2, np.int32),
    "m16n8k32.row.col.s32.u8.s8.s32": ("u8", 32, 4, 2, np.int32),
    "m16n8k32.row.col.satfinite.s32.s8.s8.s32": ("s8", 32, 4, 2, np.int32),
}


@pytest.mark.parametrize("shape", MMA)
def test_products_of_warps(shape):
    kind, depth, lefts, rights, sum = MMA[shape]
    dtype = {"f16": np.float16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}[kind]
    per_word = 4 // np.dtype(dtype).itemsize
    a = RANDOM.integers(0 if kind == "u8" else -9, 99, (16, depth)).astype(dtype)
    b = RANDOM.integers(-9, 9, (depth, 8)).astype(np.int8 if per_word == 4 else dtype)
    lanes = np.arange(32)
    g, q = lanes // 4, lanes % 4
    words_a, words_b = a.view(np.uint32), np.ascontiguousarray(b.T).view(np.uint32)
    left = np.stack([words_a[g + 8 * (n % 2), q + 4 * (n // 2)] for n in range(lefts)], 1)
    right = np.stack([words_b[g, q + 4 * n] for n in range(rights)], 1)
    letter = "f" if sum is np.float32 else "r"
    start = 2**31 - 1000 if sum is np.int32 else 0  # some sums go beyond the largest number
    starts = "".join(f"  mov.b32 %{letter}{60 + n}, {start};\n" for n in range(4))
    loads = "".join(
        f"  ld.global.u32 %r{10 + n}, [%d1+{4 * n}];\n" for n in range(lefts)
    ) + "".join(f"  ld.global.u32 %r{20 + n}, [%d2+{4 * n}];\n" for n in range(rights))
    body = f"""{OUT.format(4 * lefts, 0)}  mad.wide.u32 %d2, %r0, {4 * rights}, %q1;
{loads}{starts}  mma.sync.aligned.{shape} {regs(letter, 60, 4)}, {regs("r", 10, lefts)},
    {regs("r", 20, rights)}, {regs(letter, 60, 4)};
  mad.wide.u32 %d3, %r0, 16, %q2;
  st.global.v4.b32 [%d3], {regs(letter, 60, 4)};
"""
    found = run_test(ptx_of(body, 3), [left, right], np.zeros((32, 4), sum))
    wanted = a.astype(np.float64) @ b.astype(np.float64) + start
    if sum is np.int32:
        assert wanted.max() >= 2**31 > wanted.min()
        saturated = np.clip(wanted, -(2**31), 2**31 - 1)
        wrapped = (wanted + 2**31) % 2**32 - 2**31
        wanted = saturated if "satfinite" in shape else wrapped
    for n in range(4):
        np.testing.assert_array_equal(found[:, n], wanted[g + 8 * (n // 2), 2 * q + n % 2])


COPY = """
  mad.wide.u32 %d1, %r0, 16, %q0;
  mov.u32 %r1, room; mad.lo.u32 %r2, %r0, 16, %r1;
  setp.lt.u32 %p1, %r0, 20; selp.u32 %r3, 16, 4, %p1;
  cp.async.cg.shared.global [%r2], [%d1], 16, %r3;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r2+512], [%d1], 4;
  cp.async.commit_group;
  cp.async.wait_group 0;
  bar.sync 0;
  xor.b32 %r4, %r0, 3; mad.lo.u32 %r5, %r4, 16, %r1;
  ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5];
  ld.shared.u32 %r14, [%r5+512];
  add.u32 %r10, %r10, %r14;
  mad.wide.u32 %d2, %r0, 16, %q1;
  st.global.v4.u32 [%d2], {%r10, %r11, %r12, %r13};
"""


def copied(body):
    given = np.arange(128, dtype=np.uint32).reshape(32, 4)
    return run_test(ptx_of(body, 2), [given], np.zeros((32, 4), np.uint32))


def test_copies_fill_with_zeros():
    given = np.arange(128, dtype=np.uint32).reshape(32, 4)
    kept = np.where((np.arange(32) < 20)[:, None] | (np.arange(4) == 0), given, 0)
    kept[:, 0] += given[:, 0]
    np.testing.assert_array_equal(copied(COPY), kept[np.arange(32) ^ 3])


@pytest.mark.parametrize("line, other, match", [
    ("  cp.async.wait_group 0;\n", "", "before its asynchronous copy is waited for"),
    ("  cp.async.wait_group 0;\n", "  cp.async.wait_group 1;\n", "asynchronous copy is waited for"),
    ("  cp.async.commit_group;\n  cp.async.wait", "  cp.async.wait", "copy is waited for"),
    ("  bar.sync 0;\n", "", "race"),
    ("16, %r3;", "16, 17;", "17"), ("[%r2], [%d1], 16", "[%r2+8], [%d1], 16", "aligned"),
    ("[%r2+512]", "[%r2]", "written while an asynchronous copy"),
])  # fmt: skip
def test_copies_that_are_not_waited_for(line, other, match):
    assert line in COPY
    with pytest.raises(PtxFault, match=match):
        copied(COPY.replace(line, other))


# ------------------------------------------------------------------ warp groups

ROWS, COLUMNS, DEPTH = 64, 8, 16
PLAIN, WIDTHS = 0, {128: 1, 64: 2, 32: 3}


def layout(matrix, width, across):
    """A matrix [row, depth] of halves as it lies in shared memory, and its descriptor but for the
    start: PTX ISA, canonical layouts of wgmma. Rows here are M or N."""
    rows, depth = matrix.shape
    place = np.zeros((rows, depth), np.int64)
    r, k = np.indices((rows, depth))
    leading = stride = 0
    if width == 0 and not across:  # core matrices of 8 rows of 16 bytes
        leading, stride = 128, 256
        place = r // 8 * stride + k // 8 * leading + r % 8 * 16 + k % 8 * 2
    elif width == 0:
        leading, stride = rows // 8 * 128, 128
        place = r // 8 * stride + k // 8 * leading + k % 8 * 16 + r % 8 * 2
    elif not across:
        stride = 8 * width
        place = r // 8 * stride + r % 8 * width + k * 2
    else:
        leading, stride = depth * width, 8 * width
        place = 2 * r // width * leading + 2 * r % width + k // 8 * stride + k % 8 * width
    if width:
        place ^= (place >> 7 & width // 16 - 1) << 4
    whole = np.zeros(place.max() // 2 + 1, np.float16)
    whole[place // 2] = matrix
    mode = WIDTHS.get(width, PLAIN)
    return whole, leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def group_product(width, across, edit=lambda body: body, columns=64):
    """Sums of a product of a warp group whose operands have a layout."""
    a, b = halves(ROWS, DEPTH), halves(columns, DEPTH)
    (left, low), (right, high) = layout(a, width, across), layout(b, width, across)
    start = -(-left.nbytes // 1024) * 1024
    words = np.zeros(start // 2 + -(-right.nbytes // 512) * 256, np.float16)
    words[: left.size], words[start // 2 : start // 2 + right.size] = left, right
    count = words.nbytes // 4
    sums = columns // 2
    zeros = "".join(f"  mov.f32 %f{n}, 0f3F800000;\n" for n in range(sums))
    stores = "".join(f"  st.global.f32 [%d9+{4 * n}], %f{n};\n" for n in range(sums))
    body = f"""
  mov.u32 %r1, room; mov.u32 %r2, %r0;
FILL:
  mad.wide.u32 %d1, %r2, 4, %q0; ld.global.u32 %r4, [%d1];
  mad.lo.u32 %r5, %r2, 4, %r1; st.shared.u32 [%r5], %r4;
  add.u32 %r2, %r2, 128; setp.lt.u32 %p1, %r2, {count};
  @%p1 bra FILL;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mov.u64 %d5, room; shr.u64 %d5, %d5, 4;
  or.b64 %d6, %d5, {low};
  add.u64 %d7, %d5, {start >> 4}; or.b64 %d7, %d7, {high};
{zeros}  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {regs("f", 0, sums)}, %d6, %d7, 1, 1,
    1, {int(across)}, {int(across)};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  mad.wide.u32 %d9, %r0, {4 * sums}, %q1;
{stores}"""
    text = ptx_of(edit(body), 2, shared=words.nbytes)
    found = run_test(text, [words], np.zeros((128, sums), np.float32), 128)
    thread, n = np.indices(found.shape)
    lane = thread % 32
    row = thread // 32 * 16 + lane // 4 + 8 * (n // 2 % 2)
    column = n // 4 * 8 + 2 * (lane % 4) + n % 2
    return found, (a.astype(np.float64) @ b.T.astype(np.float64))[row, column]


@pytest.mark.parametrize("across", [False, True], ids=["depth", "across"])
@pytest.mark.parametrize("width", [0, 32, 64, 128])
def test_layouts_of_warp_groups(width, across):
    found, wanted = group_product(width, across)
    np.testing.assert_array_equal(found, wanted + 1)


def test_scales_of_warp_groups():
    signed = lambda body: body.replace("%d7, 1, 1,\n    1", "%d7, 1, -1,\n    1")  # noqa: E731
    found, wanted = group_product(128, False, signed)
    np.testing.assert_array_equal(found, 1 - wanted)
    fresh = lambda body: body.replace("%d7, 1, 1,", "%d7, 0, 1,")  # noqa: E731
    found, wanted = group_product(128, False, fresh)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("scale", ["0", "%p3"])
def test_sums_that_are_only_written_need_no_value(scale):
    def unset(body, scale=scale):
        body = body.replace("%d7, 1, 1,", f"%d7, {scale}, 1,")
        body = re.sub(r"  mov\.f32 %f\d+, 0f3F800000;\n", "", body)
        return body.replace("  wgmma.fence", "  setp.ne.u32 %p3, 0, 0;\n  wgmma.fence", 1)

    found, wanted = group_product(128, False, unset)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(PtxFault, match="never written"):
        group_product(128, False, lambda body: unset(body, "1"))


GROUP_FAULTS = {
    "proxy": ("  fence.proxy.async.shared::cta;\n", "", "without fence.proxy.async"),
    "barrier": ("  bar.sync 0;\n", "", "race"),
    "fence": ("  wgmma.fence.sync.aligned;\n", "", "wgmma.fence must come"),
    "commit": ("  wgmma.commit_group.sync.aligned;\n", "", "before wgmma.wait_group"),
    "wait": ("  wgmma.wait_group.sync.aligned 0;\n", "", "before wgmma.wait_group"),
    "wait for less": ("wait_group.sync.aligned 0", "wait_group.sync.aligned 1", "before wgmma"),
    "late sum": ("  wgmma.mma", "  mov.f32 %f3, 0f00000000;\n  wgmma.mma", "since the last"),
    "late store": ("  wgmma.commit", "  st.shared.u32 [%r1], %r0;\n  wgmma.commit",
                   "products on their way read it"),
    "bits": ("or.b64 %d6, %d5, ", "or.b64 %d6, %d5, 16384; or.b64 %d6, %d6, ", "must be 0"),
    "lanes": ("or.b64 %d6, %d5, ", "cvt.u64.u32 %d2, %r0; add.u64 %d5, %d5, %d2;\n"
              "  or.b64 %d6, %d5, ", "different matrix descriptors"),
    "diverged": ("  wgmma.commit", "  setp.lt.u32 %p2, %r0, 3;\n  @%p2 wgmma.commit", "diverged"),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUP_FAULTS)
def test_products_that_nothing_orders(name):
    line, other, match = GROUP_FAULTS[name]

    def edit(body):
        assert line in body
        return body.replace(line, other, 1)

    with pytest.raises(PtxFault, match=match):
        group_product(128, False, edit)


@pytest.mark.parametrize("change", ["swizzle", "stride", "leading", "start", "across"])
def test_wrong_descriptors_give_wrong_sums(change):
    bits = {"swizzle": 1 << 63, "stride": 1 << 34, "leading": 1 << 20, "start": 1}.get(change, 0)

    def edit(body):
        if change == "across":
            return body.replace("1, 1, 1;", "1, 1, 0;")
        more = f"  xor.b64 %d6, %d6, {bits};\n  wgmma.fence"
        return body.replace("  wgmma.fence", more, 1)

    try:
        found, wanted = group_product(128 if change == "stride" else 64, change != "stride", edit)
    except PtxFault:
        return
    assert not np.array_equal(found, wanted + 1)
