"""Sums over blocks of bytes times packed codes: right on every machine, at any size."""

import numpy as np
import onnx
import pytest
from differential import build, check, interpret_program, program_of
from onnx import helper, numpy_helper

import graphc
from graphc.backends.llvm_cpu.codegen import compile_program, llvm_text
from graphc.backends.llvm_cpu.runtime import NativeModel
from graphc.backends.llvm_cpu.target import host_target, named_target
from graphc.ir.instructions import DOT4_CODES
from graphc.ir.interp import interpret
from graphc.ir.kernel import Intrin, walk_stmts
from graphc.ir.ops.helpers import RUNTIME

MACHINES = (0, 16, 32, 64)


def product(rows, depth, columns, *, bits=4, size=32, zeros=False, bias=False, outer=()):
    """The graph of a product with random codes, the extremes among them, and its operand."""
    rng = np.random.default_rng(rows * depth + columns)
    blocks, per_byte = -(-depth // size), 8 // bits
    codes = rng.choice([0, 255, *rng.integers(0, 256, 6)], (columns, blocks, size // per_byte))
    scales = rng.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    points = rng.integers(0, 256, (columns, -(-blocks // per_byte))).astype(np.uint8)
    added = rng.standard_normal(columns).astype(np.float32)

    def function(b, x):
        return b.op(
            "MatMulNBits", x, b.constant(codes.astype(np.uint8)), b.constant(scales),
            b.constant(points) if zeros else None, None, b.constant(added) if bias else None,
            domain=RUNTIME, K=depth, N=columns, block_size=size, bits=bits,
            accuracy_level=4,
        )  # fmt: skip

    x = rng.standard_normal((*outer, rows, depth)).astype(np.float32)
    return build(function, x=x)


def uses_instruction(program) -> bool:
    stmts = [s for k in program.kernels.values() for s in walk_stmts(k.body)]
    return any(isinstance(s, Intrin) and s.name == DOT4_CODES for s in stmts)


@pytest.mark.parametrize(
    "rows, depth, columns", [(1, 70, 37), (2, 64, 5), (3, 96, 16), (7, 64, 130), (40, 64, 35)]
)
@pytest.mark.parametrize("bits, zeros", [(4, False), (4, True), (8, True), (2, True)])
def test_products(rows, depth, columns, bits, zeros):
    graph, arrays = product(rows, depth, columns, bits=bits, zeros=zeros, bias=zeros)
    machines = MACHINES if rows == 3 else (64,)
    program = check(graph, arrays, machines, interpreted=(64,) if rows < 7 else ())
    assert uses_instruction(program)


@pytest.mark.parametrize("size", [16, 64, 128, 256])
def test_sizes_of_blocks(size):
    graph, arrays = product(3, 2 * size + 30, 20, size=size, zeros=True)
    assert uses_instruction(check(graph, arrays, (64,), interpreted=(64,)))


def test_one_block():
    graph, arrays = product(2, 32, 20, zeros=True, outer=(2, 3))
    check(graph, arrays, MACHINES, interpreted=(64,))


def test_scales_known_at_run_time():
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 256, (37, 3, 16)).astype(np.uint8)
    attrs = {"K": 96, "N": 37, "block_size": 32, "accuracy_level": 4}
    x, scales = (rng.uniform(0.1, 1, shape).astype(np.float32) for shape in ((3, 96), (37, 3)))
    graph, arrays = build(
        lambda b, x, s: b.op("MatMulNBits", x, b.constant(codes), s, domain=RUNTIME, **attrs),
        x=x, s=scales,
    )  # fmt: skip
    assert uses_instruction(check(graph, arrays, (64, 16), interpreted=(64,)))


def test_activations_and_residuals_join_the_kernel():
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 256, (48, 2, 16)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (48, 2)).astype(np.float32)

    def function(b, x, y):
        attrs = {"K": 64, "N": 48, "block_size": 32, "accuracy_level": 4}
        weights = b.constant(codes), b.constant(scales)
        return b.Relu(b.Add(b.op("MatMulNBits", x, *weights, domain=RUNTIME, **attrs), y))

    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 64), (5, 48)))
    graph, arrays = build(function, x=x, y=y)
    program = check(graph, arrays, (64,), interpreted=(64,))
    assert uses_instruction(program)
    assert [s.kernel for s in program.steps][-1].startswith("contract")


@pytest.mark.skipif(host_target().arch != "x86_64", reason="names x86 instruction sets")
@pytest.mark.parametrize("target", ["scalar", "sse", "avx2", "avx512", "host"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_form_of_the_instruction(target, bits):
    cpu = named_target(target)
    graph, arrays = product(5, 64, 16 + 16 + 11, bits=bits, zeros=True)
    program = program_of(graph, cpu.vector_bits // 8)
    assert uses_instruction(program)
    text = llvm_text(program, cpu)
    assert ("vpdpbusd" in text) == bool({"avx512vnni", "avxvnni"} & cpu.features)
    if not cpu.runs_here:
        pytest.skip(f"this CPU has no {target}")
    (expected,) = interpret(graph, arrays)
    scale = np.abs(expected).max()
    for (found,) in (NativeModel(compile_program(program, cpu), 1)(arrays),
                     interpret_program(program, arrays)):  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=1e-6 * scale)


def test_rows_known_at_run_time():
    weights = np.random.default_rng(3).integers(0, 256, (40, 3, 16)).astype(np.uint8)
    scales = np.full((40, 3), 0.1, np.float32)

    attrs = {"K": 96, "N": 40, "block_size": 32, "accuracy_level": 4}
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[rows, 96] x) => (float[rows, 40] y) {}""")
    names = ["x", "codes", "scales"]
    node = helper.make_node("MatMulNBits", names, ["y"], domain=RUNTIME, **attrs)
    model.graph.node.append(node)
    constants = zip((weights, scales), names[1:])
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for x, name in constants)
    whole = graphc.compile(model, threads=1, specialise="any", dims={"rows": (1, 90)})
    for rows in (1, 2, 5, 13, 90):
        x = np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32)
        np.testing.assert_allclose(
            whole.run(x)[0], graphc.compile(model, threads=1).run(x)[0], rtol=1e-5, atol=1e-5
        )
    assert len(whole.executables()) == 1
