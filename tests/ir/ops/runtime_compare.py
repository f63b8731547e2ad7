"""Runs one of ONNX Runtime's own operators in the interpreter and in ONNX Runtime, and compares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, helper, numpy_helper

from graphc import driver
from graphc.frontend.onnx_export import export_onnx
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.passes.specialise import specialise

onnxruntime.set_default_logger_severity(3)
DOMAIN = "com.microsoft"


def runtime_model(
    kind: str,
    operands: Sequence[np.ndarray | None],
    attrs: dict[str, Any],
    outputs: Sequence[bool] = (True,),
    constants: Collection[int] = (),
    domain: str = DOMAIN,
    opset: int = 21,
) -> ModelProto:
    """A model of one node. Operands of None are left out, those in `constants` initialisers;
    `outputs` says which there are."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(operands)]
    results = [f"y{n}" if wanted else "" for n, wanted in enumerate(outputs)]
    infos, initialisers = [], []
    for n, x in enumerate(operands):
        if x is None:
            continue
        if n in constants:
            initialisers.append(numpy_helper.from_array(x, names[n]))
        else:
            kind_of = helper.np_dtype_to_tensor_dtype(x.dtype)
            infos.append(helper.make_tensor_value_info(names[n], kind_of, x.shape))
    node = helper.make_node(kind, names, results, domain=domain, **attrs)
    outs = [helper.make_empty_tensor_value_info(y) for y in results if y]
    if kind.endswith("Attention"):  # the types of whose results ONNX Runtime does not infer
        first = next(x for x in operands if x is not None and x.dtype.kind == "f")
        floats = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(first.dtype), None)
        for out in outs:
            out.type.CopyFrom(floats)
    graph = helper.make_graph([node], "g", infos, outs, initialisers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_ort(proto: ModelProto, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes on its CPU. One thread: of some operators it divides the batch
    among threads, and quantises the parts on their own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), feeds)))


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    """Asserts equal dtypes and shapes, and values that are equal relative to the largest."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    got, want = got.astype(np.float64), want.astype(np.float64)
    scale = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * float(scale))


def check(
    kind: str,
    *operands: np.ndarray | None,
    outputs: Sequence[bool] = (True,),
    constants: Collection[int] = (),
    domain: str = DOMAIN,
    tolerance: float = 1e-5,
    expected: Sequence[np.ndarray] | None = None,
    compiled: bool = False,
    opset: int = 21,
    decomposed: bool = True,
    **attrs: Any,
) -> list[np.ndarray]:
    """Asserts that the interpreter and the model exported as ONNX's own operators, and with
    `compiled` what is compiled for this CPU, give what ONNX Runtime gives, or what is `expected`.
    Without `decomposed`, for what ONNX has no operators for, it is exported as the node that it is.
    Returns what was found."""
    proto = runtime_model(kind, operands, attrs, outputs, constants, domain, opset)
    feeds = [x for n, x in enumerate(operands) if x is not None and n not in constants]
    wanted = run_ort(proto, feeds) if expected is None else expected
    graph = import_onnx(proto)
    found = interpret(graph, feeds)
    for got, want in zip(found, wanted, strict=True):
        close(got, want, tolerance)
    if compiled:
        for got, want in zip(driver.compile(graph, threads=1).run(feeds), found, strict=True):
            close(got, want, tolerance)
    exported = specialise(graph)
    if decomposed:
        unchecked = driver.Settings(checks="off")
        exported = driver.optimise(exported, unchecked, passes="decompose")
    for got, want in zip(run_ort(export_onnx(exported), feeds), wanted, strict=True):
        close(got, want, tolerance)
    return found
