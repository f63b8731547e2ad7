"""Offsets summed loop by loop are the offsets."""

from __future__ import annotations

import numpy as np

from graphc.ir.kernel_interp import run_kernel
from graphc.ir.text.kernel_parser import parse_kernel
from graphc.ir.verify.kernels import verify_kernel
from graphc.passes.kernel.strength_reduction import sum_offsets

KERNEL = """
kernel @k(in a: f32[240], in at: i32[6], out y: f32[240]) {
  for i < 4 {
    for j < 6 {
      reg s: f32[]
      s[] = 0.0
      for k < 5 {
        s[] = s[] + a[i * 60 + j * 10 + k] * a[i * 60 + j * 10 + k + 5]
        if j > 2 {
          s[] = s[] + a[cast<i64>(at[j]) + i * 60 + max(0, j - i) * 2 + k]
        }
        y[i * 60 + j * 10 + k * 2] = s[]
      }
      y[i * 60 + j * 10 + 1] = 1.0
    }
  }
}
"""


def run(kernel) -> np.ndarray:
    a = np.arange(240, dtype=np.float32)
    y = np.zeros(240, np.float32)
    run_kernel(kernel, {"a": a, "at": np.arange(6, dtype=np.int32), "y": y})
    return y


def test_same_results_and_shared_offsets():
    kernel = parse_kernel(KERNEL)
    changed = sum_offsets(kernel)
    verify_kernel(changed)
    np.testing.assert_array_equal(run(kernel), run(changed))
    text = str(changed)
    assert text.count("let p") < text.count("a[") + text.count("y["), text
    assert "a[k + p2]" in text and "a[k + p2 + 5]" in text
    assert parse_kernel(text) == changed


def test_offsets_of_one_loop_stay():
    kernel = parse_kernel("kernel @k(out y: f32[8]) { for i < 4 { y[i * 2 + 1] = 1.0 } }")
    assert sum_offsets(kernel) == kernel
