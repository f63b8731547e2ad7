"""ImageDecoder: formats, orders of channels, damaged files, and files that claim too much."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc.ir.ops import images

sys.path.insert(0, str(Path(__file__).parents[2] / "frontend"))

from onnx_models import model

TEXT = "g (uint8[N] x) => (uint8[H,W,C] y) { y = %s }"
RNG = np.random.default_rng(4)
PIXELS = np.kron(RNG.integers(0, 256, (4, 6, 3), np.uint8), np.ones((4, 4, 1), np.uint8))
LOSSLESS = {"BMP": {}, "PNG": {}, "PPM": {}, "TIFF": {}, "WEBP": {"lossless": True},
            "JPEG2000": {"irreversible": False}}  # fmt: skip


def encoded(pixels: np.ndarray, kind: str, **options) -> np.ndarray:
    image = pytest.importorskip("PIL.Image", reason="Pillow writes the images")
    made = io.BytesIO()
    image.fromarray(pixels).save(made, kind, **options)
    return np.frombuffer(made.getvalue(), np.uint8)


def decode(data, pixel_format: str = "RGB") -> np.ndarray:
    node = f'ImageDecoder<pixel_format = "{pixel_format}">(x)'
    data = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    return graphc.compile(model(TEXT % node), threads=1).run([data])[0]


@pytest.mark.suite("all")
@pytest.mark.parametrize("kind", LOSSLESS)
def test_formats(kind):
    data = encoded(PIXELS, kind, **LOSSLESS[kind])
    assert np.array_equal(decode(data), PIXELS)
    assert np.array_equal(decode(data, "BGR"), PIXELS[:, :, ::-1])
    luma = PIXELS @ np.array([0.299, 0.587, 0.114])
    grey = decode(data, "Grayscale")
    assert grey.shape == (16, 24, 1) and np.abs(grey[:, :, 0] - luma).max() < 1


def test_jpeg():
    found = decode(encoded(PIXELS, "JPEG", quality=95, subsampling=0))
    assert found.shape == PIXELS.shape
    assert np.abs(found.astype(int) - PIXELS).mean() < 8


def test_images_of_other_modes():
    grey = PIXELS[:, :, 0]
    assert np.array_equal(decode(encoded(grey, "PNG")), np.repeat(grey[:, :, None], 3, 2))
    wide = grey.astype(np.uint16) << 8 | 77
    assert np.array_equal(decode(encoded(wide, "PNG"))[:, :, 1], grey)
    alpha = np.dstack([PIXELS, grey])
    assert np.array_equal(decode(encoded(alpha, "PNG")), PIXELS)


def test_files_that_are_damaged_give_no_pixels():
    whole = encoded(PIXELS, "PNG").tobytes()
    for data in (b"", b"GIF89a nothing", b"%!PS-Adobe-3.0 EPSF-3.0\n", whole[: len(whole) // 2]):
        assert decode(data).shape == (0, 0, 0)
    for kind in ("JPEG", "PNG", "TIFF", "WEBP", "JPEG2000", "BMP", "PPM"):
        data = encoded(PIXELS, kind).copy()
        for place in RNG.integers(0, len(data), 20):
            data[place] ^= 1 << RNG.integers(8)
            assert decode(data).ndim == 3


def test_formats_that_start_programs_are_not_looked_for():
    assert decode(encoded(PIXELS, "EPS")).shape == (0, 0, 0)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises that many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ends


@pytest.mark.parametrize("width, height", [(1 << 14, 1 << 13), (1 << 30, 1 << 30)])
def test_files_that_claim_too_many_pixels(width, height):
    pytest.importorskip("PIL", reason="Pillow reads the header")
    with pytest.raises(graphc.ModelError, match="ImageDecoder .*(too large|more than the)"):
        decode(bomb(width, height))


def test_the_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    hint = r"Pillow: pip install 'graphc-compiler\[images\]'"
    with pytest.raises(graphc.UnsupportedError, match=hint):
        images.image_decoder(np.zeros(3, np.uint8))


def test_bytes_lie_in_a_row():
    with pytest.raises(graphc.ModelError, match=r"bytes of a file \[N\], found shape \[1, 3\]"):
        images.image_decoder(np.zeros((1, 3), np.uint8))
