"""The same work in PyTorch, torch.compile and JAX, on a GPU, and their times.

Every maker takes inputs as arrays of the host, puts them on the device, and gives a function that
runs once. What is not installed raises ImportError.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = Callable[[], object]
Maker = Callable[[Sequence[np.ndarray]], Run]
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves memory to others
LIBRARIES = ("torch", "jax", "transformers", "torchvision")


def versions() -> dict[str, str]:
    """The libraries that are installed."""
    installed = {}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def forget() -> None:
    """Drops what torch.compile made before: it gives up on functions compiled many times."""
    if "torch" in sys.modules:
        sys.modules["torch"].compiler.reset()


def difference(wanted: Any, found: Any) -> float:
    """The relative norm of the difference of a tensor of torch and an array on the device."""
    import torch

    wanted, found = (x.flatten().double() for x in (wanted, torch.from_dlpack(found)))
    return float((found - wanted).norm() / wanted.norm())


def timer(name: str, run: Run, rounds: int, flushed: int) -> Callable[[], list[float]]:
    """Milliseconds of so many runs: between CUDA events for PyTorch, each after so many bytes were
    written that caches hold nothing else; by the clock for JAX."""
    for _ in range(3):
        run()
    if name == "jax":
        return lambda: _jax_times(run, rounds)
    return lambda: _torch_times(run, rounds, flushed)


def _torch_times(run: Run, rounds: int, flushed: int) -> list[float]:
    import torch

    times = []
    scratch = torch.empty(2 * flushed, dtype=torch.uint8).cuda()
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        scratch.zero_()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return times


def _jax_times(run: Run, rounds: int) -> list[float]:
    import jax

    jax.block_until_ready(run())
    start = time.perf_counter()
    results = [run() for _ in range(rounds)]
    jax.block_until_ready(results)
    return [(time.perf_counter() - start) * 1e3 / rounds] * rounds


# ---------------------------------------------------------------- functions


def _torch_inputs(inputs: Sequence[np.ndarray]) -> list[Any]:
    import torch

    return [_torch_tensor(torch, array) for array in inputs]


def _torch_tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).cuda().bfloat16()
    return torch.from_numpy(array).cuda()


def _torch(function: Callable[..., Any], setting: str = "highest", compiled: bool = False) -> Maker:
    """A maker for a function of torch and of tensors. `setting`: of products of float32."""

    def make(inputs: Sequence[np.ndarray]) -> Run:
        import torch

        tensors = _torch_inputs(inputs)

        def plain(*values: Any) -> Any:
            return function(torch, *values)

        callee = torch.compile(plain, fullgraph=True) if compiled else plain

        def run() -> Any:
            torch.set_float32_matmul_precision(setting)
            with torch.inference_mode():
                return callee(*tensors)

        return run

    return make


def _jax(function: Callable[..., Any]) -> Maker:
    """A maker for a function of jax and of arrays."""

    def make(inputs: Sequence[np.ndarray]) -> Run:
        import jax

        device = jax.devices("gpu")[0]
        arrays = [jax.device_put(array, device) for array in inputs]
        jitted = jax.jit(lambda *values: function(jax, *values))
        return lambda: jitted(*arrays)

    return make


def _all(torch_function: Callable[..., Any], jax_function: Callable[..., Any]) -> dict[str, Maker]:
    return {
        "torch": _torch(torch_function),
        "torch_compile": _torch(torch_function, compiled=True),
        "jax": _jax(jax_function),
    }


def elementwise(name: str) -> dict[str, Maker]:
    """Peers of an elementwise operator."""
    torch_functions = {
        "relu": lambda torch, x: torch.relu(x),
        "gelu": lambda torch, x: torch.nn.functional.gelu(x),
        "add": lambda torch, x, y: x + y,
        "scale": lambda torch, x, s, b: x * s + b,
        "cast": lambda torch, x: x.half() if x.dtype == torch.float32 else x.float(),
        "transpose": lambda torch, x: x.t().contiguous(),
    }
    jax_functions = {
        "relu": lambda jax, x: jax.nn.relu(x),
        "gelu": lambda jax, x: jax.nn.gelu(x, approximate=False),
        "add": lambda jax, x, y: x + y,
        "scale": lambda jax, x, s, b: x * s + b,
        "cast": lambda jax, x: x.astype("float16" if x.dtype == "float32" else "float32"),
        "transpose": lambda jax, x: x.T,
    }
    return _all(torch_functions[name], jax_functions[name])


def rows(name: str) -> dict[str, Maker]:
    """Peers of a reduction of rows or columns."""
    torch_functions = {
        "softmax": lambda torch, x: torch.softmax(x, -1),
        "layer_norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda torch, x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-5),
        "sum": lambda torch, x: x.sum(1, keepdim=True),
        "column_sum": lambda torch, x: x.sum(0, keepdim=True),
    }
    jax_functions = {
        "softmax": lambda jax, x: jax.nn.softmax(x, -1),
        "layer_norm": lambda jax, x: jax.nn.standardize(x, -1, epsilon=1e-5),
        "rms_norm": lambda jax, x: x / jax.numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-5),
        "sum": lambda jax, x: x.sum(1, keepdims=True),
        "column_sum": lambda jax, x: x.sum(0, keepdims=True),
    }
    return _all(torch_functions[name], jax_functions[name])


def product(name: str) -> dict[str, Maker]:
    """Peers of a matrix product; `name` is a type, or tf32."""
    setting = "high" if name == "tf32" else "highest"
    precision = "tensorfloat32" if name == "tf32" else "highest"
    return {
        "torch": _torch(lambda torch, x, w: x @ w, setting),
        "jax": _jax(lambda jax, x, w: jax.numpy.matmul(x, w, precision=precision)),
    }


def attention() -> dict[str, Maker]:
    """Peers of one layer's attention: PyTorch's fused one."""

    def fused(torch: Any, q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return {"torch": _torch(fused)}


# ---------------------------------------------------------------- models


def _bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(), add_pooling_layer=False)  # the defaults are those of BERT base


def _resnet() -> Any:
    from torchvision.models import resnet50

    return resnet50()


def model(name: str, precision: str) -> dict[str, Maker]:
    """PyTorch's own model of the same architecture, with weights of its own."""
    build = {"bert_base": _bert, "resnet50": _resnet}[name]
    return {
        "torch": _model(build, precision, ""),
        "torch_compile": _model(build, precision, "default"),
        "torch_compile_graphs": _model(build, precision, "reduce-overhead"),
    }


def _model(build: Callable[[], Any], precision: str, mode: str) -> Maker:
    def make(inputs: Sequence[np.ndarray]) -> Run:
        import torch

        kinds = {"f16": torch.float16, "bf16": torch.bfloat16}
        network = build().eval().cuda().to(kinds.get(precision, torch.float32))
        tensors = [
            t.to(kinds.get(precision, t.dtype)) if t.is_floating_point() else t
            for t in _torch_inputs(inputs)
        ]
        callee = torch.compile(network, mode=mode) if mode else network

        def run() -> Any:
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = precision == "tf32"
            with torch.inference_mode():
                return callee(*tensors)

        return run

    return make
