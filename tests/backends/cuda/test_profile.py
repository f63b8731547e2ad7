"""The cost of accesses, against counts by hand."""

from dataclasses import replace
from functools import cache

import pytest
from cuda_programs import cuda_of, inputs_of, needs_compiler

from graphc.backends.cuda import CudaSource, emit
from graphc.backends.cuda.simulator.accesses import accesses
from graphc.backends.cuda.simulator.profile import KernelProfile, Traffic, profile
from graphc.ir.program import program_of
from graphc.ir.text.kernel_parser import parse_kernel

pytestmark = needs_compiler

KERNEL = """kernel @k(in x: f32[4096], in h: u16[4096], out y: f32[4,4096]) {
  block b < 4 {
    shared tile: f32[1024]
    shared words: u32[1024]
    shared shorts: u16[1024]
    shared doubles: f64[1024]
    thread t < 32 {
      y[b, t] = x[b] + f32(h[t])
      tile[0] = 0.0:f32
      words[0] = 0:u32
      shorts[0] = 0:u16
      doubles[0] = 0.0:f64
    }
  }
}""".replace("f32(h[t])", "cast<f32>(h[t])")
FILL = """for (int n = 0; n < 32; ++n) {
        tile[n * 32 + t] = 0.0f, words[n * 32 + t] = 0u;
        shorts[n * 32 + t] = 0, doubles[n * 32 + t] = 0.0;
    }
    __syncwarp();
    float f[4]; uint32_t r[4]; double d;
"""
GLOBAL = {  # element: sectors and the fewest there could be
    "x[t]": (4, 4),  # 32 floats are 128 bytes
    "x[2 * t]": (8, 4),  # half of every sector
    "x[32 * t]": (32, 4),  # a sector for each lane
    "x[0]": (1, 1),  # the same 4 bytes for all
    "x[t / 8]": (1, 1),
    "x[t + 1]": (5, 4),  # misaligned: bytes 4 to 132
    "x[31 - t]": (4, 4),  # in any order
    "x[t % 8 * 8]": (8, 1),  # words of 8 sectors, which one could hold
    "h[t]": (2, 2),
    "h[16 * t]": (32, 2),
}
SHARED = {  # element: wavefronts and the fewest there could be
    "tile[t]": (1, 1),
    "tile[2 * t]": (2, 1),  # 16 banks, two words of each
    "tile[t * 31]": (1, 1),
    "tile[t * 32]": (32, 1),  # all in one bank
    "tile[t * 33]": (1, 1),  # no more
    "tile[5]": (1, 1),  # one word for all
    "tile[t / 2]": (1, 1),
    "tile[t % 2 * 32]": (2, 1),  # two words of bank 0
    "shorts[t]": (1, 1),  # two lanes for each word
    "shorts[2 * t]": (1, 1),
    "doubles[t]": (2, 2),  # each half of the warp fills the banks
    "doubles[2 * t]": (4, 2),
    "doubles[t % 16]": (2, 2),
    "doubles[t / 2]": (1, 1),  # pairs of lanes take the same
}
VECTORS = {  # of 16 bytes: sectors, or wavefronts, and the fewest
    "x[4 * t]": (16, 16),
    "x[8 * t]": (32, 16),
    "tile[4 * t]": (4, 4),  # eight lanes fill all banks
    "tile[t / 8 * 256 + t % 8 * 32]": (32, 4),  # a quarter of the warp in the same banks
    "tile[t * 8]": (8, 4),
    "tile[t * 20]": (4, 4),  # rows of 20 words
    "tile[t % 8 * 4]": (4, 4),  # each quarter for itself
    "tile[t / 2 * 4]": (2, 2),  # lanes n and n ^ 1 take the same
    "tile[t / 4 % 4 * 8 + t % 2 * 4]": (2, 2),  # lanes n and n ^ 2
    "tile[t / 4 * 4]": (2, 2),  # both
    "tile[8]": (2, 2),
    "tile[t / 2 * 32]": (16, 2),  # eight words of a bank in each half
}
MATRICES = {  # rows of matrices: wavefronts of the four, and the fewest
    "words[t * 4]": (4, 4),  # next to one another
    "words[t % 16 * 32]": (32, 4),  # rows of 128 bytes: all eight in the same banks
    "words[t % 16 * 32 + (t % 8) * 4]": (4, 4),  # permuted by their number
    "words[t * 16]": (16, 4),  # rows of 64 bytes: four in the same banks
    "words[t * 16 + (t / 2 % 4) * 4]": (4, 4),
}


def kernel(body: str) -> CudaSource:
    """A kernel of 4 blocks of a warp, `b` and `t`, that does this."""
    source = emit(program_of(parse_kernel(KERNEL)))
    start = source.text.index("    y[")
    return replace(source, text=source.text[:start] + body + "\n}\n")


def profiled(body: str, blocks: int = 4) -> KernelProfile:
    source = kernel(body)
    (found,) = profile(source, inputs_of(source.program), blocks)
    return found


@cache
def cases() -> dict[str, Traffic]:
    """The traffic of one block at each of the elements."""
    single = [f"d = {element};" for element in (*GLOBAL, *SHARED)]
    vectors = [f"load_vector({element}, f[0], f[1], f[2], f[3]);" for element in VECTORS]
    matrices = [f"load_matrices(r[0], r[1], r[2], r[3], {element});" for element in MATRICES]
    found = profiled(FILL + "\n".join(f"    {x}" for x in [*single, *vectors, *matrices]), 1)
    names = Traffic.__dataclass_fields__
    traffic = [Traffic(*(getattr(x, n) / 4 for n in names)) for x in found.sites.values()][4:]
    keys = [*single, *vectors, *matrices]
    return dict(zip(keys, traffic, strict=True))


@pytest.mark.parametrize(("element", "expected"), GLOBAL.items())
def test_sectors(element, expected):
    found = cases()[f"d = {element};"]
    assert (found.requests, found.bytes) == (1, 32 * (2 if element[0] == "h" else 4))
    assert (found.sectors, found.least_sectors) == expected
    assert (found.wavefronts, found.conflicts) == (0, 0)
    assert found.coalescing == expected[1] / expected[0]


@pytest.mark.parametrize(("element", "expected"), SHARED.items())
def test_wavefronts(element, expected):
    found = cases()[f"d = {element};"]
    assert (found.requests, found.sectors, found.coalescing) == (1, 0, 1)
    assert (found.wavefronts, found.least_wavefronts) == expected
    assert found.conflicts == expected[0] / expected[1] - 1


@pytest.mark.parametrize(("element", "expected"), VECTORS.items())
def test_vectors(element, expected):
    found = cases()[f"load_vector({element}, f[0], f[1], f[2], f[3]);"]
    assert (found.requests, found.bytes) == (1, 512)
    both = (found.sectors, found.least_sectors), (found.wavefronts, found.least_wavefronts)
    assert both == ((expected, (0, 0)) if element[0] == "x" else ((0, 0), expected))


@pytest.mark.parametrize(("element", "expected"), MATRICES.items())
def test_matrices(element, expected):
    found = cases()[f"load_matrices(r[0], r[1], r[2], r[3], {element});"]
    assert (found.requests, found.bytes, found.sectors) == (1, 512, 0)
    assert (found.wavefronts, found.least_wavefronts) == expected


def test_lanes_are_together_by_iteration():
    """Every lane leaves out an iteration, not all the same: lanes are not to be matched by how
    often they have come by."""
    found = profiled("""    for (int n = 0; n < 4; ++n) {
        if (t % 4 != n) {
            y[b * 4096 + t] = x[n * 32 + t];
        }
    }""")
    site = next(s for s in found.sites if s.array == "x")
    assert site.element == "x[n * 32 + t]" and site.kernel == "k"
    traffic = found.sites[site]
    assert (traffic.requests, traffic.bytes) == (4 * 4, 4 * 4 * 24 * 4)
    assert (traffic.sectors, traffic.least_sectors) == (4 * 16, 4 * 12)


def test_what_blocks_move():
    """Requests with strides together use all of their sectors, or do not."""
    found = profiled("""    for (int n = 0; n < 4; ++n) {
        y[b * 4096 + 4 * t + n] = x[8 * t + n];
    }""")
    assert (found.moved, found.used, found.wasted) == (4 * (1024 + 512), 4 * (512 + 512), 4 * 512)
    total = found.total
    assert (total.requests, total.bytes) == (4 * 8, 4 * 8 * 128)
    assert (total.sectors, total.least_sectors) == (4 * 4 * (32 + 16), 4 * 4 * (4 + 4))


def test_profiles_of_a_program():
    source = cuda_of("""graph @g(%x: f32[64,64], %w: f32[64,64]) -> ? {
  %a = MatMul(%x, %w)
  %y = MatMul(%a, %a)
  return %y
}""")
    found = profile(source, inputs_of(source.program))
    assert [step for launch in found for step in launch.steps] == source.steps
    assert all(launch.total.conflicts <= 0.1 and launch.wasted == 0 for launch in found)
    assert all(f"\n{step.function}" in accesses(found) for step in source.steps)


def report(**traffic: float) -> list[str]:
    """The lines on a kernel of three launches with one access."""
    found = profiled("    y[b * 4096 + t] = x[t];")
    (site, *_) = found.sites
    return accesses(
        [KernelProfile(found.steps * 3, {site: Traffic(**traffic)}, 4096.0, 1024.0)]
    ).splitlines()


def test_reports():
    lines = report(requests=8, bytes=1024, sectors=128, least_sectors=32)
    assert lines[0].startswith("blocks of 1 kernels move 12 KiB of global memory, 9 KiB (75.0%)")
    assert lines[2].split() == ["k", "3", "12", "KiB", "9", "KiB", "25%"]
    assert lines[-1].split()[-2:] == ["8", "25%"]
    conflicts = report(requests=8, bytes=1024, wavefronts=16, least_wavefronts=8)
    assert conflicts[-1].split()[-2:] == ["8", "100%"]
    assert len(report(requests=8, bytes=1024, sectors=32, least_sectors=32)) == 3
