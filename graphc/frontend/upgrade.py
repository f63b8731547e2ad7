"""Lifts a model to the opset that graphc's operator definitions speak."""

from __future__ import annotations

import onnx
from onnx import ModelProto, version_converter

from graphc.errors import ModelError, UnsupportedError

OPSET = 28  # the version of ai.onnx whose meaning graphc's definitions have


def upgrade(model: ModelProto) -> ModelProto:
    """The model at the newest opset of ai.onnx; the argument itself if it is there already."""
    target = min(OPSET, onnx.defs.onnx_opset_version())
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", target))
    if version == target:
        return model
    if version > target:
        raise UnsupportedError(f"opset {version} is newer than {target}, the newest supported")
    try:
        return version_converter.convert_version(model, target)
    except Exception as error:
        raise ModelError(f"cannot be lifted from opset {version} to {target}: {error}") from error
