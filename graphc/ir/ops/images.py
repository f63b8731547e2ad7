"""Image files: decoded by Pillow where it is installed."""

from __future__ import annotations

import io

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.opdef import TypeClass, host

_Bytes = TypeClass("u8", lambda d: d is dtypes.u8)
_FORMATS = ("RGB", "BGR", "Grayscale")


@host("ImageDecoder")
def image_decoder(encoded: _Bytes, *, pixel_format: str = "RGB"):
    """The pixels u8[height, width, channels] of an encoded image; empty if it cannot be decoded.

    UnsupportedError where Pillow is not installed.
    """
    if pixel_format not in _FORMATS:
        raise ModelError(f"pixel_format {pixel_format!r} is none of {', '.join(_FORMATS)}")
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise UnsupportedError("ImageDecoder needs the package Pillow") from error
    try:
        image = Image.open(io.BytesIO(np.asarray(encoded).tobytes()))
        pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError):
        return np.zeros((0, 0, 0), np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1].copy() if pixel_format == "BGR" else pixels
