"""Data as JSON has it, which lacks infinite numbers and NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def finite(data: Any, digits: int | None = None) -> Any:
    """Numbers, texts, mappings and lists with None for what is infinite or no number; floats of so
    many digits at most, if given."""
    if isinstance(data, np.generic):
        data = data.item()
    if isinstance(data, float):
        if not math.isfinite(data):
            return None
        return data if digits is None else float(f"{data:.{digits}g}")
    if isinstance(data, Mapping):
        return {key: finite(value, digits) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value, digits) for value in data]
    return data
