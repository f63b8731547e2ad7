"""ONNX Runtime's mixtures of experts, MoE and QMoE, and the router of MoEGroupRouter.

Every token goes to the k experts that the router likes best. `graphc.ExpertProduct` multiplies it
by the weights of those alone, which it reads where they lie: nothing is gathered. Weights may be
codes in blocks (blocks.py). Of experts that are liked equally, the last one comes first, as ONNX
Runtime's CPU kernel has it. Reference: docs/ContribOperators.md of ONNX Runtime, and that kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.errors import ModelError, UnsupportedError
from graphc.ir import dtypes
from graphc.ir.build import Builder
from graphc.ir.expr import Const, Expr, reduce
from graphc.ir.graph import Value
from graphc.ir.opdef import Any_, Float, Int, Operand, OutIndex, axes, composite, op
from graphc.ir.ops.activation_composites import convert
from graphc.ir.ops.helpers import RUNTIME, RUNTIME_TRAITS, clamped
from graphc.ir.ops.onnxruntime.attention import refuse
from graphc.ir.ops.onnxruntime.blocks import code_in, weight_of
from graphc.ir.types import Shape
from graphc.records import dataclass

WIDTHS = (2, 4, 8)  # bits of a code
INTERLEAVED, SIDE_BY_SIDE = 1, 2  # how the two products of SwiGLU lie in one

# ---------------------------------------------------------------- products


def _product_shape(
    x: Operand, chosen: Operand, weights: Operand, scales: Operand | None = None,
    zero_points: Operand | None = None, bias: Operand | None = None, *, bits: int, block_size: int,
) -> Shape:  # fmt: skip
    tokens, count = chosen.shape
    if weights.rank != 3:
        raise ModelError(f"the weights of experts have rank 3, found {weights.type}")
    experts, rows, width = weights.shape
    columns = width * (8 // bits) if bits else width
    if x.shape[0] != tokens or x.shape[1] not in (1, count) or x.shape[2] != columns:
        raise ModelError(f"experts {weights.type} of {columns} columns do not take {x.type}")
    blocks = columns // block_size if block_size else 1
    expected = [("bias", bias, (experts, rows))]
    if bits:
        by_block = (experts, rows, blocks)
        expected.append(("scales", scales, by_block if block_size else by_block[:2]))
        packed = (experts, rows, -(-blocks * bits // 8)) if block_size else (
            experts, -(-rows * bits // 8))  # fmt: skip
        expected.append(("zero points", zero_points, packed))
    for name, operand, shape in expected:
        if operand is not None and operand.shape != shape:
            raise ModelError(f"the {name} must be {list(shape)}, found {operand.type}")
    return (tokens, count, rows)


@op("ExpertProduct", domain="graphc", infer=_product_shape)
def expert_product(
    i: OutIndex, x: Float, chosen: Int, weights: Any_, scales: Float | None = None,
    zero_points: Int | None = None, bias: Float | None = None, *, bits: int = 0,
    block_size: int = 0,
) -> Expr:  # fmt: skip
    """x [T, 1 or J, K] times the weights [E, N, K] of the experts chosen [T, J]: [T, J, N].

    With `bits`, weights are codes of that many along K in bytes, with a scale and a zero point
    (2^(bits - 1) if there is none) for each row, or for each block of it.
    """
    token, place, row = i
    expert = clamped(chosen[token, place], weights.shape[0])
    use: Expr = place if x.shape[1] > 1 else Const(0, dtypes.i64)
    if not bits:
        (column,) = axes(weights.shape[2])
        total = reduce("sum", x[token, use, column] * weights[expert, row, column], (column,))
    else:
        byte, within = axes(weights.shape[2], 8 // bits)
        k = byte * (8 // bits) + within
        code = code_in(weights[expert, row, byte], within, bits)
        block = k // block_size if block_size else None
        at = (expert, row) if block is None else (expert, row, block)
        zero = _zero_point(zero_points, expert, row, block, bits)
        weight = weight_of(code, zero, scales[at]).cast(x.dtype)
        total = reduce("sum", x[token, use, k] * weight, (byte, within))
    return total if bias is None else total + bias[expert, row].cast(x.dtype)


def _zero_point(
    zero_points: Operand | None, expert: Expr, row: Expr, block: Expr | None, bits: int
) -> Expr:
    if zero_points is None:
        return Const(1 << (bits - 1), dtypes.i32)
    per_byte = 8 // bits
    if block is None:
        return code_in(zero_points[expert, row // per_byte], row % per_byte, bits)
    return code_in(zero_points[expert, row, block // per_byte], block % per_byte, bits)


@dataclass
class _Layer:
    """The weights of a layer of all experts."""

    weights: Value
    bias: Value | None
    scales: Value | None = None
    zero_points: Value | None = None
    bits: int = 0
    block_size: int = 0

    def of(self, b: Builder, x: Value, chosen: Value) -> Value:
        wide = self.weights if self.bits else convert(b, self.weights, dtypes.f32)
        return b.op(
            "ExpertProduct", x, chosen, wide, self.scales, self.zero_points, self.bias,
            domain="graphc", bits=self.bits, block_size=self.block_size,
        )  # fmt: skip


# ---------------------------------------------------------------- activations


@dataclass
class _Activation:
    """What lies between the layers of an expert."""

    kind: str
    alpha: float
    beta: float
    limit: float | None
    fusion: int

    def of(self, b: Builder, product: Value, linear: Value | None) -> Value:
        if self.kind == "swiglu":
            return self._swiglu(b, *self._gate_and_linear(b, product, linear))
        functions = {
            "relu": b.Relu, "silu": b.Swish, "identity": lambda x: x,
            "gelu": lambda x: b.Gelu(x, approximate="tanh"),
        }  # fmt: skip
        if self.kind not in functions:
            names = ", ".join((*functions, "swiglu"))
            raise UnsupportedError(f"activation_type {self.kind!r} is not one of {names}")
        if linear is not None:
            raise UnsupportedError(f"a third layer goes with swiglu, found {self.kind}")
        return functions[self.kind](product)

    def _gate_and_linear(self, b: Builder, x: Value, linear: Value | None) -> tuple[Value, Value]:
        if (linear is None) == (self.fusion == 0):
            raise ModelError(
                f"swiglu_fusion {self.fusion} {'needs' if linear is None else 'has no'} third layer"
            )
        if linear is not None:
            return x, linear
        *outer, width = x.tensor.static_shape
        if width % 2:
            raise ModelError(f"swiglu takes pairs, found {width} of them")
        pairs = (width // 2, 2) if self.fusion == INTERLEAVED else (2, width // 2)
        split = b.Reshape(x, np.array((*outer, *pairs)))
        axis = -1 if self.fusion == INTERLEAVED else -2
        return tuple(b.Gather(split, np.array(n), axis=axis) for n in range(2))

    def _swiglu(self, b: Builder, gate: Value, linear: Value) -> Value:
        """gate * sigmoid(alpha * gate) * (linear + beta), both within the limit."""
        if self.limit is not None:
            high, low = (b.constant(v, dtypes.f32) for v in (self.limit, -self.limit))
            gate, linear = b.Min(gate, high), b.Clip(linear, low, high)
        return b.Mul(b.Swish(gate, alpha=self.alpha), b.Add(linear, self.beta))


# ---------------------------------------------------------------- routes


def best_last_first(b: Builder, scores: Value, count: int) -> tuple[Value, Value]:
    """The `count` largest scores along the last axis and their places, best first; of equal ones
    the last comes first."""
    size = scores.tensor.static_shape[-1]
    if not 0 < count <= size:
        raise ModelError(f"{count} of {size} experts cannot be chosen")
    backwards = b.Slice(
        scores, np.array([-1]), np.array([-size - 1]), np.array([-1]), np.array([-1])
    )
    values, places = b.TopK(backwards, np.array([count]), outputs=2)
    return values, b.Sub(b.constant(size - 1, dtypes.i64), places)


def _routes(
    b: Builder, router: Value, weights: Value | None, count: int, normalise: int | bool
) -> tuple[Value, Value]:
    """The experts of each token, and their shares: (T, k) each."""
    likes = b.Softmax(convert(b, router, dtypes.f32), axis=-1)
    shares, chosen = best_last_first(b, likes, count)
    if weights is not None:
        shares = b.GatherElements(convert(b, weights, dtypes.f32), chosen, axis=1)
    if normalise:
        shares = b.Div(shares, b.ReduceSum(shares, np.array([-1]), keepdims=1))
    return chosen, shares


def _mixture(
    b: Builder, x: Value, chosen: Value, shares: Value, layers: Sequence[_Layer],
    activation: _Activation,
) -> Value:  # fmt: skip
    """The sum of what the experts of each token make of it, by their shares."""
    hidden = x.tensor.static_shape[-1]
    tokens = b.Reshape(convert(b, x, dtypes.f32), np.array((-1, 1, hidden)))
    first, second, *third = layers
    linear = third[0].of(b, tokens, chosen) if third else None
    inner = activation.of(b, first.of(b, tokens, chosen), linear)
    results = second.of(b, inner, chosen)
    share = b.Unsqueeze(shares, np.array([-1]))
    total = b.ReduceSum(b.Mul(results, share), np.array([1]), keepdims=0)
    return convert(b, b.Reshape(total, np.array(x.tensor.static_shape)), x.tensor.dtype)


@composite("MoE", domain=RUNTIME, traits=RUNTIME_TRAITS)
def mixture_of_experts(
    b: Builder, x: Float, router_probs: Float, fc1: Float, fc1_bias: Float | None, fc2: Float,
    fc2_bias: Float | None = None, fc3: Float | None = None, fc3_bias: Float | None = None, *,
    activation_alpha: float = 1.0, activation_beta: float = 0.0, activation_type: str = "relu",
    k: int = 1, normalize_routing_weights: int = 0, swiglu_fusion: int = 0,
    swiglu_limit: float | None = None, swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Value:  # fmt: skip
    """x (tokens, H) or (batch, length, H) through the k experts of each token, of which there are
    weights fc1 (E, N, H), fc2 (E, H, N) and, for swiglu, fc3 (E, N, H)."""
    refuse(
        use_sparse_mixer=use_sparse_mixer,
        swiglu_limit_after_activation=swiglu_limit_after_activation,
    )
    layers = [_Layer(fc1, fc1_bias), _Layer(fc2, fc2_bias)]
    if fc3 is not None:
        layers.append(_Layer(fc3, fc3_bias))
    chosen, shares = _routes(b, router_probs, None, k, normalize_routing_weights)
    activation = _Activation(
        activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion
    )
    return _mixture(b, x, chosen, shares, layers, activation)


@composite("QMoE", domain=RUNTIME, traits=RUNTIME_TRAITS)
def quantised_mixture_of_experts(
    b: Builder, x: Float, router_probs: Float, fc1: Any_, fc1_scales: Any_ | None,
    fc1_bias: Float | None, fc2: Any_, fc2_scales: Any_ | None = None,
    fc2_bias: Float | None = None, fc3: Any_ | None = None, fc3_scales: Any_ | None = None,
    fc3_bias: Float | None = None, fc1_zeros: Any_ | None = None, fc2_zeros: Any_ | None = None,
    fc3_zeros: Any_ | None = None, router_weights: Float | None = None,
    fc1_global_scale: Float | None = None, fc2_global_scale: Float | None = None,
    fc1_act_scale: Float | None = None, fc2_act_scale: Float | None = None,
    fc1_act_block_scale: Any_ | None = None, fc2_act_block_scale: Any_ | None = None, *,
    accuracy_level: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    activation_type: str = "relu", block_size: int = 0, expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None, fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None, k: int = 1, normalize_routing_weights: int = 0,
    quant_type: str = "int", swiglu_fusion: int = 0, swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0, use_sparse_mixer: int = 0, weights_prepacked: int = -1,
) -> Value:  # fmt: skip
    """MoE of weights that are codes of 2, 4 or 8 bits, with scales per row or per block of it.

    Shares are those of `router_weights` if they are given, else they always add up to 1.
    `accuracy_level` lets others round x to 8 bits; here it never is.
    """
    refuse(
        use_sparse_mixer=use_sparse_mixer, fc1_global_scale=fc1_global_scale,
        fc2_global_scale=fc2_global_scale, fc1_act_scale=fc1_act_scale,
        fc2_act_scale=fc2_act_scale, fc1_act_block_scale=fc1_act_block_scale,
        fc2_act_block_scale=fc2_act_block_scale,
        swiglu_limit_after_activation=swiglu_limit_after_activation,
    )  # fmt: skip
    if quant_type != "int":
        raise UnsupportedError(f"quant_type {quant_type!r} is not supported, only 'int' is")
    given = [
        (fc1, fc1_scales, fc1_bias, fc1_zeros, fc1_expert_weight_bits),
        (fc2, fc2_scales, fc2_bias, fc2_zeros, fc2_expert_weight_bits),
        (fc3, fc3_scales, fc3_bias, fc3_zeros, fc3_expert_weight_bits),
    ]
    layers = [
        _coded(b, weights, scales, bias, zeros, bits or expert_weight_bits, block_size)
        for weights, scales, bias, zeros, bits in given
        if weights is not None
    ]
    normalise = normalize_routing_weights or router_weights is None
    chosen, shares = _routes(b, router_probs, router_weights, k, normalise)
    activation = _Activation(
        activation_type, activation_alpha, activation_beta, swiglu_limit, swiglu_fusion
    )
    return _mixture(b, x, chosen, shares, layers, activation)


def _coded(
    b: Builder, weights: Value, scales: Value | None, bias: Value | None, zeros: Value | None,
    bits: int, block_size: int,
) -> _Layer:  # fmt: skip
    """A layer of codes; UnsupportedError or ModelError unless they are of a known kind."""
    if bits not in WIDTHS or weights.tensor.dtype is not dtypes.u8:
        raise UnsupportedError(
            f"experts are codes of {WIDTHS} bits in uint8, found {bits} bits in {weights.type}"
        )
    if scales is None or not scales.tensor.dtype.is_float:
        raise ModelError("experts of codes need scales that are floats")
    if block_size and scales.tensor.rank == 2:  # a block is a row
        block_size = 0
    return _Layer(weights, bias, convert(b, scales, dtypes.f32), zeros, bits, block_size)


# ---------------------------------------------------------------- MoEGroupRouter


@composite("MoEGroupRouter", domain=RUNTIME, outputs=None, traits=RUNTIME_TRAITS)
def moe_group_router(
    b: Builder, logits: Float, expert_bias: Float, projection_weight: Float | None = None, *,
    group_topk: int = 2, n_group: int = 1, router_sentinel: float = -10000.0, top_k: int,
    topk_group: int = 1,
) -> tuple[Value, ...]:  # fmt: skip
    """The log of the sigmoid of each token's logits at the `top_k` experts of its best groups,
    `router_sentinel` elsewhere; or, with further results, sigmoids with and without the bias.

    The bias takes part in choosing alone. A group is as good as its best `group_topk` experts.
    """
    refuse(projection_weight=projection_weight)
    experts, dtype = logits.tensor.static_shape[-1], logits.tensor.dtype
    flat = b.Reshape(convert(b, logits, dtypes.f32), np.array((-1, experts)))
    likes = b.Sigmoid(flat)
    scores = b.Add(likes, convert(b, expert_bias, dtypes.f32))
    if n_group < 1 or experts % n_group:
        raise ModelError(f"{experts} experts do not divide into {n_group} groups")
    if b.count > 1:
        return convert(b, b.Log(likes), dtype), scores, likes
    among = scores
    if n_group > 1:
        among = _in_best_groups(b, scores, n_group, min(group_topk, experts // n_group), topk_group)
    _, chosen = b.TopK(among, np.array([top_k]), outputs=2)
    shown = b.Log(b.Max(likes, b.constant(1e-20, dtypes.f32)))
    sentinel = b.constant(router_sentinel, dtypes.f32)
    return (convert(b, b.Where(_are_chosen(b, chosen, experts), shown, sentinel), dtype),)


def _are_chosen(b: Builder, places: Value, count: int) -> Value:
    """Which of `count` are among the places (tokens, k): (tokens, count)."""
    is_place = b.Equal(b.Unsqueeze(places, np.array([-1])), b.constant(np.arange(count)))
    times = b.ReduceMax(b.Cast(is_place, to=dtypes.i32.onnx), np.array([1]), keepdims=0)
    return b.Greater(times, 0)


def _in_best_groups(b: Builder, scores: Value, groups: int, members: int, count: int) -> Value:
    """The scores of the best groups, -inf elsewhere."""
    tokens, experts = scores.tensor.static_shape
    grouped = b.Reshape(scores, np.array((tokens, groups, experts // groups)))
    best, _ = b.TopK(grouped, np.array([members]), outputs=2)
    total = b.ReduceSum(best, np.array([-1]), keepdims=0)
    _, chosen = b.TopK(total, np.array([count]), outputs=2)
    taken = _are_chosen(b, chosen, groups)
    lowest = b.constant(-np.inf, dtypes.f32)
    kept = b.Where(b.Unsqueeze(taken, np.array([-1])), grouped, lowest)
    return b.Reshape(kept, np.array((tokens, experts)))
