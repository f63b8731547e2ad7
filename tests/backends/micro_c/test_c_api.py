"""The C API: every refusal has a status, memory may live in the arena, hooks see every layer."""

from __future__ import annotations

import shutil
import zlib

import numpy as np
import pytest
from bundles import SANITISED, STRICT, checked, micro_program, model_of, reference
from onnx import TensorProto, helper

from graphc import driver
from graphc.backends.cfamily.names import bundle_name
from graphc.backends.micro_c import BundleOptions, write_bundle
from graphc.backends.micro_c.cpus import CPUS
from graphc.backends.micro_c.float16_weights import half_weights
from graphc.errors import UnsupportedError

ARM = "arm-none-eabi-gcc"
RNG = np.random.default_rng(4)
X = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)


def network(*more):
    """A convolution, a pool, and a dense layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="second"),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"], name="last"),
        *more,
    ]
    weights = {
        "w": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "v": RNG.standard_normal((64, 5)).astype(np.float32),
    }
    inputs = {"x": (TensorProto.FLOAT, X.shape)}
    return model_of(nodes, inputs, {"y": (TensorProto.FLOAT, [1, 5])}, weights)


MODEL = network()
EXPECTED = reference(MODEL, [X])[0]
MAIN = """
#include "net.h"
#include <stdio.h>
#include <string.h>
static float x[] = {%s};
static double storage[NET_ARENA_SIZE / 8 + 4];
%s
int main(void)
{
    uint8_t *arena = (uint8_t *)storage;
    static float y[NET_OUTPUT_y_SIZE];
    net_inputs in;
    net_outputs out;
    net_status status;
    in.x = x;
    out.y = y;
    while ((uintptr_t)arena %% NET_ARENA_ALIGN != 0) {
        ++arena;
    }
%s
    return 0;
}
"""


def run(folder, body, declared="", options=None, program=None, flags=()):
    """Compiles a bundle with a main of its own, strictly and with sanitisers; what it prints."""
    program = program or micro_program(MODEL)
    write_bundle(program, folder, options or BundleOptions(name="net"))
    values = ",".join(f"{v!r}f" for v in X.reshape(-1).tolist())
    (folder / "main.c").write_text(MAIN % (values, declared, body))
    sources = sorted(p.name for p in folder.iterdir() if p.suffix in (".c", ".S"))
    command = ["gcc", "-std=c99", "-O1", *STRICT, *SANITISED, *flags, *sources, "-lm", "-o", "main"]
    checked(command, folder)
    return checked(["./main"], folder)


def printed(text):
    return np.array([float(word) for word in text.split()], np.float32)


SHOW = 'for (int i = 0; i < NET_OUTPUT_y_SIZE; ++i) printf("%.9g ", (double){0}[i]);'


REFUSALS = [
    ("", "OK"),
    ("out.y = 0;", "NULL_POINTER"),
    ("in.x = 0;", "NULL_POINTER"),
    ("memory = 0;", "NULL_POINTER"),
    ("memory += 4;", "MISALIGNED"),
    ("in.x = (const float *)(const void *)((const char *)x + 1);", "MISALIGNED"),
    ("out.y = x + 100;", "OVERLAP"),
    ("out.y = x + 192;", "OK"),
    ("out.y = (float *)(void *)(arena + NET_ARENA_SIZE - 4);", "OVERLAP"),
    ("in.x = (float *)(void *)arena;", "OVERLAP"),
]


def test_every_refusal_has_a_status(tmp_path):
    body = 'status = net_run(0, &out, arena); printf("%d ", status == NET_NULL_POINTER);'
    body += 'status = net_run(&in, 0, arena); printf("%d ", status == NET_NULL_POINTER);'
    for change, expected in REFUSALS:
        body += f"{{ uint8_t *memory = arena; in.x = x; out.y = y; {change}"
        body += "status = net_run(&in, &out, memory);"
        body += f'printf("%d %s\\n", status == NET_{expected}, net_status_string(status)); }}\n'
    lines = run(tmp_path, body.replace("x + 192", "beyond"), "static float beyond[5];").splitlines()
    assert all(line[0] == "1" and len(line) > 3 for line in lines), lines
    assert len(lines) == len(REFUSALS)


@pytest.mark.parametrize("place", ["arena", "caller", "whole"])
def test_tensors_that_live_in_the_arena(place, tmp_path):
    program = driver.program_for(driver.typed(MODEL), "c", io="arena")
    assert set(program.resident) == {("input", 0), ("output", 0)}
    bodies = {
        "whole": "memcpy(net_input_ptr(arena), x, sizeof x); status = net_run(0, 0, arena);"
        + SHOW.format("net_output_ptr_y(arena)"),
        "arena": "memcpy(net_input_ptr_x(arena), x, sizeof x); in.x = 0; out.y = 0;"
        "status = net_run(&in, &out, arena);" + SHOW.format("net_output_ptr(arena)"),
        "caller": "status = net_run(&in, &out, arena);" + SHOW.format("y"),
    }
    text = run(tmp_path, bodies[place] + "(void)status; (void)in; (void)out;", program=program)
    np.testing.assert_allclose(printed(text), EXPECTED[0], rtol=1e-4, atol=1e-5)


def test_memory_in_the_arena_is_shared_with_the_layers():
    apart = micro_program(MODEL)
    together = driver.program_for(driver.typed(MODEL), "c", io="arena")
    assert together.arena_bytes < apart.arena_bytes + X.nbytes + EXPECTED.nbytes


@pytest.mark.parametrize("resident", [False, True])
def test_traces_are_those_of_zlib(resident, tmp_path):
    program = driver.program_for(driver.typed(MODEL), "c", io="arena" if resident else "caller")
    declared = """
    void net_trace(int layer, const char *name, uint32_t crc)
    { printf("trace %d %08lx %s\\n", layer, (unsigned long)crc, name); }
    void net_profile(int layer, const char *name, int done)
    { if (done) printf("after %d %s\\n", layer, name); }
    """
    body = "status = net_run(&in, &out, arena); (void)status;"
    body += 'printf("bytes"); for (unsigned i = 0; i < sizeof(y); ++i)'
    body += ' printf(" %u", ((const unsigned char *)y)[i]);'
    flags = ["-DNET_TRACE", "-DNET_PROFILE"]
    lines = run(tmp_path, body, declared, program=program, flags=flags).splitlines()
    traces = [line.split(maxsplit=3) for line in lines if line.startswith("trace")]
    assert [int(t[1]) for t in traces] == list(range(-1, len(program.steps)))
    assert traces[0][3] == "x" and int(traces[0][2], 16) == zlib.crc32(X.tobytes())
    assert sum(line.startswith("after") for line in lines) == len(program.steps)
    contents = bytes(map(int, lines[-1].split()[1:]))
    assert int(traces[-1][2], 16) == zlib.crc32(contents)
    assert any(t[3] == "first" for t in traces)


@pytest.mark.parametrize("form", ["incbin", "bin"])
def test_constants_in_a_binary_file(form, tmp_path):
    options = BundleOptions(name="net", weights_as=form)
    declared = ""
    if form == "bin":
        write_bundle(micro_program(MODEL), tmp_path, options)
        data = (tmp_path / "net_weights.bin").read_bytes()
        assert len(data) < sum(a.nbytes + 16 for a in micro_program(MODEL).constants)
        values = ",".join(map(str, data))
        declared = (
            "__attribute__((aligned(16))) extern const uint8_t net_weights[];\n"
            f"__attribute__((aligned(16))) const uint8_t net_weights[] = {{{values}}};"
        )
    body = "status = net_run(&in, &out, arena); (void)status;" + SHOW.format("y")
    text = run(tmp_path, body, declared, options)
    np.testing.assert_allclose(printed(text), EXPECTED[0], rtol=1e-4, atol=1e-5)


def test_text_of_constants_is_about_four_bytes_each(tmp_path):
    program = micro_program(MODEL)
    files = write_bundle(program, tmp_path, BundleOptions(name="net"))
    text = files["net_weights.c"]
    assert len(text) < 1500 + 4.2 * sum(a.nbytes for a in program.constants)


def test_halves(tmp_path):
    whole = micro_program(MODEL)
    program = half_weights(whole)
    assert {a.dtype for a in program.constants if a.size >= 64} == {np.dtype(np.float16)}
    body = "status = net_run(&in, &out, arena); (void)status;" + SHOW.format("y")
    text = run(tmp_path, body, program=program)
    np.testing.assert_allclose(printed(text), EXPECTED[0], rtol=3e-2, atol=3e-2)
    assert abs(printed(text) - EXPECTED[0]).max() > 0


def test_halves_leave_what_they_cannot_hold():
    program = micro_program(MODEL)
    program.constants = [a * np.float32(1e6) for a in program.constants]
    assert half_weights(program).constants[0].dtype == np.float32


# ---------------------------------------------------------------- libm


def unary(*ops):
    nodes = [helper.make_node(op, [f"t{n}"], [f"t{n + 1}"]) for n, op in enumerate(ops)]
    last = f"t{len(ops)}"
    kind = (TensorProto.FLOAT, [40])
    return model_of(nodes, {"t0": kind}, {last: kind})


@pytest.mark.parametrize("ops", [("Floor",), ("Ceil",), ("Sqrt",), ("Abs", "Sqrt"), ("Exp",),
                                 ("Tanh", "Erf"), ("Round",)])  # fmt: skip
def test_without_libm(ops, tmp_path):
    model = unary(*ops)
    data = (RNG.standard_normal(40) * 3).astype(np.float32)
    data[:6] = [0, -0.0, 1e9, -1e9, np.inf, np.nan]
    samples = ([data], reference(model, [data]))
    options = BundleOptions(name="net", libm=False, samples=samples, tolerance=1e-5)
    write_bundle(micro_program(model), tmp_path, options)
    sources = ["net.c", "net_weights.c", "net_test.c"]
    checked(["gcc", "-std=c99", "-O0", *STRICT, *SANITISED, *sources, "-lm", "-o", "t"], tmp_path)
    checked(["./t"], tmp_path)
    checked(["gcc", "-std=c99", "-O0", "-c", "net.c"], tmp_path)
    undefined = [line.split()[-1] for line in checked(["nm", "-u", "net.o"], tmp_path).splitlines()]
    assert not [name for name in undefined if not name.startswith(("net_w", "mem"))]


def test_what_needs_libm_is_refused():
    with pytest.raises(UnsupportedError, match="sinf.*libm"):
        from graphc.backends.micro_c import bundle

        bundle(micro_program(unary("Sin")), BundleOptions(libm=False))


# ---------------------------------------------------------------- names

HOSTILE = [
    "run", "status", "w0", "weights", "inputs", "*/", "*\\", "a\\\nb", "??/", "é?/", "%s", "\"",
    "while", "int32_t", "/" * 300, "x" * 300, "日本", "a b", "a_b", "a/b", "",
]  # fmt: skip


@pytest.mark.parametrize("language", [["-std=c99"], ["-x", "c++", "-std=c++17"]])
def test_hostile_names(language, tmp_path):
    nodes, last = [], "x*/\\"
    for n, name in enumerate(HOSTILE):
        output = f"{name}{n}" if n < len(HOSTILE) - 1 else "int"
        nodes.append(helper.make_node("MatMul", [last, f"k{n}"], [output], name=name))
        last = f"s{output}"
        nodes.append(helper.make_node("Softmax", [output], [last], name=name, axis=n % 2))
    weights = {f"k{n}": np.eye(4, dtype=np.float32) + n for n in range(len(HOSTILE))}
    shape = (TensorProto.FLOAT, [3, 4])
    model = model_of(nodes, {"x*/\\": shape}, {last: shape, "int": shape}, weights)
    write_bundle(micro_program(model), tmp_path, BundleOptions(name="bad"))
    for source in ("bad.c", "bad_weights.c"):
        flags = ["-Wno-overlength-strings", "-DBAD_TRACE", "-DBAD_PROFILE", "-DBAD_STATIC_ARENA"]
        command = ["gcc", *language, "-O1", *STRICT, "-trigraphs", *flags, "-c", source]
        checked(command, tmp_path)


def test_names_of_files_hide_no_header_of_c():
    names = ("math", "Float", "", "日本", "3d", "while", "a" * 99, "x_f32", "test")
    assert [bundle_name(name) for name in names] == [
        "math_model", "Float_model", "model", "model", "v3d", "while", "a" * 40, "x_f32",
        "test_model",
    ]  # fmt: skip


@pytest.mark.skipif(not shutil.which(ARM), reason=f"{ARM} is not installed")
@pytest.mark.parametrize("half", [[], ["-mfp16-format=ieee"]], ids=["plain", "fp16"])
def test_halves_are_converted_by_instructions_where_there_are_some(half, tmp_path):
    write_bundle(half_weights(micro_program(MODEL)), tmp_path, BundleOptions(name="net"))
    flags = [*CPUS["cortex-m4"].flags, "-std=c99", "-O2", *STRICT, *half]
    checked([ARM, *flags, "-S", "net.c"], tmp_path)
    assert ("vcvtb" in (tmp_path / "net.s").read_text()) == bool(half)
