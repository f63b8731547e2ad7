"""Helpers: small models as programs for microcontrollers, and their bundles compiled and run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from graphc import driver
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.cpus import DEFAULT
from graphc.ir.program import Program

STRICT = (
    "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror",
)  # fmt: skip
SANITISED = ("-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")


def model_of(nodes, inputs: dict, outputs: dict, constants: dict | None = None) -> onnx.ModelProto:
    """A model from nodes; inputs and outputs map names to (TensorProto type, shape)."""

    def infos(named: dict) -> list:
        return [helper.make_tensor_value_info(n, t, s) for n, (t, s) in named.items()]

    weights = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", infos(inputs), infos(outputs), weights)
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def float_model(node, x: np.ndarray, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A model of one node with input x and output y."""
    inputs = {"x": (TensorProto.FLOAT, x.shape)}
    return model_of([node], inputs, {"y": (TensorProto.FLOAT, None)}, weights)


def micro_program(model: onnx.ModelProto, cpu: str = DEFAULT) -> Program:
    """The program that a bundle is made from."""
    return driver.program_for(driver.typed(model), "c", cpu=cpu)


def reference(model: onnx.ModelProto, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, operator by operator."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), feeds)))


def run_bundle(
    model: onnx.ModelProto, feeds: Sequence[np.ndarray], folder: Path, tolerance: float,
    cpu: str = DEFAULT,
) -> str:  # fmt: skip
    """Compiles the bundle's own test with sanitisers and runs it; what it prints."""
    samples = (feeds, reference(model, feeds))
    program = micro_program(model, cpu)
    options = BundleOptions(name="net", samples=samples, tolerance=tolerance, cpu=cpu)
    write_bundle(program, folder, options)
    flags = ["-std=c99", "-O1", *STRICT, *SANITISED]
    sources = ["net.c", "net_weights.c", "net_test.c"]
    checked(["gcc", *flags, *sources, "-lm", "-o", "net_test"], folder)
    return checked(["./net_test"], folder)


def checked(command: Sequence[str], folder: Path, timeout: float = 600) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
