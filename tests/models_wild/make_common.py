"""Shared by the make_*.py scripts: write a model, run it in ONNX Runtime, keep manifest.json.

A manifest entry is one model at one pinning of its dimensions:

    name     unique; the name of the .npz without its ending
    file     the ONNX file, next to the manifest; several entries may share one
    style    which exporter wrote it, or whose habits it follows
    inputs   the graph inputs, in order, each with the pinned shape
    outputs  the graph outputs, in order, each with the shape ONNX Runtime gave
    npz      arrays input_0, input_1, ... and output_0, output_1, ... in those orders

The expected outputs are ONNX Runtime's with all its graph optimisations off.
"""

from __future__ import annotations

import json
import pathlib
import zipfile

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
MANIFEST = HERE / "manifest.json"


class Writer:
    """Collects the nodes and initialisers of one graph; each method returns the value's name."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._prefix = prefix
        self._count = 0

    def node(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes):
        """Add a node; its output's name, or a list of names where `outputs` is more than one."""
        self._count += 1
        name = name or f"{self._prefix}{kind}_{self._count}"
        names = [name] if outputs == 1 else [f"{name}:{k}" for k in range(outputs)]
        node = onnx.helper.make_node(kind, list(inputs), names, name=f"{name}__node", **attributes)
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def initializer(self, name: str, value, dtype=np.float32) -> str:
        array = np.asarray(value, dtype=dtype)
        self.initializers.append(onnx.numpy_helper.from_array(array, name))
        return name

    def constant(self, value, dtype=np.float32, name: str = "") -> str:
        """A Constant node rather than an initialiser."""
        tensor = onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype))
        return self.node("Constant", name=name, value=tensor)

    def graph(self, name: str, inputs, outputs) -> onnx.GraphProto:
        return onnx.helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)


def value(name: str, dtype, shape) -> onnx.ValueInfoProto:
    """A typed graph input or output; a string in `shape` is a symbolic dimension."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def model_of(graph: onnx.GraphProto, opset: int, ir_version: int, producer: str):
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=ir_version, producer_name=producer
    )


def save(model: onnx.ModelProto, file: str, is_onnx: bool = True) -> pathlib.Path:
    """Check the model, if all its operators are ONNX's, and write it beside the manifest."""
    if is_onnx:
        onnx.checker.check_model(model)
    path = HERE / file
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def _write_npz(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """A compressed .npz with fixed time stamps, so that making it again gives the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as stream:
                np.lib.format.write_array(stream, np.asarray(array))


def add_case(file: str, name: str, style: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run `file` on `feeds` in ONNX Runtime; write NAME.npz and NAME's manifest entry."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(HERE / file), options, providers=["CPUExecutionProvider"]
    )
    input_names = [one.name for one in session.get_inputs()]
    output_names = [one.name for one in session.get_outputs()]
    results = session.run(None, {key: feeds[key] for key in input_names})

    arrays = {f"input_{k}": feeds[key] for k, key in enumerate(input_names)}
    arrays |= {f"output_{k}": array for k, array in enumerate(results)}
    _write_npz(HERE / f"{name}.npz", arrays)

    entry = {
        "name": name,
        "file": file,
        "style": style,
        "inputs": {key: list(feeds[key].shape) for key in input_names},
        "outputs": {key: list(v.shape) for key, v in zip(output_names, results, strict=True)},
        "npz": f"{name}.npz",
    }
    entries = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else []
    entries = [old for old in entries if old["name"] != name] + [entry]
    entries.sort(key=lambda one: one["name"])
    lines = ",\n".join("  " + json.dumps(one) for one in entries)
    MANIFEST.write_text(f"[\n{lines}\n]\n")
    print(f"{name}: {' '.join(_operators(onnx.load(HERE / file).graph))}")
    return results


def _operators(graph: onnx.GraphProto) -> list[str]:
    """The distinct operators of a graph and its sub-graphs, with how often each occurs."""
    counts: dict[str, int] = {}

    def visit(part: onnx.GraphProto) -> None:
        for node in part.node:
            kind = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
            counts[kind] = counts.get(kind, 0) + 1
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    visit(attribute.g)

    visit(graph)
    return [f"{kind}*{n}" if n > 1 else kind for kind, n in sorted(counts.items())]
