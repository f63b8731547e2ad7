"""Arenas of chains of convolutions: outputs trail their inputs, and the results stay right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bundles import micro_program, model_of, run_bundle
from onnx import TensorProto, helper

from graphc.errors import InternalError
from graphc.ir.verify.programs import verify_program

RNG = np.random.default_rng(0)
SIZE, CHANNELS = 12, 8


def chain():
    """Depthwise and pointwise convolutions in turn, all results of the same size, and a mean."""
    nodes, constants = [], {}
    for layer in range(4):
        depthwise = layer % 2 == 0
        shape = (CHANNELS, 1, 3, 3) if depthwise else (CHANNELS, CHANNELS, 1, 1)
        constants[f"w{layer}"] = RNG.standard_normal(shape).astype(np.float32)
        attrs = {"group": CHANNELS, "pads": [1] * 4} if depthwise else {}
        nodes.append(
            helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"], **attrs)
        )
    nodes.append(helper.make_node("ReduceMean", ["x4"], ["y"], keepdims=0))
    shape = (1, CHANNELS, SIZE, SIZE)
    inputs = {"x0": (TensorProto.FLOAT, shape)}
    return model_of(nodes, inputs, {"y": (TensorProto.FLOAT, None)}, constants), shape


def test_layers_overlap(tmp_path):
    model, shape = chain()
    program = micro_program(model)
    one = 4 * CHANNELS * SIZE * SIZE
    assert one < program.arena_bytes < one * 1.6, "not two results at once"
    run_bundle(model, [RNG.standard_normal(shape).astype(np.float32)], tmp_path, 1e-3)


def test_less_distance_is_refused():
    program = micro_program(chain()[0])
    number, step, out = next(
        (number, step, step.slots[-1])
        for number, step in enumerate(program.steps)
        if [slot.space for slot in step.slots].count("arena") == 2
    )
    verify_program(program)
    nearer = replace(out, offset=out.offset + 256)
    program.arena_bytes += 256
    program.steps[number] = replace(step, slots=(*step.slots[:-1], nearer))
    with pytest.raises(InternalError, match="is read after"):
        verify_program(program)
