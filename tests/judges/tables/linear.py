"""Products, determinants, transforms and windows of signals: numpy and scipy."""

from __future__ import annotations

import numpy as np
from judge import BETWEEN, WIDE, Case
from onnx import TensorProto
from operands import normal
from scipy import signal


def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):  # noqa: N803
    a, b = (m.T if flag else m for m, flag in ((a, transA), (b, transB)))
    return alpha * (a @ b) + (0 if c is None else beta * c)


EQUATIONS = [
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("...ij,...jk", (2, 3, 4), (2, 4, 5)),
    ("ii->i", (4, 4)), ("ij->", (3, 4)), ("bhd,bkd,bk->bh", (2, 3, 4), (2, 5, 4), (2, 5)),
    ("ab,cb->ca", (1, 3), (4, 3)), ("i,j->ij", (3,), (0,)), ("iij->j", (3, 3, 2)),
]  # fmt: skip
SHAPES = {
    "vectors": ((7,), (7,)), "rows": ((7,), (2, 7, 3)), "columns": ((2, 3, 7), (7,)),
    "stacks": ((4, 1, 3, 5), (2, 5, 6)), "deep": ((3, 2000), (2000, 4)),
    "of_none": ((3, 0), (0, 4)), "none": ((0, 3), (3, 4)), "single": ((1, 1), (1, 1)),
}  # fmt: skip


def einsum(*operands, equation):
    return np.asarray(np.einsum(equation, *operands))


def dft(x, length=None, axis=None, *, inverse=0, onesided=0):
    """Of real signals [.., 1] or complex ones [.., 2]."""
    z = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    axis = -2 if axis is None else int(axis)
    axis = axis + 1 if axis < 0 else axis
    n = None if length is None else int(length)
    y = np.fft.ifft(z, n, axis) if inverse else np.fft.rfft(z, n, axis) if onesided else (
        np.fft.fft(z, n, axis))  # fmt: skip
    return np.stack([y.real, y.imag], -1)


def stft(x, step, window, length=None, *, onesided=1):
    x = x[..., 0] if x.ndim == 3 else x
    n = len(window)
    starts = range(0, x.shape[1] - n + 1, int(step))
    frames = np.stack([x[:, s : s + n] * window for s in starts], 1)
    y = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    return np.stack([y.real, y.imag], -1)


def window(name: str):
    def reference(size, *, periodic):
        return signal.get_window(name, int(size), bool(periodic)).astype(np.float64)

    return reference


def hamming(size, *, periodic):
    """The standard's coefficients are 25/46 and 21/46, not 0.54 and 0.46."""
    return signal.windows.general_hamming(int(size), 25 / 46, not periodic)


LENGTH = np.array(16)
KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
CASES = [
    *(Case(f"MatMul_{n}", "MatMul", [normal(*a), normal(*b)], lambda a, b: np.asarray(a @ b),
           share=4.0) for n, (a, b) in SHAPES.items()),
    Case("Gemm", "Gemm", [normal(3, 5), normal(5, 4)], gemm, share=2.0),
    Case("Gemm_all", "Gemm", [normal(5, 3), normal(4, 5), normal(3, 1)], gemm,
         {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, share=2.0,
         narrow=BETWEEN),
    *(Case(f"Einsum_{n}", "Einsum", [normal(*s) for s in shapes], einsum, {"equation": e},
           share=2.0, narrow=BETWEEN if n == 4 else 1.0)
      for n, (e, *shapes) in enumerate(EQUATIONS)),
    *(Case(f"Det_{n}", "Det", [normal(3, n, n)], np.linalg.det, types=WIDE, share=1.0,
           roundings=200) for n in (1, 2, 3, 6)),
    Case("Det_singular", "Det", [np.array([[[1, 2], [2, 4]], [[0, 0], [0, 1]]], np.float32)],
         np.linalg.det, types=["float32"], roundings=16),
    Case("DFT", "DFT", [normal(2, 15, 3, 1), None, np.array(1)], dft, types=WIDE, share=4.0),
    Case("DFT_complex", "DFT", [normal(2, 3, 16, 2)], dft, types=WIDE, share=4.0),
    Case("DFT_inverse", "DFT", [normal(2, 3, 12, 2)], dft, {"inverse": 1}, types=WIDE, share=4.0),
    Case("DFT_onesided", "DFT", [normal(2, 9, 1), None, np.array(1)], dft, {"onesided": 1},
         types=WIDE, share=4.0),
    Case("DFT_longer", "DFT", [normal(2, 9, 1), LENGTH, np.array(1)], dft, types=WIDE, share=4.0),
    Case("DFT_shorter", "DFT", [normal(2, 30, 1), LENGTH, np.array(1)], dft, types=WIDE, share=4.0),
    Case("DFT_prime", "DFT", [normal(1, 101, 2), None, np.array(1)], dft, types=WIDE, share=4.0),
    Case("STFT", "STFT", [normal(2, 50, 1), np.array(5), normal(16), LENGTH], stft, types=WIDE,
         share=4.0),
    Case("STFT_both_sides", "STFT", [normal(2, 50, 1), np.array(5), normal(16)], stft,
         {"onesided": 0}, types=WIDE, share=4.0),
    *(
        Case(f"{name}_{periodic}_{kind}", name, [np.array(12)], reference,
             {"periodic": periodic, "output_datatype": KINDS[kind]}, types=["float32"],
             terms=1.0)
        for name, reference in (("HannWindow", window("hann")), ("HammingWindow", hamming),
                                ("BlackmanWindow", window("blackman")))
        for periodic in (0, 1) for kind in KINDS
    ),
]  # fmt: skip
