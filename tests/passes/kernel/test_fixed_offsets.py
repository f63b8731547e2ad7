"""What stays the same in an innermost loop is named before it."""

from __future__ import annotations

import numpy as np

from graphc.ir.kernel_interp import run_kernel
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.verify.kernels import verify_kernel
from graphc.passes.kernel.fixed_offsets import name_fixed_offsets

KERNEL = """
kernel @k(in a: f32[240], in at: i32[6], out y: f32[240]) {
  for i < 4 {
    for j < 6 {
      let row: i64 = j * 2
      for k < 5 {
        let s: f32 = a[i * 60 + j * 10 + k] * a[i * 60 + j * 10 + k + 5]
        y[i * 60 + row * 5 + k] = s + a[cast<i64>(at[j]) + i * 60 + k]
        vector v < 5 {
          y[i * 60 + j * 10 + v + 5] = a[i * 60 + v] + a[k * 5 + v]
        }
      }
    }
  }
}
"""


def run(kernel) -> np.ndarray:
    y = np.zeros(240, np.float32)
    a, at = np.arange(240, dtype=np.float32), np.arange(6, dtype=np.int32)
    run_kernel(kernel, {"a": a, "at": at, "y": y})
    return y


def test_same_results_by_names():
    kernel = parse_kernel(KERNEL)
    changed = name_fixed_offsets(kernel)
    verify_kernel(changed)
    np.testing.assert_array_equal(run(kernel), run(changed))
    text = str(changed)
    inner = text[text.index("for k < 5") :]
    assert "i *" not in inner and "j *" not in inner and "row" not in inner, text
    assert "a[k + p1] * a[k + p1 + 5]" in inner, text  # loads at a distance share a name
    assert parse_kernel(text) == changed


def test_what_is_one_index_or_depends_on_lanes_stays():
    for text in (
        "kernel @k(out y: f32[8]) { for i < 4 { y[i * 2 + 1] = 1.0 } }",
        "kernel @k(out y: f32[8]) { for i < 4 { for k < 2 { y[i + k] = 1.0 } } }",
        "kernel @k(out y: f32[96]) "
        "{ vector v < 8 { for i < 4 { for k < 3 { y[v * 12 + i * 3 + k] = 1.0 } } } }",
    ):
        kernel = parse_kernel(text)
        assert name_fixed_offsets(kernel) == kernel
