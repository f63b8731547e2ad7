"""Bundles give the same results whatever flags they are compiled with, or refuse them.

Every scalar operation and a few models are compiled with sets of flags on this machine, for 32-bit
x86 too, and run on emulated boards. Integers must be equal bit for bit. Floats are compared with
what scalar/ops.py says, within what test_scalar_ops.py accepts at the usual flags, and models with
their own results at the usual flags.

With GRAPHC_ALL_FLAGS=1 operations are tested on all types, with more sets and every board.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import numpy as np
import pytest
from bundles import checked, micro_program, model_of, reference
from flags import Flagged
from onnx import TensorProto, helper
from quantised_models import QuantisedModel
from scalar_cases import NUMBERS, Case, Table, cases, mismatch, operands

from graphc import driver
from graphc.backends.cfamily.float_rules import FLAGS
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c import bundle as files_of
from graphc.backends.micro_c.boards import BOARDS
from graphc.backends.micro_c.emulator import run_on_board
from graphc.ir.dtypes import boolean
from graphc.ir.interp import interpret
from graphc.ir.scalar import ops as scalar_ops
from graphc.ir.scalar.ops import TABLE

ALL = bool(os.environ.get("GRAPHC_ALL_FLAGS"))
REORDERED = "-fassociative-math -freciprocal-math -fno-signed-zeros -fno-trapping-math"
SETS = {  # compiler, flags that all files get, those of the code
    "Ofast": ("gcc", "", "-Ofast -fno-finite-math-only -march=native"),
    "reordered": ("gcc", "", f"-O2 {REORDERED} -fsingle-precision-constant"),
    "unsafe": ("gcc", "", "-Os -funsafe-math-optimizations -ffp-contract=fast -flto"),
    "undefined": ("gcc", "-fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all",
                  "-O0"),
    "odd": ("gcc", "-funsigned-char -fshort-enums", "-O3 -frounding-math -ftrapping-math"),
    "x87": ("gcc", "-m32", "-O2 -mfpmath=387 -funsafe-math-optimizations"),
    "C++": ("g++ -x c++", "", "-O1 -funsafe-math-optimizations"),
    "clang": ("clang", "", "-Ofast -fno-finite-math-only"),
}  # fmt: skip
MORE = {
    "x87 in C99": ("gcc", "-m32", "-O1 -std=c99 -mfpmath=387"),
    "no flags": ("gcc", "", ""),
    "x87 at most": ("gcc", "-m32", "-Ofast -fno-finite-math-only -mfpmath=387"),
    "SSE of 32 bits": ("gcc", "-m32 -msse2", "-Ofast -mfpmath=sse -fno-finite-math-only"),
    "clang, unsafe": ("clang", "", "-O2 -funsafe-math-optimizations"),
}
QUICK = {"f16", "f32", "f64", "u8", "i32"}
TYPES = {t for t in (*NUMBERS, boolean) if ALL or t.name in QUICK} | {boolean}
SOME_BOARDS = list(BOARDS) if ALL else ["mps2-an386", "riscv32-virt"]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc not installed")


def usable(compiler: str, flags: str) -> bool:
    """Whether a compiler is there and links for what the flags say."""
    program = shutil.which(compiler.split()[0])
    if program is None:
        return False
    command = [program, *flags.split(), "-x", "c", "-", "-o", os.devnull]
    text = '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n'
    return subprocess.run(command, input=text, text=True, capture_output=True).returncode == 0


@pytest.fixture(params=[*SETS, *MORE] if ALL else list(SETS))
def flags(request) -> tuple[list[str], list[str], list[str]]:
    """A compiler that is there, flags of all files, flags of the code."""
    compiler, linked, code = {**SETS, **MORE}[request.param]
    if not usable(compiler, linked):
        pytest.skip(f"`{compiler} {linked}` makes no programs here")
    return compiler.split(), linked.split(), code.split()


# ---------------------------------------------------------------- every scalar operation


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> tuple[Table, Flagged]:
    chosen = [case for case in cases() if {*case[1], case[2]} <= TYPES]
    table = Table(chosen)
    return table, Flagged(table.program, tmp_path_factory.mktemp("table"))


def test_every_operation(table, flags):
    operations, bundle = table
    compiler, linked, code = flags
    wider = "-mfpmath=387" in code
    done = bundle.compile(compiler, code, linked)
    assert done.returncode == 0, done.stderr[:2000]
    results = operations.results(bundle.run(operations.feeds))
    wrong = []
    for case, result in results.items():
        op, types, target = case
        expected = scalar_ops.apply(TABLE[op], target, *operands(types))
        problem = mismatch(result, expected, operands(types), case)
        if problem and (op == "fma" or op == "div" and wider):  # may be more precise
            problem = in_wider_floats(case, result)
        wrong += [problem] if problem else []
    assert not wrong, "\n".join(wrong[:10])


def in_wider_floats(case: Case, result: np.ndarray) -> str | None:
    """As `mismatch`, of what is computed in more bits and then rounded."""
    op, types, target = case
    with np.errstate(all="ignore"):
        values = [x.astype(np.float32 if x.itemsize < 4 else x.dtype) for x in operands(types)]
        values = [x.astype(np.longdouble) for x in values]
        expected = scalar_ops.TABLE[op].numpy(*values).astype(target.np)
    rounded_twice = np.nextafter(expected, result) == result if target.bits >= 32 else False
    return mismatch(np.where(rounded_twice, expected, result), expected, operands(types), case)


# ---------------------------------------------------------------- models


def float_model():
    """What rounds by way of large numbers, and what needs NaN and infinity."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["softmax"], axis=1),
        helper.make_node("Round", ["x"], ["rounded"]),
        helper.make_node("Tanh", ["x"], ["tanh"]),
        helper.make_node("Erf", ["x"], ["erf"]),
        helper.make_node("Sigmoid", ["x"], ["sigmoid"]),
        helper.make_node("LogSoftmax", ["x"], ["logsoftmax"], axis=1),
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["quantised"]),
        helper.make_node("Div", ["x", "three"], ["thirds"]),
        helper.make_node("Cast", ["thirds"], ["whole"], to=TensorProto.INT32),
        helper.make_node("IsNaN", ["x"], ["nan"]),
        helper.make_node("IsInf", ["x"], ["infinite"]),
        helper.make_node("Clip", ["x", "low", "high"], ["clipped"]),
        helper.make_node("ReduceMax", ["x", "axes"], ["largest"]),
    ]
    types = {
        "quantised": TensorProto.INT8, "whole": TensorProto.INT32, "nan": TensorProto.BOOL,
        "infinite": TensorProto.BOOL,
    }  # fmt: skip
    outputs = {
        name: (types.get(name, TensorProto.FLOAT), None)
        for node in nodes for name in node.output if name != "thirds"
    }  # fmt: skip
    constants = {
        "scale": np.float32(0.1), "zero": np.int8(3), "three": np.float32(3), "low": np.float32(-4),
        "high": np.float32(5), "axes": np.array([1]),
    }  # fmt: skip
    ordinary = np.concatenate([np.arange(-9, 9, 0.5), np.random.default_rng(0).normal(0, 4, 28)])
    rows = [ordinary, ordinary * 12, ordinary.copy(), ordinary.copy()]
    rows[2][[3, 9, 30]] = np.inf, -np.inf, 88.7
    rows[3][[0, 7, 33]] = np.nan, -0.0, 1e30
    x = np.array(rows, np.float32)
    model = model_of(nodes, {"x": (TensorProto.FLOAT, x.shape)}, outputs, constants)
    return model, [x]


def integer_model():
    """A convolution and a softmax of bytes."""
    quantised = QuantisedModel()
    x = quantised.activation((1, 8, 6, 7))
    parameters = quantised.weights((6, 8, 3, 3)), quantised.weights((6,), bits=32)
    y = quantised.quantise(quantised.node("Conv", x, *parameters, pads=[1, 1, 1, 1]))
    again = quantised.dequantise(y, 0.1, -5)
    last = quantised.quantise(quantised.node("Softmax", again, axis=1), 1 / 256, -128)
    return quantised.build(y, last), quantised.feeds


MODELS = {"floats": float_model, "bytes": integer_model}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict:
    """Of every model its bundle, its inputs, and its outputs at the usual flags."""
    made = {}
    for name, make in MODELS.items():
        model, feeds = make()
        bundle = Flagged(micro_program(model), tmp_path_factory.mktemp(name))
        done = bundle.compile(["gcc"], ["-O2"])
        assert done.returncode == 0, done.stderr[:2000]
        made[name] = bundle, feeds, bundle.run(feeds)
    _, feeds, usual = made["floats"]
    same(interpret(driver.typed(float_model()[0]), feeds), usual, tolerance=1e-5)
    return made


def same(wanted, found, tolerance=3e-6):
    """Integers are equal, floats close, NaN and infinity where they should be."""
    for a, b in zip(wanted, found, strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


@needs_gcc
@pytest.mark.parametrize("name", MODELS)
def test_models(bundles, name, flags):
    bundle, feeds, usual = bundles[name]
    compiler, linked, code = flags
    done = bundle.compile(compiler, code, linked)
    assert done.returncode == 0, done.stderr[:2000]
    same(usual, bundle.run(feeds))


@pytest.mark.parametrize("board", SOME_BOARDS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("code", ["-Ofast -fno-finite-math-only", f"-O2 {REORDERED}"])
def test_boards(bundles, name, board, code):
    if BOARDS[board].tools.missing():
        pytest.skip(f"{BOARDS[board].tools.missing()} not installed")
    bundle, feeds, usual = bundles[name]
    options = BundleOptions(cpu=BOARDS[board].cpu)
    program = micro_program(MODELS[name]()[0], BOARDS[board].cpu)
    same(usual, run_on_board(program, feeds, BOARDS[board], options, flags=code.split()).outputs)


# ---------------------------------------------------------------- what is refused


@needs_gcc
@pytest.mark.parametrize("refused", ["-Ofast", "-ffast-math", "-O1 -ffinite-math-only"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_finite_math_is_refused(bundles, compiler, refused):
    if not usable(compiler, ""):
        pytest.skip(f"{compiler} not installed")
    bundle, feeds, usual = bundles["floats"]
    done = bundle.compile([compiler], refused.split())
    assert done.returncode and f"Add {FLAGS} for this file" in done.stderr
    done = bundle.compile([compiler], [*refused.split(), *FLAGS.split()])
    assert done.returncode == 0, done.stderr
    same(usual, bundle.run(feeds))


@needs_gcc
def test_integers_take_any_flags(bundles):
    bundle, feeds, usual = bundles["bytes"]
    assert bundle.compile(["gcc"], ["-Ofast"], ["-Ofast"]).returncode == 0
    same(usual, bundle.run(feeds))


@needs_gcc
def test_the_test_of_a_bundle_sees_nan(tmp_path):
    """NAME_test.c does not take NaN for a number, and is refused where it could not tell."""
    model, feeds = float_model()
    program = micro_program(model)
    wanted = reference(model, feeds)
    wanted[0] = np.zeros_like(wanted[0])
    write_bundle(program, tmp_path, BundleOptions(name="net", samples=(feeds, wanted)))
    sources = ["net.c", "net_weights.c", "net_test.c", "-lm", "-o", "net_test"]
    for code in ("-O2", "-Ofast -fno-finite-math-only"):
        checked(["gcc", "-w", *code.split(), *sources], tmp_path)
        done = subprocess.run(["./net_test"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and "softmax: largest error inf, FAILED" in done.stdout
    done = subprocess.run(
        ["gcc", "-w", "-Ofast", "-c", "net_test.c"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode and FLAGS in done.stderr


# ---------------------------------------------------------------- files of constants, build files


@needs_gcc
def test_constants_keep_their_digits(tmp_path):
    """Doubles are no floats, whatever flags the file of constants gets."""
    weights = np.random.default_rng(1).normal(size=40)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    kind = TensorProto.DOUBLE, [40]
    model = model_of([node], {"x": kind}, {"y": kind}, {"w": weights})
    bundle = Flagged(micro_program(model), tmp_path)
    done = bundle.compile(["gcc"], [], ["-O2", "-fsingle-precision-constant"])
    assert done.returncode == 0, done.stderr
    x = np.arange(40.0)
    np.testing.assert_array_equal(bundle.run([x])[0], x * weights)


@needs_gcc
def test_little_endian_weights_are_refused_elsewhere(bundles, tmp_path):
    program = bundles["bytes"][0].program
    for kind in ("bin", "incbin"):
        write_bundle(program, tmp_path, BundleOptions(name="net", weights_as=kind))
        big = ["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"]
        for flags, ends in ((big, 1), ([], 0)):
            command = ["gcc", "-w", *flags, "-fsyntax-only", "net.c"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == ends, done.stderr
            assert not ends or "little-endian" in done.stderr


def test_build_files_and_pages_say_so(bundles):
    for name, (bundle, _, _) in bundles.items():
        files = files_of(bundle.program, BundleOptions(name="net"))
        floats = name == "floats"
        assert (";".join(FLAGS.split()) in files["CMakeLists.txt"]) == floats
        assert (f"Add `{FLAGS}`" in files["README.md"]) == floats
        assert ("#error" in files["net.c"]) == floats


@needs_gcc
def test_cmake_takes_fast_floats_back(bundles, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("cmake not installed")
    write_bundle(bundles["floats"][0].program, tmp_path, BundleOptions(name="net"))
    checked(["cmake", "-DCMAKE_C_COMPILER=gcc", "-DCMAKE_C_FLAGS=-Ofast", "-Bout"], tmp_path)
    checked(["cmake", "--build", "out"], tmp_path)
