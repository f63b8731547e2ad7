"""Outputs that trail behind what is read of an input: the distance found is safe and, for these
kernels, the greatest that is; and the verifier, which plays the accesses through, agrees."""

from __future__ import annotations

import numpy as np
import pytest

from graphc.ir.kernel_interp import run_kernel
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.verify.overlap import overwrites
from graphc.passes.kernel.overlap import distances

# Bodies over an input a and an output y: (text, elements of a, of y, the greatest distance).
BODIES = {
    "window of three rows": (
        """for i < 6 { for j < 4 { reg s: f32[] s[] = 0.0
             for k < max(0, 1 - i) * (-1) + min(3, 7 - i) {
               s[] = s[] + a[i * 4 + k * 4 + max(0, 1 - i) * 4 + j - 4] }
             y[i * 4 + j] = s[] } }""",
        24, 24, -5,
    ),
    "rows that grow": (
        "for i < 5 { for j < 3 { y[i * 6 + j * 2] = a[i * 3 + j] y[i * 6 + j * 2 + 1] = 1.0 } }",
        15, 30, -16,
    ),
    "rows that shrink": ("for i < 5 { y[i] = a[i * 3] + a[i * 3 + 2] }", 15, 5, -1),
    "a last tile that overlaps": (
        """for i < 3 { let t: f32 = a[min(i * 2, 3)] * 2.0
             let u: f32 = a[min(i * 2, 3) + 1] * 2.0
             y[min(i * 2, 3)] = t y[min(i * 2, 3) + 1] = u }""",
        5, 5, -2,
    ),
    "two loops": ("for i < 4 { y[i] = a[i] } for i < 4 { y[i + 4] = a[i + 4] }", 8, 8, -1),
    "a guard": ("for i < 4 { if i > 1 { y[i] = a[i] } else { y[i] = a[i + 1] } }", 5, 4, -1),
}  # fmt: skip


def kernel(name: str):
    body, a, y, _ = BODIES[name]
    return parse_kernel(f"kernel @k(in a: f32[{a}], out y: f32[{y}]) {{ {body} }}")


def in_one_memory(name: str, distance: int) -> bool:
    """Whether the result is right where a and y share memory, y `distance` elements after a."""
    body, a, y, _ = BODIES[name]
    start_a, start_y = max(0, -distance), max(0, distance)
    size = max(start_a + a, start_y + y)
    moved = body.replace("a[", f"m[{start_a} + ").replace("y[", f"m[{start_y} + ")
    memory = np.zeros(size, np.float32)
    data = np.arange(1, a + 1, dtype=np.float32) ** 2
    memory[start_a : start_a + a] = data
    run_kernel(parse_kernel(f"kernel @k(inout m: f32[{size}]) {{ {moved} }}"), {"m": memory})
    expected = np.zeros(y, np.float32)
    run_kernel(kernel(name), {"a": data, "y": expected})
    return bool((memory[start_y : start_y + y] == expected).all())


@pytest.mark.parametrize("name", BODIES)
def test_distances_are_safe(name):
    found = distances(kernel(name))["y", "a"]
    assert found == BODIES[name][3] * 4
    assert all(in_one_memory(name, d) for d in range(-40, found // 4 + 1))


@pytest.mark.parametrize("name", BODIES)
def test_the_verifier_accepts_what_is_right(name):
    k = kernel(name)
    out, source = k.params[1], k.params[0]
    for distance in range(-40, 20):
        reason = overwrites(k, out, source, distance * 4)
        right = in_one_memory(name, distance)
        assert right or reason, f"{distance} overwrites what is read"
        assert not (right and reason) or name == "a guard", f"{distance}: {reason}"


def test_what_cannot_be_known():
    parallel = "kernel @k(in a: f32[8], out y: f32[8]) { parallel i < 8 { y[i] = a[i] } }"
    gather = """kernel @k(in a: f32[8], in at: i64[8], out y: f32[8]) {
      for i < 8 { y[i] = a[at[i]] } }"""
    scatter = gather.replace("y[i] = a[at[i]]", "y[at[i]] = a[i]")
    for text in (parallel, gather, scatter):
        k = parse_kernel(text)
        assert ("y", "a") not in distances(k)
        assert overwrites(k, k.params[-1], k.params[0], -4)


def test_positions_within_bounds_that_depend_on_data():
    """Position `at` of a row of four is clamped to it: an interval is known, each access is not."""
    rows = "for i < 8 { for j < 4 { y[i * 4 + j] = a[i * 2 + min(max(at[j], 0), 1)] } }"
    k = parse_kernel(f"kernel @k(in a: f32[16], in at: i64[4], out y: f32[32]) {{ {rows} }}")
    assert ("y", "a") not in distances(k)
    named = rows.replace("y[i", "let p: i64 = at[j] y[i").replace("at[j], 0", "p, 0")
    k = parse_kernel(f"kernel @k(in a: f32[16], in at: i64[4], out y: f32[32]) {{ {named} }}")
    assert ("y", "a") not in distances(k)


def test_types_that_compilers_tell_apart():
    text = "kernel @k(in a: i32[8], out y: f32[8]) { for i < 8 { y[i] = cast<f32>(a[i]) } }"
    assert distances(parse_kernel(text)) == {}
    text = "kernel @k(in a: i8[8], out y: f32[8]) { for i < 8 { y[i] = cast<f32>(a[i]) } }"
    assert distances(parse_kernel(text)) == {("y", "a"): 7 - 32}


def test_instructions_read_on():
    text = """kernel @k(in a: i8[8], out y: i32[2]) { for i < 2 { reg s: i32[] s[] = 0:i32
      intrin dot4(s[], a[i * 4]) y[i] = s[] } }"""
    k = parse_kernel(text)
    assert distances(k) == {("y", "a"): 4 - 8}
    assert not overwrites(k, k.params[1], k.params[0], -4)
    assert overwrites(k, k.params[1], k.params[0], 4)


def test_no_distance_that_the_verifier_cannot_judge():
    loops = "for i < 4 { for j < 100000 { for k < 100000 { y[i] = a[i] } } }"
    params = "in a: f32[4], out y: f32[4]"
    assert distances(parse_kernel(f"kernel @k({params}) {{ {loops} }}")) == {}
    assert distances(parse_kernel(f"kernel @k({params}) {{ for i < 4 {{ y[i] = a[i] }} }}"))
