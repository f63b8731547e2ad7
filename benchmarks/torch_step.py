"""Training steps of PyTorch on ONNX models, eager and by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from onnx_torch import OnnxModule
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx


def output_shape(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> tuple[int, ...]:
    """The shape of a model's first result."""
    with torch.no_grad():
        return tuple(OnnxModule(model, ())(*map(torch.tensor, inputs)).shape)


def step(
    model: onnx.ModelProto,
    names: Sequence[str],
    batch: Sequence[np.ndarray],
    labels: bool,
    rate: float,
    compiled: bool,
) -> Callable[[], float]:
    """A step of fused AdamW on a batch, which gives the loss before it. The parameters are those of
    these names; without `labels` the loss is that of squared differences."""
    module: Any = OnnxModule(model, names)
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.01, fused=True)
    *inputs, target = map(torch.tensor, batch)
    if compiled:  # the operators that are called, as constants of numpy are not traced
        named = dict(module.named_parameters())
        whole = make_fx(lambda named, *x: functional_call(module, named, x))(named, *inputs)
        module = partial(whole, named)

    def loss_of(*x: torch.Tensor) -> torch.Tensor:
        y = module(*x)
        if not labels:
            return torch.nn.functional.mse_loss(y, target)
        return torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1))

    run = torch.compile(loss_of) if compiled else loss_of

    def made() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = run(*inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    return made
