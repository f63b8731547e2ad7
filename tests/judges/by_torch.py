"""References that are PyTorch functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def by_torch(function: Callable, **fixed: Any) -> Callable:
    """A reference from a function of tensors, with these keyword arguments."""

    def reference(*operands):
        results = function(*(tensor(x) for x in operands), **fixed)
        if isinstance(results, (tuple, list)):
            return tuple(array(r) for r in results)
        return array(results)

    return reference


def tensor(x: np.ndarray | None) -> torch.Tensor | None:
    return None if x is None else torch.from_numpy(x.copy())


def array(x: torch.Tensor | None) -> np.ndarray | None:
    return None if x is None else x.numpy()
