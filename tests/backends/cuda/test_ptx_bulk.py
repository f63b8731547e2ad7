"""Copies in bulk, mbarriers and clusters in the PTX machine: what they do, and what is a fault."""

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from ptx_texts import needs_c

from graphc.backends.cuda.machine_code import compiler, machine_code, missing
from graphc.backends.cuda.ptx import PtxError, PtxFault, PtxKernels
from graphc.backends.cuda.ptx.kernels import Buffer, Memory, device_memory
from graphc.backends.cuda.ptx.tensor_maps import TensorMap

RANDOM = np.random.default_rng(3)


@lru_cache(maxsize=1)
def whole_text():
    text = (Path(__file__).parent / "bulk_kernels.cu").read_text()
    return machine_code(text, "sm_90a", "ptx").decode()


pytestmark = [needs_c, pytest.mark.skipif(compiler() is None, reason=missing())]


def edited(name, pattern, other, count=1):
    """The text with lines of a kernel changed."""
    text = whole_text()
    start = text.index(f".entry {name}(")
    body, changes = re.subn(pattern, other, text[start:], count=count)
    assert changes
    return text[:start] + body


def without(name, pattern, number):
    """The kernel without what the `number`-th of its lines of a pattern does."""
    text = whole_text()
    start = text.index(f".entry {name}(")
    found = [*re.finditer(pattern, text[start:])]
    place = found[number - 1]
    other = "setp.eq.u32 p, 0, 0;" if "try_wait" in pattern else ""
    return text[: start + place.start()] + other + text[start + place.end() :]


def read_only(array):
    data = array.reshape(-1).view(np.uint8)
    return Buffer(Memory(data), 0, data.nbytes, False)


def written(array):
    data = array.reshape(-1).view(np.uint8)
    return Buffer(device_memory(data, np.zeros(data.nbytes, np.uint8)), 0, data.nbytes, True)


# ------------------------------------------------------------------ boxes


def box_of(tensor, at, box, width):
    """A box of a tensor as it lies in shared memory: zeros outside, lines swizzled."""
    whole = np.zeros(box[::-1], tensor.dtype)
    for place in np.ndindex(*whole.shape):
        source = tuple(c + p for c, p in zip(at[::-1], place))
        if all(0 <= s < e for s, e in zip(source, tensor.shape)):
            whole[place] = tensor[source]
    words = whole.reshape(-1).view(np.uint32)
    places = 4 * np.arange(words.size)
    if width:
        places ^= (places >> 7 & width // 16 - 1) << 4
    found = np.zeros_like(words)
    found[places // 4] = words
    return found


def copied_box(at, box, width, text=None, order=0, shape=(5, 6, 40)):
    tensor = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    words = int(np.prod(box))
    out = np.zeros(words, np.uint32)
    target = np.zeros_like(tensor)
    strides = (4 * shape[2], 4 * shape[2] * shape[1])
    maps = [TensorMap(n, 4, shape[::-1], strides, box, width) for n in (1, 2)]
    kernels = PtxKernels(text or whole_text(), budget=1 << 20)
    buffers = [written(out), read_only(tensor), Buffer(Memory(target.reshape(-1).view(np.uint8)), 0,
                                                       target.nbytes, True)]  # fmt: skip
    kernels.launch(
        "boxes", 1, 64, buffers[:1], (words, *at), order=order, maps=maps, tensors=buffers[1:]
    )
    return tensor, out, target


@pytest.mark.parametrize("at, box, width", [
    ((0, 0, 0), (32, 4, 2), 128), ((8, 3, 1), (32, 4, 2), 128), ((32, -2, 4), (32, 4, 2), 128),
    ((-4, 0, 0), (16, 4, 2), 64), ((4, 5, 0), (8, 4, 4), 32), ((36, 1, 1), (12, 3, 3), 0),
])  # fmt: skip
@pytest.mark.parametrize("order", [0, 1])
def test_boxes_of_tensors(at, box, width, order):
    tensor, out, target = copied_box(at, box, width, order=order)
    wanted = box_of(tensor, at, box, width)
    np.testing.assert_array_equal(out, wanted)
    inside = tuple(slice(max(c, 0), max(c + b, 0)) for c, b in zip(at[::-1], box[::-1]))
    expected = np.zeros_like(tensor)
    expected[inside] = tensor[inside] + 1
    np.testing.assert_array_equal(target, expected)


BOX_FAULTS = {
    "no wait": (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", "setp.eq.u32 p, 0, 0;",
                "before its asynchronous copy is waited for"),
    "parity": (r"(try_wait.parity[^;]*), %r\d+;", r"\1, 1;", "asynchronous copy is waited for"),
    "no init": (r"mbarrier\.init[^;]*;", "", "there is no mbarrier"),
    "no init fence": (r"fence\.mbarrier_init[^;]*;", "", "init was not fenced"),
    "no barrier": (r"bar\.sync\s*0;", "", "whose init no barrier orders"),
    "no expect": (r"arrive\.expect_tx([^;]*), %r\d+;", r"arrive\1;",
                  "asynchronous copy is waited for|which expects 0"),
    "too few bytes": (r"(arrive\.expect_tx[^;]*), %r\d+;", r"\1, 16;", "which expects 16"),
    "too many bytes": (r"(arrive\.expect_tx[^;]*), %r\d+;", r"\1, 4096;", "lacks 0 arrivals and"),
    "no arrival": (r"mbarrier\.arrive\.expect_tx(\S*) _,", r"mbarrier.expect_tx\1",
                   "lacks 1 arrivals and 0 bytes"),
    "no proxy fence": (r"fence\.proxy\.async[^;]*;", "", "without fence.proxy.async"),
    "no bulk wait": (r"cp\.async\.bulk\.wait_group 0;", "", "ends before the copies"),
    "no bulk commit": (r"cp\.async\.bulk\.commit_group;", "", "ends before the copies"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOX_FAULTS)
def test_errors_around_boxes(name):
    pattern, other, match = BOX_FAULTS[name]
    with pytest.raises(PtxFault, match=match):
        copied_box((0, 0, 0), (32, 4, 2), 128, edited("boxes", pattern, other))


def test_maps_that_the_driver_refuses():
    with pytest.raises(PtxError, match="multiples of 16 bytes"):
        copied_box((0, 0, 0), (32, 4, 2), 128, shape=(5, 6, 41))
    with pytest.raises(PtxError, match="as long as what is swizzled"):
        copied_box((0, 0, 0), (16, 4, 2), 128)
    with pytest.raises(PtxError, match="of the box to 256"):
        copied_box((0, 0, 0), (260, 1, 1), 0)


# ------------------------------------------------------------------ bytes


def copied_bytes(text=None):
    given = np.arange(128, dtype=np.uint32)
    out = np.zeros(128, np.uint32)
    kernels = PtxKernels(text or whole_text(), budget=1 << 20)
    kernels.launch("bytes", 1, 128, [read_only(given), written(out)])
    return given, out


def test_bytes_in_bulk():
    given, out = copied_bytes()
    np.testing.assert_array_equal(out, 3 * given)


@pytest.mark.parametrize("pattern, other, match", [
    (r"(cp\.async\.bulk\.shared[^;]*), 512,", r"\1, 520,", "multiples of 16"),
    (r"(cp\.async\.bulk\.shared[^;]*), 512,", r"\1, 496,", "lacks 0 arrivals and 16 bytes"),
    (r"cp\.async\.bulk\.wait_group\.read 0;", "", "ends before the copies"),
    (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", "setp.eq.u32 p, 0, 0;",
     "before its asynchronous copy"),
])  # fmt: skip
def test_errors_around_bytes(pattern, other, match):
    with pytest.raises(PtxFault, match=match):
        copied_bytes(edited("bytes", pattern, other))


def copied_by_threads(text=None, order=0):
    given = np.arange(128, dtype=np.uint32)
    out = np.zeros(128, np.uint32)
    kernels = PtxKernels(text or whole_text(), budget=1 << 20)
    kernels.launch("copies", 1, 64, [read_only(given), written(out)], order=order)
    return given, out


@pytest.mark.parametrize("order", [0, 1])
def test_copies_that_arrive_at_an_mbarrier(order):
    given, out = copied_by_threads(order=order)
    np.testing.assert_array_equal(out, 3 * given.reshape(4, 32)[:, ::-1].reshape(-1))


ARRIVAL = r"cp\.async\.mbarrier\.arrive\.noinc"


@pytest.mark.parametrize("pattern, other, match", [
    (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", "setp.eq.u32 p, 0, 0;",
     "before its asynchronous copy|never written"),
    (ARRIVAL + r"[^;]*;", "", "lacks 32 arrivals"),
    (ARRIVAL + r"(\S*)", r"mbarrier.arrive\1 _,", "asynchronous copy is waited for"),
    (r"(mbarrier\.init[^;]*), %r\d+;", r"\1, 33;", "lacks 1 arrivals"),
    (r"(mbarrier\.init[^;]*), %r\d+;", r"\1, 31;", "lacks 31 arrivals is given 32"),
    (r"bar\.sync\s*0;", "", "whose init no barrier orders|there is no mbarrier"),
])  # fmt: skip
def test_errors_around_copies_that_arrive(pattern, other, match):
    with pytest.raises(PtxFault, match=match):
        for order in (0, 1):
            copied_by_threads(edited("copies", pattern, other), order)


def test_bytes_that_no_barrier_orders():
    with pytest.raises(PtxFault, match="race"):
        copied_bytes(without("bytes", r"bar\.sync\s*0;", 2))


# ------------------------------------------------------------------ products


def product(text=None, slices=4, blocks=2, order=0):
    a = RANDOM.integers(-4, 5, (128 * blocks, 64 * slices)).astype(np.float16)
    b = RANDOM.integers(-4, 5, (64, 64 * slices)).astype(np.float16)
    out = np.zeros((128 * blocks, 64), np.float32)
    maps = [
        TensorMap(n + 1, 2, x.shape[::-1], (x.strides[0],), (64, rows), 128)
        for n, (x, rows) in enumerate(((a, 128), (b, 64)))
    ]
    kernels = PtxKernels(text or whole_text(), budget=1 << 20)
    kernels.launch(
        "product", blocks, 384, [written(out)], (slices,), order=order, maps=maps,
        tensors=[read_only(a), read_only(b)],
    )  # fmt: skip
    return out, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("slices, order", [(1, 0), (5, 0), (5, 1)])
def test_products_with_a_producer(slices, order):
    found, wanted = product(slices=slices, order=order)
    np.testing.assert_array_equal(found, wanted)


PRODUCT_FAULTS = {
    "full not waited for": (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", 2),
    "empty not waited for": (r"mbarrier\.try_wait\.parity\.shared::cta\.b64 p,[^;]*;", 1),
    "no arrival of consumers": (r"mbarrier\.arrive\.shared::cta\.b64 _,[^;]*;", 1),
    "no wait for products": (r"wgmma\.wait_group\.sync\.aligned 0;", 1),
    "no init fence": (r"fence\.mbarrier_init[^;]*;", 1),
    "no fence": (r"wgmma\.fence\.sync\.aligned;", 1),
}


@pytest.mark.parametrize("name", PRODUCT_FAULTS)
def test_errors_around_products(name):
    with pytest.raises(PtxFault):
        product(without("product", *PRODUCT_FAULTS[name]), slices=5)


def test_arrivals_before_products_are_done():
    """A stage that is given back while products still read it."""
    text = edited("product", r"wgmma\.wait_group\.sync\.aligned 0;", "")
    text = text.replace("st.global.f32", "wgmma.wait_group.sync.aligned 0;\n\tst.global.f32", 1)
    with pytest.raises(PtxFault, match="overwrites|register of a product"):
        product(text, slices=5)


@pytest.mark.parametrize("parity", [(1, "0"), (2, "1")])
def test_wrong_parities(parity):
    number, value = parity
    text = whole_text()
    start = text.index(".entry product(")
    place = [*re.finditer(r"(try_wait\.parity[^;]*), %r\d+;", text[start:])][number - 1]
    changed = f"{place[1]}, {value};"
    with pytest.raises(PtxFault):
        product(text[: start + place.start()] + changed + text[start + place.end() :], slices=5)


# ------------------------------------------------------------------ clusters


def both(text=None, grid=4, order=0):
    tensor = np.arange(8 * 32, dtype=np.uint32).reshape(8, 32)
    out = np.zeros((2, 2, 128), np.uint32)
    kernels = PtxKernels(text or whole_text(), budget=1 << 20)
    maps = [TensorMap(1, 4, (32, 8), (128,), (32, 4), 0)]
    kernels.launch("both", grid, 128, [written(out)], order=order, maps=maps,
                   tensors=[read_only(tensor)])  # fmt: skip
    return out, np.stack([tensor.reshape(2, 128), tensor.reshape(2, 128) + 1])


@pytest.mark.parametrize("order", [0, 1])
def test_clusters_share_copies(order):
    found, wanted = both(grid=2, order=order)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("pattern, other, match", [
    (r"barrier\.cluster\.wait\.acquire\.aligned;", "", "no mbarrier|no barrier orders"),
    (r"fence\.mbarrier_init[^;]*;", "", "no barrier orders|not fenced"),
    (r"mbarrier\.arrive\.release\.cluster[^;]*;", "", "does not end: it lacks"),
    (r"(mapa\.shared::cluster\.u32 [^;]*), 0;", r"\1, 1;", "lacks|overwrites"),
    (r"bar\.sync\s*0;", "", "overwrites|arrivals|race"),
    (r"reqnctapercluster 2", "reqnctapercluster 1", "of a cluster of 1"),
    (r"reqnctapercluster 2", "reqnctapercluster 3", "are no clusters of 3"),
])  # fmt: skip
def test_errors_around_clusters(pattern, other, match):
    with pytest.raises(PtxFault, match=match):
        both(edited("both", pattern, other), grid=2)
