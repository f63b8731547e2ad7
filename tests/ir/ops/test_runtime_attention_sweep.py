"""ONNX Runtime's attention operators over combinations of what they take.

Each case draws every option of an operator from a table and compares with what ONNX Runtime's CPU
kernel gives; what that refuses is not drawn, nor what it gets wrong (past keys without results for
them: it reads beyond them). Some cases are compiled for this CPU as well.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from runtime_compare import close, run_ort, runtime_model

from graphc import driver
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

CASES = 40


class Case:
    """Draws options by a seed."""

    def __init__(self, seed: int):
        self.compiled = seed % 8 == 0
        self.random = np.random.default_rng(seed)
        self.attrs: dict = {}

    def pick(self, *options):
        return options[self.random.integers(len(options))]

    def floats(self, *shape: int, dtype=np.float32) -> np.ndarray:
        return self.random.standard_normal(shape).astype(dtype)

    def some(self, name: str, *values) -> None:
        """Sets an attribute to one of some values; None leaves it out."""
        value = self.pick(*values)
        if value is not None:
            self.attrs[name] = value

    def compare(self, kind: str, operands: list, outputs, constants=(), shown=None, cache=None):
        """Asserts that the results are ONNX Runtime's; `shown` cuts off what is undefined, `cache`
        is the type of the second and third result if it is another."""
        tolerance = 1e-2 if any(x is not None and x.dtype == np.float16 for x in operands) else 1e-4
        proto = runtime_model(kind, operands, self.attrs, outputs, constants)
        if cache is not None:
            for out in proto.graph.output[1:3]:
                out.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(cache))
        feeds = [x for n, x in enumerate(operands) if x is not None and n not in constants]
        graph, wanted = import_onnx(proto), run_ort(proto, feeds)
        runs = [interpret(graph, feeds)]
        if self.compiled:
            runs.append(driver.compile(graph, threads=1).run(feeds))
        for found in runs:
            # What reads a key whose rotated element lies between two codes differs by a step too.
            codes = [(a, b) for a, b in zip(found, wanted) if a.dtype.kind in "iu"]
            same = all(np.array_equal(a, b) for a, b in codes)
            for n, (got, want) in enumerate(zip(found, wanted, strict=True)):
                if shown is not None:
                    got, want = shown(n, got), shown(n, want)
                if got.dtype.kind in "iu" and "do_rotary" in self.attrs:
                    _nearly_equal(got, want)
                else:
                    close(got, want, tolerance if same else 5 * tolerance)

    def key_mask(self, batch: int, rows: int, new: int, past: int, *more: str):
        """A mask of one of the kinds that all operators take, or of `more`; or None."""
        columns = past + new
        shape = self.pick(None, "ends", "packed", "keys", "pairs", *more)
        ends = self.random.integers(1, new + 1, batch)
        if shape is None:
            return None
        if shape == "single":
            return np.zeros((batch, 1), np.int32)
        if shape in ("keys", "pairs"):
            mask = self.random.integers(-1, 3, (batch, rows, columns)).astype(np.int32)
            mask[..., 0] = self.pick(0, 1)
            return mask if shape == "pairs" else mask[:, 0]
        if shape == "packed":
            ends = np.concatenate([ends, np.arange(batch + 1), np.arange(batch + 1)])
        return ends.astype(np.int32)


def _nearly_equal(codes: np.ndarray, wanted: np.ndarray) -> None:
    """Asserts that codes of turned keys are those wanted, but for few that were halfway between."""
    assert codes.dtype == wanted.dtype and codes.shape == wanted.shape
    assert (codes != wanted).mean() < 0.02


# ---------------------------------------------------------------- of ONNX Runtime's transformers


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(CASES))
def test_multi_head_attention(seed):
    c = Case(seed)
    batch, heads, size = c.pick(1, 2), c.pick(1, 3), c.pick(4, 8)
    rows, new, past = c.pick(1, 2, 5), c.pick(1, 3, 7), c.pick(0, 4)
    apart = c.pick(False, False, True)  # keys and values of another sequence
    width = size if apart or past else c.pick(size, 12)
    keys, values = (c.floats(batch, new, heads * n) for n in (size, width))
    if apart:
        keys, values = (c.floats(batch, heads, new, size) for _ in range(2))
    bias = c.floats(heads * (2 * size + width)) if c.pick(False, True) else None
    added = c.pick(None, (batch, heads), (1, heads), (batch, 1), (1, 1))
    scores = None if added is None else c.floats(*added, rows, past + new)
    before = [c.floats(batch, heads, past, size) if past else None for _ in range(2)]
    c.attrs["num_heads"] = heads
    c.some("unidirectional", None, 1)
    c.some("scale", None, 0.0, 0.3)
    c.some("mask_filter_value", None, -1.0, -np.inf, 0.0)
    mask = c.key_mask(batch, rows, new, past)
    if past:
        outputs = c.pick((True, True, True), (True, True, True, True))
    else:
        outputs = c.pick((True,), (True, False, False, True), (True, True, True, True))
    operands = [c.floats(batch, rows, heads * size), keys, values, bias, mask, scores, *before]
    c.compare("MultiHeadAttention", operands, outputs)


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(CASES))
@pytest.mark.parametrize("quantised", [False, True])
def test_attention(seed, quantised):
    c = Case(seed)
    batch, heads, size, rows, past = c.pick(1, 2), c.pick(1, 3), 4, c.pick(1, 2, 5), c.pick(0, 0, 4)
    widths = [heads * size] * 3
    c.attrs["num_heads"] = heads
    if not past and not quantised and c.pick(False, True):
        widths[2] = heads * c.pick(2, 6)
        c.attrs["qkv_hidden_sizes"] = widths
    before = c.floats(2, batch, heads, past, size) if past else None
    c.some("unidirectional", None, 1)
    c.some("scale", None, 0.3)
    c.some("mask_filter_value", None, -1.0, -np.inf, 0.0)
    mask = c.key_mask(batch, rows, rows, past, "single")
    bias = c.floats(sum(widths))
    outputs = (True, True) if past else (True,)
    if quantised:
        _quantised_attention(c, batch, rows, widths, bias, mask, before, outputs)
        return
    scores = None
    if not past and c.pick(False, True):
        scores = c.floats(c.pick(1, batch), c.pick(1, heads), rows, rows)
    operands = [c.floats(batch, rows, 6), c.floats(6, sum(widths)), bias, mask, before, scores]
    c.compare("Attention", operands, outputs)


def _quantised_attention(c: Case, batch, rows, widths, bias, mask, before, outputs) -> None:
    columns = c.pick((), (sum(widths),))
    codes = [
        c.random.integers(0, high, shape).astype(np.uint8)
        for shape, high in (((batch, rows, 6), 256), ((6, sum(widths)), 128))
    ]
    step = np.asarray(c.random.uniform(0.01, 0.02, columns), np.float32)
    zeros = [np.array(120, np.uint8), np.full(columns, 60, np.uint8)]
    if c.pick(False, False, True):
        zeros = [None, None]
    operands = [*codes, bias, np.array(0.02, np.float32), step, mask, *zeros, before]
    c.compare("QAttention", operands, outputs, {1, 4, 7})


# ---------------------------------------------------------------- of generated text

TOTAL = 6  # the number of the operand whose contents must be known


@pytest.mark.parametrize("seed", range(2 * CASES))
def test_group_query_attention(seed):
    c = Case(seed)
    dtype = c.pick(np.float32, np.float32, np.float16)
    (heads, shared), size = c.pick((2, 1), (4, 2), (2, 2)), c.pick(16, 32)
    is_prompt = c.pick(False, True)
    rows = c.pick(1, 3, 5)
    batch = c.pick(1, 2) if is_prompt or rows == 1 else 1
    past = np.zeros(batch, int) if is_prompt else c.random.integers(2, 8, batch)
    total = int(past.max()) + rows
    ends = past + rows - (c.random.integers(0, rows, batch) if is_prompt else 0)
    ends[np.argmax(past)] = total
    held = (
        c.pick(None, 0, total, total + 3) if is_prompt else c.pick(total - rows, total, total + 3)
    )
    q, k, v = (c.floats(batch, rows, n * size, dtype=dtype) for n in (heads, shared, shared))
    if c.pick(False, False, True):
        q, k, v = np.concatenate([q, k, v], -1), None, None
    c.attrs.update(num_heads=heads, kv_num_heads=shared)
    before, scales, kept = _cache(c, (batch, shared, held, size), dtype)
    angles, where = _angles(c, is_prompt, batch, rows, total, size, dtype)
    added = None
    if c.pick(False, False, True):
        added = c.floats(c.pick(1, batch), c.pick(1, heads), rows, total, dtype=dtype)
    sink = c.floats(heads, dtype=dtype) if c.pick(False, False, True) else None
    if sink is None:
        c.some("smooth_softmax", None, 0, 1)
    c.some("softcap", None, None, 0.7)
    c.some("scale", None, 0.0, 0.3)
    c.some("local_window_size", None, 1, 2, 4, 9)
    if "local_window_size" not in c.attrs and c.pick(False, False, True):
        c.attrs["causal"] = 0
    c.some("qk_output", None, 1, 2)
    outputs = (True, True, True, True) if "qk_output" in c.attrs else (True, True, True)
    operands = [q, k, v, *before, (ends - 1).astype(np.int32), np.array(total, np.int32), *angles,
                where, added, sink, *scales]  # fmt: skip

    def shown(number: int, result: np.ndarray) -> np.ndarray:
        """Without queries beyond the end of a sample, and what the cache holds there."""
        result = result.copy()
        for n, end in enumerate(ends):
            beyond = end - past[n] if number in (0, 3) else end
            rest = (
                (n, slice(beyond, None)) if number == 0 else (n, slice(None), slice(beyond, None))
            )
            result[rest] = 0
        return result

    c.compare("GroupQueryAttention", operands, outputs, {TOTAL}, shown, kept)


def _cache(c: Case, shape: tuple, dtype) -> tuple[list, list, type]:
    """Keys and values, their scales, and the type of both: as they are, or codes."""
    if shape[2] is None:
        return [None] * 2, [None] * 2, dtype
    bits = c.pick(0, 0, 4, 8)
    if not bits:
        return [c.floats(*shape, dtype=dtype) for _ in range(2)], [None] * 2, dtype
    batch, heads, length, size = shape
    kind = c.pick("PER_TENSOR", "PER_CHANNEL")
    c.attrs.update(kv_cache_bit_width=bits, k_quant_type=kind, v_quant_type=kind)
    held = np.int8 if bits == 8 else np.uint8
    info, width = np.iinfo(held), size * bits // 8
    codes = [
        c.random.integers(info.min, info.max + 1, (batch, heads, length, width)).astype(held)
        for _ in range(2)
    ]
    extents = (1,) if kind == "PER_TENSOR" else (1, heads, 1, size)
    steps = 0.1 if bits == 4 else 0.02
    return (
        codes,
        [c.random.uniform(steps, 2 * steps, extents).astype(np.float32) for _ in range(2)],
        held,
    )


def _angles(c: Case, is_prompt: bool, batch: int, rows: int, total: int, size: int, dtype):
    """Cosines and sines, and positions, if queries and keys are turned."""
    if c.pick(False, True):
        return [None, None], None
    c.attrs["do_rotary"] = 1
    c.some("rotary_interleaved", None, 1)
    where = None
    if c.pick(False, False, True):
        where = c.random.integers(0, total, (batch, rows))
        if is_prompt:
            where = np.zeros((batch, rows), np.int64)
    pairs = c.pick(8, size // 2)
    return [c.floats(total + 2, pairs, dtype=dtype) for _ in "cs"], where


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(CASES))
def test_rotary_embedding(seed):
    c = Case(seed)
    batch, heads, rows, size = c.pick(1, 2), c.pick(1, 3), c.pick(1, 4), c.pick(8, 16)
    dtype = c.pick(np.float32, np.float16)
    pairs = size // 2
    x = c.floats(batch, rows, heads * size, dtype=dtype)
    if c.pick(False, True):
        x = c.floats(batch, heads, rows, size, dtype=dtype)
    if c.pick(False, True):
        pairs = size // 4
        c.attrs.update(num_heads=heads, rotary_embedding_dim=2 * pairs)
    c.some("interleaved", None, 0, 1)
    c.some("scale", None, 1.0)
    where = c.random.integers(0, 6, c.pick((1,), (batch, rows))).astype(np.int64)
    caches = [c.floats(10, pairs, dtype=dtype) for _ in "cs"]
    c.compare("RotaryEmbedding", [x, where, *caches], (True,))
