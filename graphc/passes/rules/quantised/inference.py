"""The rule that finds an integer form of the operator before a QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.graph import Op, Value
from graphc.passes.pattern import P, opt, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.quantised import means, normalised, per_channel_products, sums
from graphc.passes.rules.quantised.activations import Activated, activated
from graphc.passes.rules.quantised.values import GROUP, target_of

y, scale, zero = var("y scale zero")

FLOATS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "Softmax"})
"""Left to floats where these are fast."""
FORMS: dict[str, Callable[[Rewriter, Op, Activated], Value | None]] = {
    "Conv": per_channel_products.convolution,
    "MatMul": per_channel_products.matrix_product,
    "Gemm": per_channel_products.gemm,
    "DequantizeLinear": sums.rescaling,
    "Add": sums.addition,
    "Sub": sums.subtraction,
    "Mul": sums.product,
    "AveragePool": means.average_pool,
    "GlobalAveragePool": means.global_mean,
    "ReduceMean": means.reduced_mean,
    "Softmax": normalised.softmax,
}


@rule("integer-inference", P.QuantizeLinear(y, scale, opt(zero)), group=GROUP)
def integer_inference(
    rw: Rewriter, op: Op, y: Value, scale: Value, zero: Value | None
) -> Value | None:
    """q(f(d(x), d(w))) == rescale(f(x - zx, w - zw)) for sums of products, sums, means, softmax."""
    target = target_of(rw, op)
    if target is None:
        return None
    value, after = activated(y, target)
    inner = value.producer
    if inner is None or inner.name not in FORMS:
        return rw.skip("{} has no integer form", inner.name if inner else "an input")
    if rw.ctx.target.machine.has("fast_floats") and inner.name in FLOATS:
        return rw.skip("it is left to floats")
    if len(y.uses) != 1 or (len(value.uses) != 1 and inner.name != "DequantizeLinear"):
        return rw.skip("the value before the quantisation is used elsewhere")
    rw.takes(_between(inner, y))
    return FORMS[inner.name](rw, inner, after)


def _between(inner: Op, y: Value) -> list[Op]:
    """The DequantizeLinear that an op reads, the op, and the activations from there to a value."""
    ops = [] if y.producer is None else [y.producer]
    while ops[0] is not inner:
        ops.insert(0, ops[0].operand(0).producer)  # type: ignore[arg-type]
    read = (v.producer for v in inner.inputs if v is not None and v.producer is not None)
    return [*(op for op in read if op.name == "DequantizeLinear"), *ops]
