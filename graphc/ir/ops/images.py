"""Image files: decoded by Pillow where it is installed.

A file is data of somebody's: only the formats that ONNX names are looked for (others make Pillow
start programs), and no more pixels are decoded than MAX_PIXELS, whatever the header says.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from graphc.distribution import install
from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.opdef import TypeClass, host

MAX_PIXELS = 1 << 26  # of one image: 192 MiB in RGB

_Bytes = TypeClass("u8", lambda d: d is dtypes.u8)
_PIXELS = ("RGB", "BGR", "Grayscale")
_FILES = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")


@host("ImageDecoder")
def image_decoder(encoded: _Bytes, *, pixel_format: str = "RGB") -> np.ndarray:
    """The pixels u8[height, width, channels] of an encoded image: of its first frame, as it is
    stored (not turned as cameras ask for); u8[0, 0, 0] if it cannot be decoded, as ONNX has it.

    ModelError above MAX_PIXELS. UnsupportedError where Pillow is not installed.
    """
    if pixel_format not in _PIXELS:
        raise ModelError(f"pixel_format {pixel_format!r} is not one of {', '.join(_PIXELS)}")
    if np.ndim(encoded) != 1:
        raise ModelError(f"takes the bytes of a file [N], found shape {list(np.shape(encoded))}")
    pixels = _decoded(np.asarray(encoded).tobytes(), "L" if pixel_format == "Grayscale" else "RGB")
    return pixels[:, :, ::-1].copy() if pixel_format == "BGR" else pixels


def _decoded(data: bytes, mode: str) -> np.ndarray:
    """The pixels of a file in a mode of Pillow's; none if it is damaged, or of no known format."""
    image_class = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of many pixels, which are judged below
            image = image_class.open(io.BytesIO(data), formats=_FILES)
        _check_size(image.size)
        pixels = np.array(_eight_bits(image, image_class).convert(mode), np.uint8)
    except image_class.DecompressionBombError as error:
        raise ModelError(f"the image is too large: {error}") from error
    except (ModelError, MemoryError):
        raise
    except Exception:  # decoders raise errors of any kind at files that are damaged
        return np.zeros((0, 0, 0), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            f"decoding images needs the package Pillow: {install('images')}"
        ) from error
    return Image


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ModelError(
            f"the image has {width} x {height} pixels, more than the {MAX_PIXELS} that are decoded"
        )


def _eight_bits(image: Any, image_class: Any) -> Any:
    """An image of 16 bits a pixel as one of 8: Pillow would cut off what is above 255."""
    if not image.mode.startswith("I"):
        return image
    wide = np.asarray(image).astype(np.int64)
    return image_class.fromarray(np.clip(wide >> 8, 0, 255).astype(np.uint8))
