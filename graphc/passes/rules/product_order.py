"""Products of channels are taken where there is least to multiply.

A 1x1 convolution multiplies the channels of each position by a matrix. A resize mixes positions,
each channel alone. Both are linear, so they can change places. Heads of segmentation and detection
networks enlarge several maps, join and multiply them: after these rules they multiply the small
maps. Products whose results are averaged over windows (transitions of DenseNet) come after the
average. Two products in a row become one by the product of their matrices, if that is smaller;
products of weights are computed once, in float64. Few channels are mixed before maps are enlarged.
Only the order of rounding changes, but for one case: where two products make NaN of an infinity, by
a difference of infinities, one product would not. So there must be no infinities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import ModelError
from graphc.ir.extents import most
from graphc.ir.graph import Op, Value
from graphc.passes.analysis.parts import computes_alike, keeps_constants, map_operand
from graphc.passes.analysis.structure import FEW_CHANNELS
from graphc.passes.pattern import P, const, opt, rest, var
from graphc.passes.rewriter import Rewriter, rule
from graphc.passes.rules.facts import array_of, is_never_infinite, most_of, permutation
from graphc.passes.rules.views import reshaped
from graphc.passes.rules.weights import is_shared

x, w, b, s, u, v = var("x w b s u v")
c = const("c")
GROUP = "lowering"
WIDE = (np.float32, np.float64)
WIDENING = 2  # times the channels that a resize may have more than before
JOINED, RESIZED = P.Concat(rest("parts")).only_use(), P.Resize(x, rest("sizes"))
CONVOLVED = P.Conv(x, w, opt(b)).only_use()
MIXED = P.MatMul(P.Transpose(x).only_use(), w).only_use()
WORTH = 8  # products saved of an element that is enlarged, at least: what mixing positions takes


def _matrix(rw: Rewriter, conv: Op, w: Value) -> np.ndarray | None:
    """The weights of a convolution of single positions, (outputs, inputs); None if it is none."""
    weights = array_of(w)
    if weights is None or weights.dtype not in WIDE:
        return rw.skip("the weights are no constants of float32 or wider")
    rank = weights.ndim - 2
    is_alone = weights.shape[2:] == (1,) * rank and (rw.attr(conv, "group") or 1) == 1
    moves = any(n != 1 for n in rw.attr(conv, "strides") or ()) or any(rw.attr(conv, "pads") or ())
    if not is_alone or moves:
        return rw.skip("it is no product of the channels of each position")
    return weights.reshape(weights.shape[:2])


def _joined(x: Value) -> list[Value]:
    """What a value, which nobody else reads, joins along channels; else the value itself."""
    concat = JOINED.maker(x)
    if concat is None:
        return [x]
    along_channels = concat.attrs["axis"] % x.tensor.rank == 1
    return [part for part in concat.inputs if part is not None] if along_channels else [x]


def _maker(part: Value) -> Op | None:
    """The op that makes maps of others, for one reader alone."""
    op = part.producer if len(part.uses) == 1 else None
    return op if op is not None and map_operand(op) is not None else None


def _maps(op: Op) -> Value:
    """The maps that an op makes others of."""
    number = map_operand(op)
    assert number is not None
    return op.operand(number)


def _enlarged(part: Value, outputs: int) -> Op | None:
    """The op that makes maps of smaller ones, if products in front of it are fewer."""
    op = _maker(part)
    if op is None:
        return None
    channels = part.tensor.extent(1)
    saved = channels * (1 - most_of(_maps(op)) / max(most_of(part), 1))
    return op if saved >= WORTH and outputs <= WIDENING * channels else None


def _of_channels(rw: Rewriter, op: Op, maps: Value) -> Value | None:
    """What an op makes of maps of other channels; None if it cannot be applied to these."""
    operands = list(op.inputs)
    number = map_operand(op)
    assert number is not None
    operands[number] = maps
    if RESIZED.admits(op.defn) and (sizes := (*operands, None, None)[3]) is not None:
        if op.attrs.get("axes") is None and sizes.known is not None and sizes.known.size:
            operands[3] = rw.dims((*maps.tensor.dims[:2], *sizes.known[2:]))
    try:
        result = rw.again(op, *operands)
    except ModelError:
        return rw.skip("{} cannot take other channels", op)
    wanted = (*maps.tensor.dims[:2], *op.output.tensor.dims[2:])
    return result if result.tensor.dims == wanted and computes_alike(op, result.producer) else None


def _reads_enlarged(conv: Op) -> bool:
    makers = [op for part in _joined(conv.operand(0)) if (op := _maker(part)) is not None]
    return any(most_of(_maps(op)) < most_of(op.output) for op in makers)


@rule("conv-before-resize", P.Conv(x, w, opt(b)).when(_reads_enlarged), group=GROUP)
def conv_before_resize(rw: Rewriter, conv: Op, x: Value, w: Value, b: Value | None) -> Value | None:
    """W concat(x, resize(y), ..) + b == resize(Wy y) + .. + (Wx x + b)   at single positions."""
    parts, outputs = _joined(x), conv.output.tensor.dims[1]
    channels = [part.tensor.dims[1] for part in parts]
    if not isinstance(outputs, int) or not all(isinstance(n, int) for n in channels):
        return rw.skip("the numbers of channels are not known")
    resizes = [_enlarged(part, outputs) for part in parts]
    if not any(resizes):
        return rw.skip("products before the resize would hardly be fewer")
    matrix = _matrix(rw, conv, w)
    if matrix is None:
        return None
    if is_shared(w):
        return rw.skip("the weights are large and have other users")
    terms, rest, own = [], [], []
    for part, resize, weights in zip(parts, resizes, _columns(matrix, parts)):
        if resize is None:
            rest.append(part)
            own.append(weights)
            continue
        small = _maps(resize)
        term = _of_channels(rw, resize, _product(rw, conv, small, weights))
        if term is None:
            return rw.skip("{} depends on the number of channels", resize)
        terms.append(term)
    if rest:
        whole = rest[0] if len(rest) == 1 else rw.Concat(*rest, axis=1)
        terms.append(_product(rw, conv, whole, np.concatenate(own, 1), b))
    elif b is not None:
        terms.append(reshaped(rw, b, (1, outputs, *(1,) * (x.tensor.rank - 2))))
    total = terms[-1]
    for term in terms[-2::-1]:
        total = rw.Add(total, term)
    return total


def _columns(matrix: np.ndarray, parts: Sequence[Value]) -> list[np.ndarray]:
    """The columns of a matrix that multiply each part."""
    ends = np.cumsum([part.tensor.extent(1) for part in parts])
    return np.split(matrix, ends[:-1], axis=1)


def _product(rw: Rewriter, conv: Op, x: Value, matrix: np.ndarray, b: Value | None = None) -> Value:
    """A convolution of single positions by a matrix."""
    weights = matrix.reshape(*matrix.shape, *(1,) * (x.tensor.rank - 2))
    return rw.op("Conv", x, rw.constant(np.ascontiguousarray(weights)), b, **conv.attrs)


def _of_products(op: Op) -> bool:
    number = map_operand(op)
    return number is not None and CONVOLVED.maker(op.operand(number)) is not None


@rule("conv-after-pool", P.where(_of_products)(rest("operands")), group=GROUP)
def conv_after_pool(rw: Rewriter, pool: Op, operands: list[Value | None]) -> Value | None:
    """mean(W x + b) == W mean(x) + b   at single positions; without b, any f that is linear."""
    number = map_operand(pool)
    assert number is not None
    conv = CONVOLVED.maker(operands[number])
    assert conv is not None
    x, w, b = (*conv.inputs, None)[:3]
    assert x is not None and w is not None
    if most(conv.output.tensor.dims[1]) < WORTH or most_of(pool.output) >= most_of(conv.output):
        return rw.skip("products would not be fewer")
    if b is not None and not keeps_constants(pool, number):
        return rw.skip("the bias would not be the same everywhere")
    if _matrix(rw, conv, w) is None:
        return None
    rw.takes([conv])
    pooled = _of_channels(rw, pool, x)
    if pooled is None:
        return rw.skip("{} depends on the number of channels", pool)
    return rw.op("Conv", pooled, w, b, **conv.attrs)


@rule("conv-of-tokens", P.Conv(P.Reshape(P.Transpose(x), s), w, opt(b)), group=GROUP)
def conv_of_tokens(
    rw: Rewriter, transpose: Op, reshape: Op, conv: Op, x: Value, s: Value, w: Value,
    b: Value | None,
) -> Value | None:  # fmt: skip
    """W reshape(transpose(x)) + b == transpose(reshape(x W' + b))   for x of (batch, position,
    channel)."""
    if x.tensor.rank != 3 or permutation(transpose) != (0, 2, 1):
        return rw.skip("it transposes no positions and channels")
    if reshape.output.tensor.dims[:2] != x.tensor.dims[::2]:
        return rw.skip("the reshape does more than fold positions")
    matrix = _matrix(rw, conv, w)
    if matrix is None:
        return None
    product = rw.MatMul(x, rw.constant(np.ascontiguousarray(matrix.T)))
    if b is not None:
        product = rw.Add(product, b)
    batch, channels, *space = conv.output.tensor.dims
    image = reshaped(rw, product, (batch, *space, channels))
    return rw.Transpose(image, perm=[0, len(space) + 1, *range(1, len(space) + 1)])


@rule("mixed-maps", P.Transpose(MIXED), group=GROUP)
def mixed_maps(
    rw: Rewriter, before: Op, product: Op, after: Op, x: Value, w: Value
) -> Value | None:
    """transpose(transpose(x) W) == W' x   for few channels in front of what is large."""
    return _mixed(rw, before, after, x, w, None)


@rule("mixed-maps-and-term", P.Transpose(P.Add(MIXED, c).only_use().commutes()), group=GROUP)
def mixed_maps_and_term(
    rw: Rewriter, before: Op, product: Op, add: Op, after: Op, x: Value, w: Value, c: Value
) -> Value:
    """transpose(transpose(x) W + c) == W' x + c'   for few channels in front of what is large."""
    return _mixed(rw, before, after, x, w, c)


def _mixed(rw: Rewriter, before: Op, after: Op, x: Value, w: Value, c: Value | None) -> Any:
    """The product of a small matrix and rows that run along memory: where channels are few, as
    heads of attention are, a transposition would leave rows too short for vectors."""
    rank = x.tensor.rank
    to_end, back = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    if rank < 3 or permutation(before) != to_end or permutation(after) != back:
        return rw.skip("the channels do not move to the end and back")
    weights, term = array_of(w), array_of(c)
    if weights is None or weights.ndim != 2 or max(weights.shape) > FEW_CHANNELS:
        return rw.skip("the channels are not few, or not multiplied by a constant matrix")
    outputs = weights.shape[1]
    if c is not None and (term is None or term.shape not in ((outputs,), (1,), ())):
        return rw.skip("the term is no constant per channel")
    batch, channels, *space = x.tensor.dims
    rows = reshaped(rw, x, (batch, channels, math.prod(space)))  # type: ignore[arg-type]
    product = rw.MatMul(rw.constant(np.ascontiguousarray(weights.T)), rows)
    if term is not None:
        product = rw.Add(product, rw.constant(term.reshape(-1, 1)))
    return reshaped(rw, product, (batch, outputs, *space))


@rule("product-of-product", P.MatMul(P.MatMul(x, u).only_use(), v), group=GROUP)
def product_of_product(
    rw: Rewriter, first: Op, second: Op, x: Value, u: Value, v: Value
) -> Value | None:
    """(x U) V == x (U V)   if that is less work."""
    return _in_one(rw, x, u, None, v)


@rule("product-of-affine", P.MatMul(P.Add(P.MatMul(x, u).only_use(), c).only_use().commutes(), v),
      group=GROUP)  # fmt: skip
def product_of_affine(
    rw: Rewriter, first: Op, add: Op, second: Op, x: Value, u: Value, c: Value, v: Value
) -> Value | None:
    """(x U + c) V == x (U V) + c V   if that is less work."""
    return _in_one(rw, x, u, c, v)


def _in_one(rw: Rewriter, x: Value, u: Value, c: Value | None, v: Value) -> Value | None:
    left, right, term = array_of(u), array_of(v), array_of(c)
    if left is None or right is None or left.ndim != 2 or right.ndim != 2:
        return rw.skip("a matrix is not constant")
    if left.dtype not in WIDE:
        return rw.skip("the matrices are not of float32 or wider")
    if not is_never_infinite(x):
        return rw.skip("an operand may be infinite")
    if is_shared(u) or is_shared(v):
        return rw.skip("the weights are large and have other users")
    inputs, middle, outputs = *left.shape, right.shape[1]
    if inputs * outputs >= inputs * middle + middle * outputs:
        return rw.skip("it is no less work")
    if term is not None and term.shape not in ((middle,), (1,), ()):
        return rw.skip("the constant differs between rows")
    with np.errstate(all="ignore"):
        whole = left.astype(np.float64) @ right
        shift = None if term is None else np.broadcast_to(term, middle).astype(np.float64) @ right
    if not (np.isfinite(whole).all() and (shift is None or np.isfinite(shift).all())):
        return rw.skip("a factor is not finite")
    product = rw.MatMul(x, rw.constant(whole.astype(left.dtype)))
    return product if shift is None else rw.Add(product, rw.constant(shift.astype(left.dtype)))
