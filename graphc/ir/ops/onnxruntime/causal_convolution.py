"""ONNX Runtime's causal convolutions of channels on their own, which carry what they have seen.

The state is what lies before the first position: (kernel - 1) * dilation positions. Reference:
docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.graph import Value
from graphc.ir.opdef import Float, Int, composite
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS
from graphc.ir.ops.in_range import require
from graphc.ir.ops.onnxruntime.attention import refuse


def _activated(b: Builder, x: Value, activation: str) -> Value:
    if activation not in ("none", "silu", "swish"):
        raise ModelError(f"activation is none, silu or swish, not {activation!r}")
    return x if activation == "none" else b.Swish(x)


@composite("CausalConvWithState", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def causal_conv_with_state(
    b: Builder, x: Float, weight: Float, bias: Float | None = None,
    past_state: Float | None = None, *, activation: str = "none", channels_last: int = 0,
    dilation: int = 1, input_channel_offset: int = 0, input_channels: int = 0, ndim: int = 1,
    state_channels_last: int = -1, state_length: int = 0, state_update_capacity: int = 0,
    state_window: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """A convolution (channels, 1, kernel) of x [N, C, L], or [N, L, ...] with channels_last, after
    `past_state`; also the last positions of both."""
    refuse(
        input_channel_offset=input_channel_offset, input_channels=input_channels,
        state_length=state_length, state_update_capacity=state_update_capacity,
        state_window=state_window, state_channels_last=state_channels_last + 1,
    )  # fmt: skip
    if ndim != 1:
        raise UnsupportedError(f"ndim is {ndim}, only 1 is supported")
    shape = x.tensor.static_shape
    if len(shape) < 3 or (len(shape) > 3 and not channels_last):
        raise ModelError(f"takes [N, C, L], or [N, L, ...] with channels_last, found {x.type}")
    channels, _, taps = weight.tensor.static_shape
    before = (taps - 1) * dilation

    def inward(v: Value) -> Value:
        return v if not channels_last else b.Transpose(
            b.Reshape(v, np.array((*v.tensor.static_shape[:2], channels))), perm=(0, 2, 1)
        )  # fmt: skip

    def outward(v: Value) -> Value:
        if not channels_last:
            return v
        turned = b.Transpose(v, perm=(0, 2, 1))
        return b.Reshape(turned, np.array((shape[0], v.tensor.static_shape[2], *shape[2:])))

    if (math.prod(shape[2:]) if channels_last else shape[1]) != channels:
        raise ModelError(f"the weights have {channels} channels, found {x.type}")
    rows, length = inward(x), shape[1] if channels_last else shape[2]
    if past_state is None:
        zeros = np.zeros((shape[0], channels, before), x.tensor.dtype.np)
        whole = b.Concat(b.constant(zeros), rows, axis=2)
    else:
        whole = b.Concat(inward(past_state), rows, axis=2)
    y = b.Conv(whole, weight, bias, group=channels, dilations=(dilation,))
    last = b.Slice(whole, np.array([length]), np.array([length + before]), np.array([2]))
    return outward(_activated(b, y, activation)), outward(last)


# ---------------------------------------------------------------- sequences side by side


def sequence_of(b: Builder, bounds: Value, tokens: int) -> tuple[Value, Value]:
    """Of each token the number of its sequence, and its place in it: (tokens) each."""
    require(b, bounds, 0, tokens, "bound")
    wide = b.Cast(bounds, to=dtypes.i64.onnx)
    count = bounds.tensor.static_shape[0] - 1
    inner = b.Slice(wide, np.array([1]), np.array([count]))
    token = b.constant(np.arange(tokens))
    begun = b.Cast(b.LessOrEqual(inner, b.Unsqueeze(token, np.array([1]))), to=dtypes.i64.onnx)
    number = b.ReduceSum(begun, np.array([1]), keepdims=0)
    return number, b.Sub(token, b.Gather(wide, number, axis=0))


@composite("VarlenCausalConvWithState", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def varlen_causal_conv_with_state(
    b: Builder, x: Float, weight: Float, cumulative_sequence_length: Int, bias: Float | None,
    initial_state: Float, capture_count: Int | None = None, kernel_delta: Float | None = None,
    previous_mask: Float | None = None, *, activation: str = "none", delta_offset: int = 0,
    dilation: int = 1, group_size: int = 1, state_update_capacity: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """A convolution (channels, 1, kernel) of x [tokens, channels], sequences side by side, each
    after its state [N, channels, positions]; also the last positions of each."""
    refuse(
        kernel_delta=kernel_delta, previous_mask=previous_mask, capture_count=capture_count,
        state_update_capacity=state_update_capacity,
    )  # fmt: skip
    tokens, channels = x.tensor.static_shape
    taps, before = weight.tensor.static_shape[2], (weight.tensor.static_shape[2] - 1) * dilation
    batch = cumulative_sequence_length.tensor.static_shape[0] - 1
    if initial_state.tensor.static_shape != (batch, channels, before):
        raise ModelError(
            f"the state must be {[batch, channels, before]}, found {initial_state.type}"
        )
    number, place = sequence_of(b, cumulative_sequence_length, tokens)
    rows, kernel = convert(b, x, dtypes.f32), convert(b, weight, dtypes.f32)
    states = b.Transpose(convert(b, initial_state, dtypes.f32), perm=(0, 2, 1))
    total = b.constant(np.zeros(channels, np.float32)) if bias is None else convert(
        b, bias, dtypes.f32)  # fmt: skip
    zero = b.constant(0, dtypes.i64)
    for tap in range(taps):
        back = (taps - 1 - tap) * dilation
        source = np.maximum(np.arange(tokens) - back, 0)
        seen = rows if not back else b.Gather(rows, source, axis=0)
        if back:
            earlier = b.Sub(place, back)
            slot = b.Min(b.Max(b.Add(earlier, before), zero), b.constant(before - 1, dtypes.i64))
            carried = _rows_at(b, states, number, slot)
            inside = b.GreaterOrEqual(b.Unsqueeze(earlier, np.array([1])), zero)
            seen = b.Where(inside, seen, carried)
        factor = b.Gather(kernel, np.array(tap), axis=2)
        total = b.Add(total, b.Mul(seen, b.Reshape(factor, np.array((channels,)))))
    y = convert(b, _activated(b, total, activation), x.tensor.dtype)
    return y, _last_positions(b, x, initial_state, cumulative_sequence_length, before)


def _rows_at(b: Builder, states: Value, number: Value, slot: Value) -> Value:
    """states [N, positions, channels] at a number and a position each."""
    axis = np.array([-1])
    where = b.Concat(b.Unsqueeze(number, axis), b.Unsqueeze(slot, axis), axis=-1)
    return b.GatherND(states, where)


def _last_positions(b: Builder, x: Value, state: Value, bounds: Value, before: int) -> Value:
    """The last positions of each sequence after its state: [N, channels, positions]."""
    if not before:
        return state
    batch, tokens = bounds.tensor.static_shape[0] - 1, x.tensor.static_shape[0]
    wide = b.Cast(bounds, to=dtypes.i64.onnx)
    first, end = (
        b.Unsqueeze(b.Slice(wide, np.array([n]), np.array([n + batch])), np.array([1]))
        for n in range(2)
    )
    place = b.Add(b.Sub(end, first), b.constant(np.arange(before) - before))
    zero = b.constant(0, dtypes.i64)
    own = b.Min(b.Add(first, b.Max(place, zero)), b.constant(tokens - 1, dtypes.i64))
    fresh = b.Gather(x, own, axis=0)
    slot = b.Min(b.Max(b.Add(place, before), zero), b.constant(before - 1, dtypes.i64))
    index = np.broadcast_to(np.arange(batch)[:, None], (batch, before)).copy()
    kept = _rows_at(b, b.Transpose(state, perm=(0, 2, 1)), b.constant(index), slot)
    inside = b.GreaterOrEqual(b.Unsqueeze(place, np.array([2])), zero)
    return b.Transpose(b.Where(inside, fresh, kept), perm=(0, 2, 1))
