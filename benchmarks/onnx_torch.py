"""ONNX models as PyTorch modules: each node is a function of tensors, called in order.

It has the operators of the models that benchmarks and the verification of gradients run; another
one is a NotImplementedError with its name. Constants of integers stay numpy arrays, as do results
that follow from them alone, so that shapes and axes are known when torch.compile traces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

Attrs = dict[str, Any]


def _ints(value: Any) -> list[int]:
    return [int(x) for x in np.asarray(value).ravel()]


def _padded(x: torch.Tensor, a: Attrs, window: Sequence[int], value: float) -> Any:
    """The input, and what is left to pad on both sides alike."""
    n = len(window)
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    pads = a.get("pads", [0] * (2 * n))
    if a.get("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        sizes = zip(x.shape[2:], window, strides, dilations)
        total = [max((-(-s // t) - 1) * t + (w - 1) * d + 1 - s, 0) for s, w, t, d in sizes]
        least = [t // 2 for t in total]
        most = [t - t // 2 for t in total]
        pads = [*least, *most] if a["auto_pad"] == "SAME_UPPER" else [*most, *least]
    if pads[:n] == pads[n:]:
        return x, pads[:n]
    both = [p for d in reversed(range(n)) for p in (pads[d], pads[n + d])]
    return F.pad(x, both, value=value), [0] * n


def _conv(a: Attrs, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Any:
    n = x.dim() - 2
    x, pads = _padded(x, a, w.shape[2:], 0.0)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    return convolve(x, w, b, strides, pads, dilations, a.get("group", 1))


def _conv_transpose(a: Attrs, x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
    n = x.dim() - 2
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    pads, more = a.get("pads", [0] * (2 * n)), a.get("output_padding", [0] * n)
    assert pads[:n] == pads[n:]
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    return convolve(x, w, b, strides, pads[:n], more, a.get("group", 1), dilations)


def _max_pool(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    x, pads = _padded(x, a, a["kernel_shape"], -np.inf)
    return F.max_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), pads)


def _average_pool(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    assert not any(a.get("pads", [0]))
    window = [min(w, s) for w, s in zip(a["kernel_shape"], x.shape[2:])]  # cut where it ends
    return F.avg_pool2d(x, window, a.get("strides", [1, 1]), ceil_mode=bool(a.get("ceil_mode")))


def _gemm(a: Attrs, x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
    x = x.T if a.get("transA") else x
    w = w.T if a.get("transB") else w
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    if b is not None:
        return torch.addmm(b, x, w, beta=beta, alpha=alpha)
    product = x @ w
    return product if alpha == 1.0 else product * alpha


def _norm(a: Attrs, x: torch.Tensor, w: torch.Tensor, b: Any = None) -> torch.Tensor:
    shape = x.shape[a.get("axis", -1) :]
    return F.layer_norm(x, shape, w, b, a.get("epsilon", 1e-5))


def _mean(a: Attrs, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    dims = a.get("axes") if axes is None else _ints(axes)
    return x.mean(dims or list(range(x.dim())), keepdim=bool(a.get("keepdims", 1)))


def _reshape(a: Attrs, x: Any, shape: Any) -> Any:
    dims = _ints(shape)
    if not a.get("allowzero"):
        dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    return x.reshape(dims)


def _slice(a: Attrs, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    begin, end = _ints(starts), _ints(ends)
    along = list(range(len(begin))) if axes is None else _ints(axes)
    by = [1] * len(begin) if steps is None else _ints(steps)
    assert all(step > 0 for step in by)
    index = [slice(None)] * len(x.shape)
    for s, e, axis, step in zip(begin, end, along, by):
        index[axis] = slice(s, min(e, 1 << 62), step)
    return x[tuple(index)]


def _gather(a: Attrs, x: Any, index: Any) -> Any:
    axis = a.get("axis", 0)
    if isinstance(x, np.ndarray):
        return np.take(x, np.asarray(index), axis)
    index = torch.as_tensor(index)
    axis %= x.dim()
    if axis == 0 and x.dim() == 2 and index.dim():
        return F.embedding(index, x)
    flat = torch.index_select(x, axis, index.reshape(-1))
    return flat.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_nd(a: Attrs, x: Any, index: Any) -> Any:
    assert not a.get("batch_dims")
    return torch.as_tensor(x)[tuple(torch.as_tensor(np.moveaxis(np.asarray(index), -1, 0)))]


def _split(a: Attrs, x: torch.Tensor, parts: Any = None) -> Any:
    axis = a.get("axis", 0)
    sizes = x.shape[axis] // a["num_outputs"] if parts is None else _ints(parts)
    return torch.split(x, sizes, axis)


def _unsqueezed(a: Attrs, x: Any, axes: Any) -> Any:
    rank = len(x.shape) + len(_ints(axes))
    for axis in sorted(d % rank for d in _ints(axes)):
        x = np.expand_dims(x, axis) if isinstance(x, np.ndarray) else x.unsqueeze(axis)
    return x


def _squeezed(a: Attrs, x: Any, axes: Any = None) -> Any:
    if axes is None:
        return x.squeeze()
    for axis in sorted((d % len(x.shape) for d in _ints(axes)), reverse=True):
        x = x.squeeze(axis)
    return x


def _concat(a: Attrs, *parts: Any) -> Any:
    if all(isinstance(p, np.ndarray) for p in parts):
        return np.concatenate(parts, a["axis"])
    return torch.cat([torch.as_tensor(p) for p in parts], a["axis"])


def _expand(a: Attrs, x: Any, shape: Any) -> Any:
    x = torch.as_tensor(x)
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(_ints(shape))))


def _where(a: Attrs, c: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.where(*(torch.as_tensor(v) for v in (c, x, y)))


def _cast(a: Attrs, x: Any) -> Any:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(a["to"])
    if isinstance(x, np.ndarray):
        return x.astype(dtype)
    return x.to(torch.from_numpy(np.zeros(0, dtype)).dtype)


def _resize(a: Attrs, x: torch.Tensor, roi: Any, scales: Any = None, sizes: Any = None) -> Any:
    assert a["mode"] == "linear" or a["mode"] == b"linear"
    centred = a.get("coordinate_transformation_mode", "half_pixel")
    assert centred in ("half_pixel", "pytorch_half_pixel")
    size = _ints(sizes)[2:] if sizes is not None and np.size(sizes) else None
    factors = None if size else [float(s) for s in np.asarray(scales)[2:]]
    return F.interpolate(x, size, factors, mode="bilinear", align_corners=False)


GATES = [0, 2, 3, 1]  # ONNX has input, output, forget, cell; PyTorch input, forget, cell, output


def _lstm(
    a: Attrs, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: Any = None,
    lengths: Any = None, h: Any = None, c: Any = None, p: Any = None,
) -> Any:  # fmt: skip
    assert lengths is None and p is None
    hidden, directions = a["hidden_size"], w.shape[0]

    def ordered(weight: torch.Tensor) -> torch.Tensor:
        return weight.reshape(4, hidden, *weight.shape[1:])[GATES].reshape(weight.shape)

    weights = []
    for d in range(directions):
        weights += [ordered(w[d]), ordered(r[d])]
        if b is not None:
            weights += [ordered(b[d, : 4 * hidden]), ordered(b[d, 4 * hidden :])]
    zero = x.new_zeros(directions, x.shape[1], hidden)
    state = (zero if h is None else h, zero if c is None else c)
    y, h, c = torch.lstm(x, state, weights, b is not None, 1, 0.0, True, directions == 2, False)
    y = y.reshape(*y.shape[:2], directions, hidden).transpose(1, 2)
    return y, h, c


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda a, x, y: x + y,
    "And": lambda a, x, y: torch.as_tensor(x) & torch.as_tensor(y),
    "AveragePool": _average_pool,
    "Cast": _cast,
    "Clip": lambda a, x, low=None, high=None: torch.clamp(x, low, high),
    "Concat": _concat,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": lambda a, x, i: np.take_along_axis(x, i, a["axis"]),
    "GatherND": _gather_nd,
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Gemm": _gemm,
    "GreaterOrEqual": lambda a, x, y: torch.as_tensor(x) >= torch.as_tensor(y),
    "IsNaN": lambda a, x: torch.isnan(x),
    "LSTM": _lstm,
    "LayerNormalization": _norm,
    "MatMul": lambda a, x, y: torch.matmul(x, y),
    "Max": lambda a, *x: reduce(np.maximum, x),
    "MaxPool": _max_pool,
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "Pow": lambda a, x, y: torch.pow(x, y),
    "Range": lambda a, *x: np.arange(*(_ints(v)[0] for v in x)),
    "Reciprocal": lambda a, x: torch.reciprocal(x),
    "ReduceMean": _mean,
    "Relu": lambda a, x: torch.relu(x),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": lambda a, x: np.array(x.shape[a.get("start", 0) : a.get("end")]),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": _squeezed,
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": _unsqueezed,
    "Where": _where,
}


def _attrs(node: onnx.NodeProto) -> Attrs:
    made = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in made.items()}


class OnnxModule(torch.nn.Module):
    """A model whose initialisers `trained` are parameters (under names without dots)."""

    def __init__(self, model: onnx.ModelProto, trained: Collection[str]):
        super().__init__()
        graph = model.graph
        self.inputs = [i.name for i in graph.input]
        self.result = graph.output[0].name
        self.constants: dict[str, Any] = {}
        self.names = {name: f"p{n}" for n, name in enumerate(sorted(trained))}
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if tensor.name in self.names:
                weight = torch.nn.Parameter(torch.tensor(array))
                self.register_parameter(self.names[tensor.name], weight)
            elif array.dtype.kind == "f":
                self.constants[tensor.name] = torch.tensor(array)
            else:
                self.constants[tensor.name] = array
        self.nodes = []
        for node in graph.node:
            if node.op_type not in OPERATORS:
                raise NotImplementedError(f"{node.op_type} has no function in OPERATORS")
            function = OPERATORS[node.op_type]
            self.nodes.append((function, _attrs(node), list(node.input), list(node.output)))

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters by the names that the model has."""
        return {name: self.get_parameter(own) for name, own in self.names.items()}

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = {**self.constants, "": None, **dict(zip(self.inputs, inputs))}
        values.update(self.trained())
        for function, attrs, read, written in self.nodes:
            made = function(attrs, *(values[name] for name in read))
            values.update(
                zip(written, made) if isinstance(made, tuple | list) else [(written[0], made)]
            )
        return values[self.result]
