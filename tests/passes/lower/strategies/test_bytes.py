"""Sums of products of bytes: multiplied four at a time, or as pairs of int16, exactly, whatever
their zero points."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from differential import (
    assert_same,
    build,
    check,
    interpret_program,
    native,
    program_of,
)

from graphc.backends.llvm_cpu.codegen import compile_program, llvm_text
from graphc.backends.llvm_cpu.machine import machine_of
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import cross_target, host_target, named_target
from graphc.driver import program_for
from graphc.ir.graph import clone_graph
from graphc.ir.instructions import DOT2_WIDE, DOT4
from graphc.ir.interp import interpret
from graphc.ir.kernel import Intrin, walk_stmts
from graphc.targets.base import option
from graphc.targets.cpu import Cpu

TYPES = {"u8": np.uint8, "i8": np.int8}


@dataclass(frozen=True)
class CpuLike(Cpu):
    """A CPU with the instructions of a processor."""

    mcpu: str = option("haswell", "the processor", type=str)

    @cached_property
    def machine(self):
        return machine_of(cross_target("x86_64-linux-gnu", self.mcpu))


def bytes_of(rng, dtype, *shape):
    """Random bytes, among them the least and the largest."""
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max + 1, shape)
    return np.where(
        rng.random(shape) < 0.2, rng.choice([info.min, info.max], shape), values
    ).astype(dtype)


def instructions_of(program) -> set[str]:
    stmts = [s for k in program.kernels.values() for s in walk_stmts(k.body)]
    return {s.name for s in stmts if isinstance(s, Intrin)}


def uses_dots(program) -> bool:
    return bool(instructions_of(program) & {DOT2_WIDE, DOT4})


def exact(graph, arrays, machines=(64,)):
    """To the last bit, by the instruction."""
    program = check(graph, arrays, machines, interpreted=(64,), tolerance=0)
    assert uses_dots(program)
    return program


@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 33, 39), (3, 7, 16), (5, 4, 5), (17, 6, 32), (2, 64, 4)]
)
@pytest.mark.parametrize("x_type", TYPES)
@pytest.mark.parametrize("w_type", TYPES)
def test_products(rows, depth, columns, x_type, w_type):
    rng = np.random.default_rng(rows * depth * columns)
    x = bytes_of(rng, TYPES[x_type], rows, depth)
    w = bytes_of(rng, TYPES[w_type], depth, columns)
    zeros = bytes_of(rng, TYPES[x_type]), bytes_of(rng, TYPES[w_type])

    def function(b, x):
        return b.MatMulInteger(x, b.constant(w), *map(b.constant, zeros))

    graph, arrays = build(function, x=x)
    exact(graph, arrays, machines=(0, 16, 32, 64) if rows == 3 else (64,))


@pytest.mark.parametrize("w_type", TYPES)
def test_zero_points_and_weights_known_at_run_time(w_type):
    rng = np.random.default_rng(5)
    x, w = bytes_of(rng, np.uint8, 2, 9, 13), bytes_of(rng, TYPES[w_type], 2, 13, 21)
    xz, wz = np.array(3, np.uint8), np.array(77, TYPES[w_type])
    graph, arrays = build(lambda b, *v: b.MatMulInteger(*v), x=x, w=w, xz=xz, wz=wz)
    exact(graph, arrays)


CONVOLUTIONS = {
    "three channels": ((1, 3, 11, 9), (8, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "one channel": ((2, 1, 12, 10), (6, 1, 10, 4), {"pads": [4, 1, 5, 1], "strides": [2, 2]}),
    "seven wide": ((1, 3, 16, 16), (16, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    "points": ((1, 20, 5, 7), (33, 20, 1, 1), {}),
    "points apart": ((1, 16, 6, 6), (8, 16, 1, 1), {"strides": [2, 2]}),
    "groups": ((1, 24, 6, 5), (16, 12, 3, 3), {"group": 2, "pads": [1, 0, 1, 2]}),
    "dilated": ((1, 5, 12, 9), (9, 5, 3, 2), {"dilations": [2, 3], "pads": [2, 0, 0, 1]}),
    "one dimension": ((1, 6, 30), (12, 6, 5), {"pads": [2, 2]}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("x_type, w_type", [("u8", "i8"), ("i8", "i8"), ("i8", "u8")])
def test_convolutions(case, x_type, w_type):
    rng = np.random.default_rng(7)
    shape, weights, attributes = CONVOLUTIONS[case]
    x, w = bytes_of(rng, TYPES[x_type], *shape), bytes_of(rng, TYPES[w_type], *weights)
    zeros = bytes_of(rng, TYPES[x_type]), np.array(0 if w_type == "i8" else 128, TYPES[w_type])
    exact(*convolution(x, w, zeros, attributes))


def convolution(x, w, zeros, attributes):
    """Of x with constant weights and zero points."""
    return build(
        lambda b, x: b.ConvInteger(x, b.constant(w), *map(b.constant, zeros), **attributes), x=x
    )


def test_sums_wrap():
    x, w = np.full((4, 1 << 17), 255, np.uint8), np.full((1 << 17, 16), 127, np.int8)
    graph, arrays = build(lambda b, x: b.MatMulInteger(x, b.constant(w)), x=x)
    program = check(graph, arrays, machines=(64,), interpreted=(), tolerance=0)
    assert uses_dots(program)


def test_depthwise_convolutions_have_no_depth_to_share():
    rng = np.random.default_rng(3)
    x, w = bytes_of(rng, np.uint8, 1, 20, 7, 7), bytes_of(rng, np.int8, 20, 1, 3, 3)
    graph, arrays = build(
        lambda b, x: b.ConvInteger(x, b.constant(w), group=20, pads=[1, 1, 1, 1]), x=x
    )
    check(graph, arrays, machines=(0, 16, 32, 64), interpreted=(64,), tolerance=0)


@pytest.mark.skipif(host_target().arch != "x86_64", reason="names x86 instruction sets")
@pytest.mark.parametrize("target", ["sse", "avx2", "avx512", "host"])
@pytest.mark.parametrize("x_type", TYPES)
def test_every_form_of_the_instruction(target, x_type):
    """Each instruction set has its own code for dot4, with the lanes of its registers or fewer."""
    cpu = named_target(target)
    rng = np.random.default_rng(11)
    x, w = bytes_of(rng, TYPES[x_type], 5, 18), bytes_of(rng, np.int8, 18, 16 + 16 + 11)
    zero = np.array(-3 if x_type == "i8" else 9, TYPES[x_type])
    graph, arrays = build(lambda b, x: b.MatMulInteger(x, b.constant(w), b.constant(zero)), x=x)
    program = program_of(graph, cpu.vector_bits // 8)
    assert uses_dots(program)
    text = llvm_text(program, cpu)
    assert ("vpdpbusd" in text) == bool({"avx512vnni", "avxvnni"} & cpu.features)
    if not cpu.runs_here:
        pytest.skip(f"this CPU has no {target}")
    expected = interpret(graph, arrays)
    (found,) = NativeModel(compile_program(program, cpu), 1)(arrays)
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_array_equal(interpret_program(program, arrays)[0], expected[0])


def test_padding_known_at_run_time():
    """A window reaches into the zero point that a quantiser has just computed."""
    rng = np.random.default_rng(9)
    x, w = bytes_of(rng, np.uint8, 1, 6, 8, 7), bytes_of(rng, np.int8, 10, 6, 3, 3)
    xz = np.array(201, np.uint8)
    graph, arrays = build(
        lambda b, x, xz: b.ConvInteger(x, b.constant(w), xz, pads=[1, 1, 1, 1]), x=x, xz=xz
    )
    exact(graph, arrays)


WINDOWS = {
    "padded": ((1, 64, 16, 16), (8, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((1, 200, 23, 22), (5, 200, 3, 3), {"pads": [1, 0, 0, 1], "strides": [2, 2]}),
    "dilated": ((1, 72, 15, 17), (6, 72, 3, 3), {"dilations": [1, 2], "pads": [0, 2, 1, 2]}),
    "not padded": ((2, 64, 14, 15), (7, 64, 3, 2), {}),
}


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("x_type, w_type", [("u8", "u8"), ("i8", "i8"), ("i8", "u8")])
def test_sums_of_windows_are_taken_in_two_steps(case, x_type, w_type):
    """Zero points of weights take the sums of windows: over channels once, then of these."""
    rng = np.random.default_rng(13)
    shape, weights, attributes = WINDOWS[case]
    x, w = bytes_of(rng, TYPES[x_type], *shape), bytes_of(rng, TYPES[w_type], *weights)
    zeros = np.array(77, TYPES[x_type]), np.array(5, TYPES[w_type])
    graph, arrays = convolution(x, w, zeros, attributes)
    program = program_for(clone_graph(graph), CpuLike(mcpu="icelake-server"))
    assert_same(native(program, arrays), interpret(graph, arrays), 0, "native")
    assert any("point_sums" in kernel.comment for kernel in program.kernels.values())


@pytest.mark.parametrize(
    "mcpu, rows, instruction",
    [
        ("haswell", 7, DOT2_WIDE), ("haswell", 1, DOT4), ("nehalem", 7, DOT2_WIDE),
        ("skylake-avx512", 7, DOT2_WIDE), ("icelake-server", 7, DOT4), ("alderlake", 7, DOT4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("x_type", TYPES)
def test_pairs_are_for_processors_without_an_instruction_for_bytes(mcpu, rows, instruction, x_type):
    rng = np.random.default_rng(11)
    x, w = bytes_of(rng, TYPES[x_type], rows, 611), bytes_of(rng, np.int8, 611, 21)
    zeros = bytes_of(rng, TYPES[x_type]), bytes_of(rng, np.int8)
    x[0], w[:, 0], w[:, 1] = np.iinfo(x.dtype).max, 127, -128  # sums that saturate in 16 bits

    def function(b, x):
        return b.MatMulInteger(x, b.constant(w), *map(b.constant, zeros))

    graph, arrays = build(function, x=x)
    program = program_for(graph, CpuLike(mcpu=mcpu))
    assert instructions_of(program) == {instruction}
    (given,) = interpret_program(program, arrays)
    a, b = (v.astype(np.int64) - int(z) for v, z in zip((x, w), zeros))
    np.testing.assert_array_equal(given, a @ b)
