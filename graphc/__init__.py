"""graphc, a compiler of neural networks.

    model = graphc.compile("model.onnx", target="cpu", shapes={"x": (1, 3, 224, 224)})
    outputs = model.run({"x": array})

Everything below is imported when it is first used, so that `import graphc` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphc.errors import (
    GraphcError,
    InternalError,
    ModelError,
    ModelWarning,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    from graphc.api import compile, load
    from graphc.frontend.onnx_export import export_onnx
    from graphc.frontend.onnx_import import import_onnx
    from graphc.frontend.tflite.tflite_import import import_tflite
    from graphc.ir.graph import Graph
    from graphc.ir.interp import interpret
    from graphc.ir.text.parser import parse
    from graphc.quantisation.quantiser import quantise
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.listing import ExecutableInfo
    from graphc.streaming import Streamed, stream
    from graphc.transforms import custom_vjp, grad, jvp, stop_gradient, value_and_grad, vjp

__version__ = "0.1.0"

_HOMES = {
    "CompiledModel": "graphc.runtime.compiled",
    "ExecutableInfo": "graphc.runtime.listing",
    "Graph": "graphc.ir.graph",
    "Streamed": "graphc.streaming",
    "compile": "graphc.api",
    "custom_vjp": "graphc.transforms",
    "export_onnx": "graphc.frontend.onnx_export",
    "grad": "graphc.transforms",
    "import_onnx": "graphc.frontend.onnx_import",
    "import_tflite": "graphc.frontend.tflite.tflite_import",
    "interpret": "graphc.ir.interp",
    "jvp": "graphc.transforms",
    "load": "graphc.api",
    "parse": "graphc.ir.text.parser",
    "quantise": "graphc.quantisation.quantiser",
    "stop_gradient": "graphc.transforms",
    "stream": "graphc.streaming",
    "value_and_grad": "graphc.transforms",
    "vjp": "graphc.transforms",
}
_MODULES = {
    "backend": "graphc.backend",
    "dsl": "graphc.frontend.dsl",
    "passes": "graphc.passes",
    "ray": "graphc.ray",
    "train": "graphc.train",
}

__all__ = [
    "CompiledModel", "ExecutableInfo", "Graph", "GraphcError", "InternalError", "ModelError",
    "ModelWarning", "Streamed", "UnsupportedError", "VerificationError", "backend", "compile",
    "custom_vjp", "dsl", "export_onnx", "grad", "import_onnx", "import_tflite", "interpret", "jvp",
    "load", "parse", "passes", "quantise", "stop_gradient", "stream", "train", "value_and_grad",
    "vjp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        member: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        member = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'graphc' has no attribute {name!r}")
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
