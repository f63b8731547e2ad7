"""Scalar operations by type, the operands at which they go wrong, and kernels of one operation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from graphc.ir import dtypes
from graphc.ir.dtypes import DType, boolean
from graphc.ir.expr import Call, Index, Load
from graphc.ir.kernel import Buffer, For, Kernel, Store
from graphc.ir.program import Program, Slot, Step
from graphc.ir.scalar.ops import ONLY, TABLE
from graphc.ir.types import TensorType

Case = tuple[str, tuple[DType, ...], DType]
"""(operation, types of its operands, type of the result)."""

NUMBERS = [d for d in dtypes.BY_NAME.values() if d.is_number]
FLOATS = [d for d in NUMBERS if d.is_float]
INTEGERS = [d for d in NUMBERS if d.is_integer]
APPROXIMATE = {
    "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "pow",
}  # fmt: skip
FLOAT_ONLY = APPROXIMATE - {"pow"}
INTEGER_ONLY = {"bnot", "band", "bor", "bxor", "shl", "shr", "shr_rounded"}


def nasty(dtype: DType) -> np.ndarray:
    """Values at which implementations go wrong."""
    if dtype is boolean:
        return np.array([False, True])
    if dtype.is_integer:
        near = [0, 1, 2, 3, 5, 7, 31, 63, 100, dtype.max, dtype.max - 1, dtype.min, dtype.min + 1]
        near += [-1, -2, -3, -7, -32] if dtype.kind == "int" else []
        inside = [v for v in near if dtype.min <= v <= dtype.max]
        return np.array(list(dict.fromkeys(inside)), object).astype(dtype.np)
    info = ml_dtypes.finfo(dtype.np)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.0, 0.1, -0.1, 100.0, -7.5]
    values += [float(info.max), float(info.min), float(info.tiny), -float(info.tiny), 1e-3]
    values += [float(info.smallest_subnormal), 2147483648.0, -2147483648.0, 4e9, 1e10, -1e10, 1e19]
    values += [np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype.np)


def operands(types: tuple[DType, ...]) -> list[np.ndarray]:
    """All combinations of nasty values."""
    grids = np.meshgrid(*(np.arange(len(nasty(t))) for t in types), indexing="ij")
    return [np.ascontiguousarray(nasty(t)[g.reshape(-1)]) for t, g in zip(types, grids)]


def cases() -> Iterator[Case]:
    """(op, operand dtypes, result dtype) for all that C can compute."""
    for op in TABLE.values():
        if op.rule == "logic":
            yield op.name, (boolean,) * op.arity, boolean
        elif op.rule == "select":
            yield from ((op.name, (boolean, d, d), d) for d in (*NUMBERS, boolean))
        elif op.rule in ("compare", "test"):
            yield from ((op.name, (d,) * op.arity, boolean) for d in NUMBERS)
        elif op.rule in ONLY:
            yield op.name, (ONLY[op.rule],) * op.arity, ONLY[op.rule]
        elif op.rule == "same":
            kinds = FLOATS if op.name in FLOAT_ONLY else NUMBERS
            kinds = INTEGERS if op.name in INTEGER_ONLY else kinds
            yield from ((op.name, (d,) * op.arity, d) for d in kinds)
    for source, target in itertools.permutations((*NUMBERS, boolean), 2):
        yield "cast", (source,), target
    for source in (dtypes.f64, dtypes.f32, dtypes.f16, dtypes.i64, boolean):
        targets = [d for d in FLOATS if d.bits <= 16 and d is not source]
        yield from (("cast_sat", (source,), target) for target in targets)
    for source, target in itertools.permutations(NUMBERS, 2):
        wide = source.bits == target.bits >= 8
        if wide and not (source.is_float and target.is_float):
            yield "bitcast", (source,), target


def kernel_of(name: str, types: tuple[DType, ...], result: DType) -> Kernel:
    size = len(operands(types)[0])
    i = Index("i", size)
    inputs = tuple(Buffer(f"x{n}", t, (size,), "in") for n, t in enumerate(types))
    output = Buffer("y", result, (size,), "out")
    value = Call(TABLE[name], tuple(Load(b.name, (i,), b.dtype) for b in inputs), result)
    title = f"{name}_{'_'.join(map(str, types))}_to_{result}"
    return Kernel(title, (*inputs, output), (For(i, (Store("y", (i,), value),)),))


class Table:
    """A program of many cases: a kernel each, with an input for all operands of a type and an
    output for all results of a type, one after another; equal operands are there once."""

    def __init__(self, cases: Sequence[Case]):
        self.program = Program("ops", [], [])
        self.places: dict[Case, Slot] = {}
        operand_parts: dict[DType, list[np.ndarray]] = {}
        known: dict[tuple[tuple[DType, ...], int], Slot] = {}
        sizes: dict[DType, int] = {}
        for op, types, result in cases:
            kernel = kernel_of(op, types, result)
            self.program.kernels[kernel.name] = kernel
            arrays = operands(types)
            for position, array in enumerate(arrays):
                if (types, position) not in known:
                    parts = operand_parts.setdefault(types[position], [])
                    start = sum(part.size for part in parts)
                    number = list(operand_parts).index(types[position])
                    slot = _slot("input", number, start, types[position], array.size)
                    known[types, position] = slot
                    parts.append(array)
            start = sizes.setdefault(result, 0)
            sizes[result] += arrays[0].size
            place = _slot("output", list(sizes).index(result), start, result, arrays[0].size)
            self.places[op, types, result] = place
            slots = (*(known[types, position] for position in range(len(types))), place)
            self.program.steps.append(Step(kernel.name, slots))
        self.feeds = [np.concatenate(parts) for parts in operand_parts.values()]
        self.program.inputs += [
            (f"x{t}", TensorType(t, a.shape)) for t, a in zip(operand_parts, self.feeds)
        ]
        self.program.outputs += [(f"y{t}", TensorType(t, (n,))) for t, n in sizes.items()]

    def results(self, outputs: Sequence[np.ndarray]) -> dict[Case, np.ndarray]:
        """The outputs of the program, by case."""
        starts = {case: slot.offset // slot.dtype.size for case, slot in self.places.items()}
        return {
            case: outputs[slot.index][starts[case] :][: slot.elements]
            for case, slot in self.places.items()
        }


def _slot(space: str, number: int, start: int, dtype: DType, elements: int) -> Slot:
    return Slot(space, number, start * dtype.size, dtype, elements)


def mismatch(found, expected, arguments, case) -> str | None:
    """What of a case's result is wrong, with its operands."""
    op, types, result = case
    same = equal(found, expected, result, op in APPROXIMATE and result.is_float)
    if op == "round" and result.is_integer and result.bits == 64:
        same |= found == arguments[0]  # numpy rounds by way of double
    if same.all():
        return None
    where = np.flatnonzero(~same)[:5]
    rows = [([a[k].item() for a in arguments], found[k].item(), expected[k].item()) for k in where]
    return f"{op} {types} -> {result}: (arguments, found, expected) {rows}"


def equal(found, expected, dtype: DType, approximate: bool) -> np.ndarray:
    if not dtype.is_float:
        return found == expected
    a, b = found.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | np.isnan(a) & np.isnan(b)
    if approximate:
        eps = max(float(ml_dtypes.finfo(dtype.np).eps), 2.0**-50)
        tiny = float(ml_dtypes.finfo(dtype.np).smallest_subnormal)
        with np.errstate(all="ignore"):
            same |= np.abs(a - b) <= 4 * eps * np.abs(b) + tiny
    return same
