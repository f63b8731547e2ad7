"""DynamicQuantizeLSTM: as ONNX Runtime computes it on one thread."""

from __future__ import annotations

import numpy as np
import pytest
from every_target import agree_everywhere
from runtime_compare import check, run_ort, runtime_model

from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.passes.specialise import specialise

RANDOM = np.random.default_rng(0)
STEPS, BATCH, INPUT, HIDDEN = 4, 3, 5, 6
CONSTANTS = {1, 2, 8, 9, 10, 11}
ALL = (True, True, True)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def lstm(
    ways: int, dtype: type, by_column: bool, lengths: list[int] | None, extras: bool
) -> list[np.ndarray | None]:
    """Operands; signed weights keep to 7 bits, as ONNX Runtime's sums of products of 8 bits
    saturate on some processors."""
    low, high, zero = (-64, 64, 0) if dtype is np.int8 else (0, 256, 128)
    shape = (ways, 4 * HIDDEN) if by_column else (ways,)
    zeros = np.full(shape, zero, dtype)
    weights = [
        RANDOM.integers(low, high, (ways, rows, 4 * HIDDEN)).astype(dtype)
        for rows in (INPUT, HIDDEN)
    ]
    scales = [RANDOM.uniform(0.004, 0.006, shape).astype(np.float32) for _ in range(2)]
    given = [None] * 5
    if extras:
        states = [floats(ways, BATCH, HIDDEN) for _ in range(2)]
        given = [floats(ways, 8 * HIDDEN), None, *states, floats(ways, 3 * HIDDEN)]
    given[1] = None if lengths is None else np.array(lengths, np.int32)
    return [floats(STEPS, BATCH, INPUT), *weights, *given, scales[0], zeros, scales[1], zeros]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("lengths", [None, [4, 4, 4], [2, 0, 3], [1, 4, 2]])
@pytest.mark.parametrize("extras", [False, True])
def test_dynamic_quantize_lstm(extras, lengths, dtype, direction):
    ways = 2 if direction == "bidirectional" else 1
    by_column = (lengths is None) == extras
    attrs = {"clip": 2.0, "input_forget": int(dtype is np.int8)} if extras else {}
    check("DynamicQuantizeLSTM", *lstm(ways, dtype, by_column, lengths, extras), outputs=ALL,
          constants=CONSTANTS, hidden_size=HIDDEN, direction=direction, **attrs)  # fmt: skip


def test_every_target():
    operands = lstm(1, np.uint8, True, None, True)
    proto = runtime_model("DynamicQuantizeLSTM", operands, {"hidden_size": HIDDEN}, ALL, CONSTANTS)
    feeds = [x for n, x in enumerate(operands) if x is not None and n not in CONSTANTS]
    graph = specialise(import_onnx(proto))
    agree_everywhere(graph, feeds, run_ort(proto, feeds))


def test_weights_of_a_wrong_shape_are_refused():
    operands = lstm(1, np.uint8, False, None, False)
    operands[2] = operands[1]
    proto = runtime_model("DynamicQuantizeLSTM", operands, {"hidden_size": HIDDEN}, ALL, CONSTANTS)
    with pytest.raises(ModelError, match=r"R must be \[1, 6, 24\], found u8\[1,5,24\]"):
        interpret(import_onnx(proto), [operands[0]])
