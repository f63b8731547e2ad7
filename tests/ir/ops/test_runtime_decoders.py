"""ONNX Runtime's attention of decoders: as its CPU kernels compute it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from runtime_compare import close, runtime_model
from test_runtime_attention_sweep import Case

from graphc import driver
from graphc.errors import ModelError
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret

KIND, HEADS, SIZE, HELD = "DecoderMaskedMultiHeadAttention", 3, 8, 10
FEATURES = HEADS * SIZE


def key_mask(case: Case, batch: int, length: int) -> np.ndarray:
    mask = case.random.integers(0, 2, (batch, length)).astype(np.int32)
    mask[0] = case.pick(0, 1)
    return mask


@pytest.mark.parametrize("seed", range(16))
def test_one_query_after_a_buffer(seed):
    case = Case(seed)
    beams, past = case.pick(1, 2), int(case.random.integers(0, HELD))
    batch = 2 * beams
    new = [case.floats(batch, 1, FEATURES) for _ in range(3)]
    held = [case.floats(batch, HEADS, HELD, SIZE) for _ in range(2)]
    mask = key_mask(case, batch, past + 1)
    scores = case.floats(case.pick(1, batch), case.pick(1, HEADS), 1, past + 1)
    table = case.random.integers(0, beams, (2, beams, HELD)).astype(np.int32)
    by_beam = [np.array([beams], np.int32), table] if beams > 1 else [None, None]
    if beams == 1:  # whose kernel reads these otherwise, there or not
        mask, scores = case.pick(mask, None), case.pick(scores, None)
    else:
        scores = scores[:1, :1].repeat(HEADS, 1)
    bias = case.pick(None, case.floats(3 * FEATURES))
    case.some("scale", None, 0.3)
    case.some("mask_filter_value", None, -50.0)
    case.attrs |= {"num_heads": HEADS, "past_present_share_buffer": 1}
    operands = [*new, mask, scores, *held, np.array([past], np.int32), *by_beam, bias]
    case.compare(KIND, operands, (True, True, True))


def test_packed_queries():
    """Side by side as on their own; ONNX Runtime's kernel fails on these."""
    case = Case(0)
    new = [case.floats(2, 1, FEATURES) for _ in range(3)]
    rest = [None, None, *[case.floats(2, HEADS, HELD, SIZE) for _ in range(2)], np.array([4])]
    attrs = {"num_heads": HEADS, "past_present_share_buffer": 1}
    results = []
    for first in (new, [np.concatenate(new, axis=-1), None, None]):
        operands = [*first, *rest]
        graph = import_onnx(runtime_model(KIND, operands, attrs, (True, True, True)))
        results.append(interpret(graph, [x for x in operands if x is not None]))
    for apart, packed in zip(*results, strict=True):
        np.testing.assert_array_equal(packed, apart)


@pytest.mark.suite("all")
@pytest.mark.parametrize("seed", range(8))
def test_one_query_to_given_keys(seed):
    case = Case(seed)
    keys = [case.floats(2, HEADS, 7, SIZE) for _ in range(2)]
    mask = case.pick(None, key_mask(case, 2, 7))
    bias = case.pick(None, case.floats(3 * FEATURES))
    shown = case.pick(0, 1)
    case.attrs |= {"num_heads": HEADS, "output_qk": shown}
    operands = [case.floats(2, 1, FEATURES), *keys, mask, *[None] * 6, bias]
    case.compare(KIND, operands, (True, False, False, True) if shown else (True,))


@pytest.mark.parametrize("past, table, error", [(HELD, 0, "length 10"), (3, 2, "beam 2")])
def test_beyond_the_buffer(past, table, error):
    case = Case(0)
    new, held = case.floats(2, 1, FEATURES), case.floats(2, HEADS, HELD, SIZE)
    operands = [new, new, new, None, None, held, held, np.array([past], np.int32),
                np.array([2], np.int32), np.full((1, 2, HELD), table, np.int32)]  # fmt: skip
    proto = runtime_model(KIND, operands, {"num_heads": HEADS, "past_present_share_buffer": 1})
    with pytest.raises(ModelError, match=error):
        interpret(import_onnx(proto), [x for x in operands if x is not None])


# ---------------------------------------------------------------- SparseAttention


def layouts(case: Case, count: int, blocks: int) -> list[np.ndarray]:
    """Row and column indices of lower triangular masks with a full diagonal."""
    masks = np.tril(case.random.random((count, blocks, blocks)) < 0.6) | np.eye(blocks, dtype=bool)
    columns = [np.nonzero(mask)[1] for mask in masks]
    width = max(map(len, columns))
    padded = [np.pad(c, (0, width - len(c)), constant_values=-1) for c in columns]
    rows = [np.concatenate([[0], np.cumsum(mask.sum(axis=1))]) for mask in masks]
    return [np.stack(rows).astype(np.int32), np.stack(padded).astype(np.int32)]


def run_in_place(proto: ModelProto, feeds: dict[str, np.ndarray], shared: dict[str, str]) -> list:
    """What ONNX Runtime computes if some outputs are in the buffers of inputs."""
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for out in session.get_outputs():
        if out.name in shared:
            binding.bind_ortvalue_output(out.name, values[shared[out.name]])
        else:
            binding.bind_output(out.name)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


@pytest.mark.parametrize("seed", range(12))
def test_sparse_attention(seed):
    """Samples of one length, and then a shorter one beside another: which ONNX Runtime gets wrong,
    and so is compared with itself alone."""
    case = Case(seed)
    heads, key_heads, size, held = 4, 2, 16, 64
    rows, total, short = case.pick((40, 40, 33), (1, 41, 20), (1, 16, 3), (1, 1, 1))
    dtype = case.pick(np.float32, np.float32, np.float16)
    new = [case.floats(2, rows, n * size) for n in (heads, key_heads, key_heads)]
    if case.pick(0, 1):
        new = [np.concatenate(new, axis=-1), None, None]
    past = [case.floats(2, key_heads, held, size) for _ in range(2)]
    rotary = case.pick(0, 1) if total > rows else 0  # of prompts it reads positions never written
    tables = [case.floats(held, size // 2).astype(dtype) for _ in range(2)] if rotary else []
    floats = [x if x is None else x.astype(dtype) for x in (*new, *past)]
    shared = layouts(case, case.pick(1, 2), held // 16)
    case.attrs |= {"num_heads": heads, "kv_num_heads": key_heads, "sparse_block_size": 16,
                   "do_rotary": rotary}  # fmt: skip
    case.some("scale", None, 0.2)
    if rotary:
        case.some("rotary_interleaved", 0, 1)

    def given(batch: slice, length: int, ends: tuple) -> list:
        parts = [x if x is None else x[batch] for x in floats]
        if rows > 1 and length < rows:
            parts[:3] = [x if x is None else x[:, :length] for x in parts[:3]]
        return [*parts, *shared, np.array(length, np.int32), np.array(ends, np.int32), *tables]

    near = 5e-3 if dtype == np.float16 else 1e-4
    alike = given(slice(0, 2), total, (total, total))
    for got, want in zip(ours(case, alike), theirs(case, alike), strict=True):
        close(got, want, near)
    alone = theirs(case, given(slice(1, 2), short, (short,)))
    end = short if rows > 1 else 1  # beyond its end a sample is undefined
    mixed = ours(case, given(slice(0, 2), total, (total, short)))
    close(mixed[0][1, :end], alone[0][0], near)
    for got, want in zip(mixed[1:], alone[1:]):
        close(got[1, :, :short], want[0, :, :short], near)


def sparse_model(case: Case, operands: list) -> ModelProto:
    return runtime_model("SparseAttention", operands, case.attrs, (True, True, True), {7})


def ours(case: Case, operands: list) -> list[np.ndarray]:
    graph = import_onnx(sparse_model(case, operands))
    feeds = [x for n, x in enumerate(operands) if x is not None and n != 7]
    results = interpret(graph, feeds)
    if case.compiled:
        for got, want in zip(driver.compile(graph, threads=1).run(feeds), results, strict=True):
            close(got, want, 1e-2 if want.dtype == np.float16 else 1e-4)
    return results


def theirs(case: Case, operands: list) -> list[np.ndarray]:
    feeds = {f"x{n}": x for n, x in enumerate(operands) if x is not None and n != 7}
    return run_in_place(sparse_model(case, operands), feeds, {"y1": "x3", "y2": "x4"})


def test_row_indices_beyond_the_columns():
    case = Case(0)
    floats = [case.floats(1, 1, n) for n in (32, 32, 32)]
    past = [case.floats(1, 2, 32, 16) for _ in range(2)]
    rows, columns = np.array([[0, 1, 9]], np.int32), np.array([[0, 0, 1]], np.int32)
    operands = [*floats, *past, rows, columns, np.array(17, np.int32), np.array([17], np.int32)]
    attrs = {"num_heads": 2, "kv_num_heads": 2, "sparse_block_size": 16}
    proto = runtime_model("SparseAttention", operands, attrs, constants={7})
    with pytest.raises(ModelError, match="row index 9"):
        interpret(import_onnx(proto), [*operands[:7], operands[8]])
