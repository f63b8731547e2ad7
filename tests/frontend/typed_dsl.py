"""A graph whose types mypy and pyright check; test_typed_dsl.py runs it."""

from __future__ import annotations

from typing import Annotated

import numpy as np

import graphc
from graphc import dsl
from graphc.ir.types import TensorType

Rows = dsl.f32["N: 1..8", 4]
declared: TensorType = dsl.i64[2, "N"]


@dsl.graph
def doubled(x: Annotated[dsl.Tensor, Rows], bias: Annotated[dsl.Tensor, dsl.f32[()]]) -> dsl.Tensor:
    return x + x + bias


def run() -> list[np.ndarray]:
    """On two rows of ones."""
    model: graphc.CompiledModel = graphc.compile(doubled)
    return model.run([np.ones((2, 4), np.float32), np.float32(0.5)])
