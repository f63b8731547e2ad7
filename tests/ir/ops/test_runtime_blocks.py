"""ONNX Runtime's operators on weights in blocks, and its products of integers: as it does them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from runtime_compare import DOMAIN, check, runtime_model
from saturation import LARGEST_WEIGHT, SATURATES

from graphc import driver
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_export import export_onnx
from graphc.frontend.onnx_import import import_onnx
from graphc.ir.interp import interpret
from graphc.passes.specialise import specialise

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def codes(*shape: int, dtype=np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def steps(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.01, 0.1, shape).astype(np.float32)


# ---------------------------------------------------------------- MatMulNBits


def weights(columns: int, depth: int, size: int, bits: int, zero: str) -> tuple[list, dict]:
    blocks, per_byte = -(-depth // size), 8 // bits
    points = {
        "none": lambda: None,
        "packed": lambda: codes(columns, -(-blocks // per_byte)),
        "float": lambda: RANDOM.uniform(0, 15, (columns, blocks)).astype(np.float32),
    }
    operands = [codes(columns, blocks, size // per_byte), steps(columns, blocks), points[zero]()]
    return operands, {"K": depth, "N": columns, "block_size": size, "bits": bits}


def check_product(*operands, **options):
    """As `check`; what the operator is made of has no counterpart in ONNX."""
    return check("MatMulNBits", *operands, decomposed=False, **options)


@pytest.mark.suite("all")
@pytest.mark.parametrize("zero", ["none", "packed", "float"])
@pytest.mark.parametrize("depth, size", [(64, 16), (80, 16), (70, 32)])
def test_products_of_four_bits(depth, size, zero):
    operands, attrs = weights(8, depth, size, 4, zero)
    check_product(floats(2, 3, depth), *operands, constants={1, 2, 3}, **attrs)
    check_product(floats(1, depth), *operands, None, floats(8), constants={1, 2, 3, 5},
          compiled=zero == "packed", **attrs)  # fmt: skip


@pytest.mark.parametrize("bits", [2, 8])
def test_products_of_other_widths(bits):
    operands, attrs = weights(8, 80, 16, bits, "packed")
    check_product(floats(3, 80), *operands, constants={1, 2, 3}, tolerance=1e-4, **attrs)


@pytest.mark.parametrize("zero", ["none", "packed"])
@pytest.mark.parametrize("bits, depth, size", [(4, 80, 16), (4, 96, 32), (8, 70, 32), (2, 64, 32)])
def test_products_of_bytes(bits, depth, size, zero):
    """accuracy_level 4: closer to ONNX Runtime's products of bytes than those are to floats."""
    operands, attrs = weights(8, depth, size, bits, zero)
    attrs["accuracy_level"] = 4
    given = [floats(2, 3, depth), *operands, None, floats(8)]
    check_product(*given, constants={1, 2, 3, 5}, compiled=True, **attrs)


def test_blocks_of_zeros_and_of_tiny_numbers():
    operands, attrs = weights(8, 96, 32, 4, "packed")
    x = floats(3, 96)
    x[0], x[1, :32], x[2] = 0, 1e-38, x[2] * 1e-35
    proto = runtime_model("MatMulNBits", [x, *operands], {**attrs, "accuracy_level": 4})
    whole = runtime_model("MatMulNBits", [x, *operands], attrs)
    (found,), (expected,) = (interpret(import_onnx(p), [x, *operands]) for p in (proto, whole))
    np.testing.assert_array_equal(found[0], 0)
    for got, want in zip(found, expected):
        np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


def test_infinite_and_unknown_numbers_are_not_hidden():
    operands, attrs = weights(8, 64, 32, 4, "none")
    x = floats(2, 64)
    x[0, 3], x[1, 40] = np.inf, np.nan
    graph = import_onnx(
        runtime_model("MatMulNBits", [x, *operands[:2]], {**attrs, "accuracy_level": 4})
    )
    (found,) = interpret(graph, [x, *operands[:2]])
    assert not np.isfinite(found).any()


def test_float_zero_points_keep_activations_as_they_are():
    operands, attrs = weights(8, 64, 16, 4, "float")
    check_product(floats(3, 64), *operands, constants={1, 2, 3}, accuracy_level=4, **attrs)


def test_flat_weights():
    operands, attrs = weights(8, 80, 16, 4, "packed")
    expected = check_product(x := floats(3, 80), *operands, constants={1, 2, 3}, **attrs)
    flat = [operands[0], operands[1].reshape(-1), operands[2].reshape(-1)]
    check_product(x, *flat, constants={1, 2, 3}, expected=expected, **attrs)


def test_narrow_products_stay_nodes_when_exported():
    operands, attrs = weights(8, 64, 16, 4, "none")
    proto = runtime_model("MatMulNBits", [floats(3, 64), *operands], attrs, constants={1, 2})
    exported = export_onnx(specialise(import_onnx(proto)))
    assert [(node.domain, node.op_type) for node in exported.graph.node] == [
        (DOMAIN, "MatMulNBits")
    ]
    assert [len(t.raw_data) for t in exported.graph.initializer] == [8 * 4 * 8, 8 * 4 * 4]


@pytest.mark.suite("all")
@pytest.mark.parametrize("target", ["cpu", "c", "cuda"])
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("bits, level", [(2, 0), (4, 0), (4, 4), (8, 4)])
def test_weights_stay_packed(bits, level, rows, target):
    operands, attrs = weights(64, 256, 32, bits, "packed")
    attrs["accuracy_level"] = level
    given = [floats(rows, 256), *operands]
    proto = runtime_model("MatMulNBits", given, attrs, constants={1, 2, 3})
    program = driver.program_for(driver.typed(proto), target)
    spare = 64 * 8  # bytes: one processor's vectors take whole bytes of zero points
    if SATURATES and target == "cpu" and level == 4:
        spare += 64 * 8 * 4  # without VNNI, int32 sums of blocks are stored
    assert sum(x.nbytes for x in program.constants) <= sum(x.nbytes for x in operands) + spare


@pytest.mark.parametrize("rows, columns", [(1, 37), (3, 37), (20, 51), (70, 16)])
def test_compiled_products(rows, columns):
    operands, attrs = weights(columns, 70, 32, 4, "packed")
    check_product(floats(rows, 70), *operands, None, floats(columns),
          constants={1, 2, 3, 5}, compiled=True, **attrs)  # fmt: skip


@pytest.mark.suite("all")
@pytest.mark.parametrize("change, error", [
    ({"bits": 3}, "weights of 3 bits"), ({"N": 9}, "B must hold 288 elements"),
    ({"K": 65}, "rows of K = 65"), ({"block_size": 24}, "power of two"),
    ({"weight_prepacked": 1}, "packed for a GPU"),
])  # fmt: skip
def test_wrong_products_are_refused(change, error):
    operands, attrs = weights(8, 64, 16, 4, "none")
    given = [floats(3, 64), *operands[:2]]
    graph = import_onnx(runtime_model("MatMulNBits", given, {**attrs, **change}))
    with pytest.raises((ModelError, UnsupportedError), match=error):
        interpret(graph, given)


# ---------------------------------------------------------------- GatherBlockQuantized


@pytest.mark.suite("all")
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gather_from_packed_rows(bits, zero):
    table = codes(20, 64 * bits // 8)
    points = codes(20, 2 * bits // 8 or 1) if zero else None
    indices = np.array([[0, 19, -1], [-20, 3, 7]])
    check("GatherBlockQuantized", table, indices, steps(20, 2), points, bits=bits, block_size=32,
          constants={0, 2, 3}, tolerance=1e-4)  # fmt: skip


def test_indices_that_are_out_of_range_give_zeros():
    operands = [codes(20, 32), np.array([0, 20, -21]), steps(20, 2)]
    (found,) = check("GatherBlockQuantized", *operands, block_size=32, constants={0, 2})
    assert not found[1:].any() and found[0].any()


@pytest.mark.suite("all")
@pytest.mark.parametrize("gather_axis", [0, 1, 2])
@pytest.mark.parametrize("quantize_axis", [0, 1, 2])
def test_gather_from_elements(gather_axis, quantize_axis):
    shape = [3, 4, 5]
    shape[quantize_axis] = 40
    table = RANDOM.integers(-8, 8, shape)
    scales = steps(*(3 if d == quantize_axis else n for d, n in enumerate(shape)))
    points = RANDOM.integers(-8, 8, scales.shape)
    indices = np.array([[0, 2], [-1, 1]])
    expanded = np.repeat(scales, 16, quantize_axis).take(range(40), quantize_axis)
    zeros = np.repeat(points, 16, quantize_axis).take(range(40), quantize_axis)
    expected = ((table - zeros) * expanded).astype(np.float32).take(indices, gather_axis)
    attrs = {"block_size": 16, "gather_axis": gather_axis, "quantize_axis": quantize_axis}
    given = [table.astype(ml_dtypes.int4), indices, scales, points.astype(ml_dtypes.int4)]
    graph = import_onnx(runtime_model("GatherBlockQuantized", given, attrs))
    np.testing.assert_allclose(interpret(graph, given)[0], expected, rtol=1e-6)


# ---------------------------------------------------------------- products of integers


@pytest.mark.suite("all")
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("zero, bias", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_products_of_integers(dtype, zero, bias, columns):
    x, y = codes(2, 5, 16), codes(16, 6, dtype=dtype)
    y = y if dtype == np.uint8 else y.clip(-LARGEST_WEIGHT, LARGEST_WEIGHT)
    width = (6,) if columns else ()
    points = [codes(dtype=np.uint8), codes(*width, dtype=dtype)] if zero else [None, None]
    added = floats(6) if bias else None
    check("MatMulIntegerToFloat", x, y, steps(), steps(*width), *points, added,
          constants={1, 3, 5, 6}, tolerance=1e-5)  # fmt: skip
    check("DynamicQuantizeMatMul", floats(2, 5, 16), y, steps(*width), points[1], added,
          constants={1, 2, 3, 4}, tolerance=1e-5)  # fmt: skip
