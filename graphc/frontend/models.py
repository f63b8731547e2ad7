"""Models of any form that graphc reads: ONNX, and TensorFlow Lite."""

from __future__ import annotations

import os
from typing import Any

from graphc.frontend.tflite.reader import SUFFIX, is_tflite
from graphc.ir.graph import Graph


def import_model(source: Any) -> Graph:
    """The graph of a model: of a path, bytes, or an ONNX message; ModelError, UnsupportedError.

    A path that ends in .tflite, and bytes with its identifier, are TensorFlow Lite; all else is
    ONNX.
    """
    if _is_tflite(source):
        from graphc.frontend.tflite.tflite_import import import_tflite

        return import_tflite(source)
    from graphc.frontend.onnx_import import import_onnx

    return import_onnx(source)


def _is_tflite(source: Any) -> bool:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return is_tflite(memoryview(source).cast("B"))
    return isinstance(source, (str, os.PathLike)) and os.fspath(source).lower().endswith(SUFFIX)
