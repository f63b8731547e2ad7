"""Code for other processors and platforms: objects are read, and run where an emulator is there."""

import json
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from installed import needs
from onnx import numpy_helper
from quantised_models import QuantisedModel

import graphc
from graphc import dsl
from graphc.backends.llvm_cpu import aot
from graphc.backends.llvm_cpu.codegen import llvm_text
from graphc.backends.llvm_cpu.jit import assembly
from graphc.backends.llvm_cpu.target import cross_target, target_machine
from graphc.backends.llvm_cpu.triples import PLATFORMS, platform_of
from graphc.cli import main as cli
from graphc.driver import program_for, typed
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend.onnx_import import import_onnx
from graphc.targets.cpu import Cpu

DIGITS = Path(__file__).parents[3] / "models" / "digits_cnn.onnx"


RUNS = [
    pytest.param("aarch64-linux-gnu", "cortex-a53",
                 marks=needs("qemu-aarch64", "aarch64-linux-gnu-gcc")),
    pytest.param("aarch64-linux-gnu", "cortex-a76",
                 marks=needs("qemu-aarch64", "aarch64-linux-gnu-gcc")),
    pytest.param("aarch64-linux-gnu", "neoverse-n2",
                 marks=needs("qemu-aarch64", "aarch64-linux-gnu-gcc")),
    pytest.param("riscv64-linux-gnu", "rv64gc",
                 marks=needs("qemu-riscv64", "riscv64-linux-gnu-gcc")),
    pytest.param("riscv64-linux-gnu", "rv64gcv",
                 marks=needs("qemu-riscv64", "riscv64-linux-gnu-gcc")),
    pytest.param("riscv64-linux-gnu", "rv64gcv-zvl256b",
                 marks=needs("qemu-riscv64", "riscv64-linux-gnu-gcc")),
    pytest.param("armv7-linux-gnueabihf", "cortex-a7",
                 marks=needs("qemu-arm", "arm-linux-gnueabihf-gcc")),
    pytest.param("wasm32-unknown-unknown", "simd128", marks=needs("node", "wasm-ld")),
    pytest.param("wasm32-unknown-unknown", "relaxed-simd", marks=needs("node", "wasm-ld")),
    pytest.param("host", "", marks=needs("cc")),
]  # fmt: skip


W = np.random.default_rng(1).standard_normal((12, 19)).astype(np.float32)
UNARY = [
    "Exp", "Log", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh",
    "Acosh", "Atanh", "Erf", "Sqrt", "Floor", "Ceil", "Round",
]  # fmt: skip


@dsl.graph
def layers(x: dsl.f32["N: 1..6", 12], k: dsl.i64["N", 12]):  # noqa: F722, F821
    h = dsl.Softmax(dsl.Gelu(x @ W), axis=-1)
    halves = dsl.Cast(dsl.Cast(x, to=10), to=1)  # by float16
    return h, dsl.ReduceMax(halves, [1]), dsl.Mod(k, np.int64(7)), dsl.Div(k, np.int64(-3))


@dsl.graph
def looked_up(x: dsl.f32[9, 3], k: dsl.i64["N: 1..6"]):  # noqa: F722
    return dsl.Gather(x, k)


def functions_of(dtype):
    kind = dsl.f64 if dtype == np.float64 else dsl.f32

    @dsl.graph
    def functions(x: kind[37], y: kind[37]):
        return *(getattr(dsl, name)(x) for name in UNARY), dsl.Pow(x, y), dsl.Mod(x, y, fmod=1)

    return functions


def bytes_model():
    model = QuantisedModel()
    product = model.node("MatMul", model.activation((6, 37)), model.weights((37, 21), None))
    return import_onnx(model.build(model.quantise(product)))


# ---------------------------------------------------------------- what there is


@pytest.mark.parametrize(
    "spelt, name",
    [
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
        ("arm64-linux-gnu", "aarch64-linux-gnu"),
        ("aarch64-apple-darwin23.1.0", "arm64-apple-macos"),
        ("arm64-apple-macos13", "arm64-apple-macos"),
        ("x86_64-pc-windows-msvc", "x86_64-windows-msvc"),
        ("amd64-unknown-linux-musl", "x86_64-linux-musl"),
        ("riscv64gc-unknown-linux-gnu", "riscv64-linux-gnu"),
        ("riscv64-unknown-elf", "riscv64-none-elf"),
        ("arm-linux-gnueabihf", "armv7-linux-gnueabihf"),
        ("wasm32", "wasm32-unknown-unknown"),
    ],
)
def test_spellings_of_triples(spelt, name):
    assert platform_of(spelt).name == name


def test_names_that_are_not_known():
    with pytest.raises(ModelError, match=r"'aarch64-linux-gnuu'.*did you mean 'aarch64-linux-gnu'"):
        platform_of("aarch64-linux-gnuu")
    with pytest.raises(ModelError, match=r"'vax-vms'.*there are x86_64-linux-gnu, "):
        platform_of("vax-vms")
    with pytest.raises(ModelError, match=r"mcpu 'cortex-a67'.*did you mean 'cortex-a7"):
        cross_target("aarch64-linux-gnu", "cortex-a67")
    with pytest.raises(ModelError, match=r"of wasm32 is called so"):
        cross_target("wasm32", "cortex-a53")


def test_tables_are_of_what_llvm_knows(capfd):
    for platform in PLATFORMS.values():
        table = platform.architecture
        for name in (*table.levels, *table.cpus):
            target_machine(cross_target(platform.name, name))
    assert capfd.readouterr().err == ""  # where LLVM tells of CPUs and features it does not know


def test_machines_differ():
    def machine(triple, mcpu=""):
        return Cpu(triple=triple, mcpu=mcpu).machine

    assert machine("x86_64-linux-gnu", "x86-64-v2").vector_bytes == 16
    assert machine("x86_64-linux-gnu", "x86-64-v4").vector_bytes == 64
    assert machine("riscv64-linux-gnu", "rv64gc").vector_bytes == 0
    assert machine("riscv64-linux-gnu", "rv64gcv-zvl256b").vector_bytes == 32
    assert machine("aarch64-linux-gnu").registers == 32
    assert machine("armv7-linux-gnueabihf").registers == 16


# ---------------------------------------------------------------- objects


def _weights():
    """Bytes of a constant of the model, as they are stored."""
    (bias,) = [i for i in onnx.load(DIGITS).graph.initializer if i.dims == [10]]
    return numpy_helper.to_array(bias).tobytes()


MACHINES = {"x86_64": 62, "aarch64": 183, "armv7": 40, "riscv64": 243}  # of ELF
COFF = {"x86_64": 0x8664, "aarch64": 0xAA64}
MACHO = {"x86_64": 0x01000007, "aarch64": 0x0100000C}


def global_symbols(data):
    """The names that an ELF object defines for others; its weak ones are hidden."""
    wide = data[4] == 2
    start = struct.unpack_from("<Q", data, 40)[0] if wide else struct.unpack_from("<I", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 58 if wide else 46)
    form, entry = ("<IIQQQQII", "<IBBHQQ") if wide else ("<IIIIIIII", "<IIIBBH")
    sections = [struct.unpack_from(form, data, start + n * size) for n in range(count)]
    (symbols,) = [s for s in sections if s[1] == 2]
    names, found = sections[symbols[6]][4], set()
    for at in range(symbols[4], symbols[4] + symbols[5], struct.calcsize(entry)):
        fields = struct.unpack_from(entry, data, at)
        info, section = (fields[1], fields[3]) if wide else (fields[3], fields[5])
        if info >> 4 == 1 and section:
            begin = names + fields[0]
            found.add(data[begin : data.index(b"\0", begin)].decode())
    return found


def check_format(data, platform):
    arch = platform.architecture.name
    if platform.format == "ELF":
        assert data[:4] == b"\x7fELF" and data[4] == platform.pointer_bits // 32
        assert struct.unpack_from("<HH", data, 16) == (1, MACHINES[arch])
    elif platform.format == "COFF":
        assert struct.unpack_from("<H", data)[0] == COFF[arch]
    elif platform.format == "Mach-O":
        assert struct.unpack_from("<II", data) == (0xFEEDFACF, MACHO[arch])
    else:
        assert data[:8] == b"\0asm\1\0\0\0"


@pytest.mark.parametrize("name", PLATFORMS)
def test_an_object_for_each_platform(tmp_path, name):
    platform = PLATFORMS[name]
    output = tmp_path / f"digits{platform.object_suffix}"
    command = ["compile", str(DIGITS), "--dim", "N=1", "--triple", name, "-o", str(output)]
    assert cli(command) == 0
    data = output.read_bytes()
    check_format(data, platform)
    header = (tmp_path / "digits.h").read_text()
    assert ("digits_create" in header) == platform.has_libc
    assert (b"digits_create" in data) == platform.has_libc
    assert b"digits_place" in data
    if platform.format == "ELF":
        seen = global_symbols(data)
        assert all(name.startswith("digits_") for name in seen) and "digits_run" in seen
    assert _weights() in data


def test_equal_models_give_equal_objects(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        output = str(tmp_path / folder / "digits.o")
        assert (
            cli(["compile", str(DIGITS), "--dim", "N=1", "--triple", "wasm32", "-o", output]) == 0
        )
    one, two = (tmp_path / folder / "digits.o" for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_files_that_a_platform_has_not(tmp_path, capsys):
    def said(triple, name):
        arguments = ["compile", str(DIGITS), "--dim", "N=1", "--triple", triple]
        assert cli([*arguments, "-o", str(tmp_path / name)]) == 2
        return capsys.readouterr().err

    assert "write .so, .a or .o" in said("aarch64-linux-gnu", "m.wasm")
    assert "write .wasm or .o" in said("wasm32", "m.so")
    assert "make an object file, m.obj" in said("x86_64-windows-msvc", "m.so")
    assert "write m.o" in said("arm64-apple-macos", "m.a")
    assert "for this machine" in said("aarch64-linux-gnu", "m.gcm")
    assert list(tmp_path.iterdir()) == []


def test_no_linker(tmp_path, capsys, monkeypatch):
    from graphc.backends.llvm_cpu import linking

    monkeypatch.setattr(linking, "_compilers", lambda platform: [])
    monkeypatch.setattr(linking, "_wasm_linkers", list)
    arguments = ["compile", str(DIGITS), "--dim", "N=1", "-o", str(tmp_path / "m.so")]
    assert cli([*arguments, "--triple", "riscv64-linux-gnu"]) == 2
    assert "apt-get install gcc-riscv64-linux-gnu" in capsys.readouterr().err
    assert cli([*arguments[:-1], str(tmp_path / "m.wasm"), "--triple", "wasm32"]) == 2
    assert "apt-get install lld, or pip install ziglang" in capsys.readouterr().err


# ---------------------------------------------------------------- instructions


def code_for(graph, triple, mcpu):
    target = Cpu(triple=triple, mcpu=mcpu)
    return llvm_text(program_for(typed(graph), target), target.cpu)


@pytest.mark.parametrize("triple", PLATFORMS)
def test_code_has_no_instructions_of_others(triple):
    own = {"x86_64": "x86", "aarch64": "aarch64", "armv7": "arm", "riscv64": "riscv",
           "wasm32": "wasm"}[PLATFORMS[triple].architecture.name]  # fmt: skip
    text = code_for(bytes_model(), triple, "")
    named = set(re.findall(r"@llvm\.(x86|aarch64|arm|riscv|wasm)\.", text))
    assert named <= {own}
    assert ("llvm.fma." in text) <= (own != "wasm")


def test_products_of_bytes():
    graph = bytes_model()
    assert "neon.sdot" in code_for(graph, "aarch64-linux-gnu", "cortex-a76")
    assert "neon.sdot" not in code_for(graph, "aarch64-linux-gnu", "cortex-a53")
    assert "wasm.dot" in code_for(graph, "wasm32", "")
    assert "vpdpbusd" in code_for(graph, "x86_64-linux-gnu", "avx512vnni")
    assert "pmadd.wd" in code_for(graph, "x86_64-linux-gnu", "x86-64-v2")


def test_relaxed_vectors_are_for_products_alone():
    """LLVM would take relaxed minima too, which may lose a NaN."""
    target = Cpu(triple="wasm32", mcpu="relaxed-simd")
    text = llvm_text(program_for(typed(functions_of(np.float32)), target), target.cpu)
    assert set(re.findall(r"relaxed_\w+", assembly(text, target.cpu))) == {"relaxed_madd"}


# ---------------------------------------------------------------- runs


def same(got, wanted, rtol=1e-5):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("triple, mcpu", RUNS)
def test_runs_elsewhere(triple, mcpu):
    model = graphc.compile(layers, triple=triple, mcpu=mcpu, specialise="any")
    random = np.random.default_rng(0)
    for n in (1, 5):
        x = (random.standard_normal((n, 12)) * 4).astype(np.float32)
        k = random.integers(-(2**40), 2**40, (n, 12))
        x[0, :4] = [np.inf, 7e4, -0.0, 1e-7]
        same(model.run([x, k]), graphc.interpret(layers, [x, k]))
    x[-1, 5] = np.nan
    same(model.run([x, k]), graphc.interpret(layers, [x, k]))


@pytest.mark.parametrize("triple, mcpu", RUNS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_elsewhere(triple, mcpu, dtype):
    functions = functions_of(dtype)
    x = np.linspace(-3, 3, 37).astype(dtype)
    y = np.roll(x, 5) + np.asarray(0.25, dtype)
    x[:8] = [np.nan, np.inf, -np.inf, 0, -0.0, 1, 1e10, -2]
    y[:8] = [1, 2, 3, -1, 0, np.inf, 0.5, 3]
    got = graphc.compile(functions, triple=triple, mcpu=mcpu).run([x, y])
    with np.errstate(all="ignore"):
        wanted = graphc.interpret(functions, [x, y])
    same(got, wanted, rtol=2e-6 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("triple, mcpu", RUNS)
def test_bytes_elsewhere(triple, mcpu):
    graph = bytes_model()
    x = np.random.default_rng(0).integers(-128, 128, (6, 37)).astype(np.int8)
    same(graphc.compile(graph, triple=triple, mcpu=mcpu).run([x]), graphc.interpret(graph, [x]))


@pytest.mark.parametrize("triple, mcpu", RUNS)
def test_forbidden_inputs_elsewhere(triple, mcpu):
    model = graphc.compile(looked_up, triple=triple, mcpu=mcpu, dims={"N": 2})
    x = np.zeros((9, 3), np.float32)
    with pytest.raises(ModelError, match=r"index 9 .*must be in -9\.\.8"):
        model.run([x, np.array([1, 9])])


# ---------------------------------------------------------------- libraries

MAIN = """#include <stdio.h>
#include <stdlib.h>
#include "m.h"
static _Alignas(64) unsigned char memory[M_CONTEXT_BYTES];
static float x[27], y[6];
int main(void)
{
    int64_t k[2] = {3, -1}, bad[2] = {0, -12345};
    const void *in[2] = {x, k};
    void *out[1] = {y};
    m_context *made[2] = {m_create(2), m_place(memory)};
    if (m_place(memory + 1) || m_place(NULL))
        return 1;
    for (int n = 0; n < 27; ++n)
        x[n] = n;
    for (int n = 0; n < 2; ++n) {
        in[1] = k;
        int first = m_run(made[n], in, out);
        printf("%d %g %g ", first, y[0], y[5]);
        in[1] = bad;
        int second = m_run(made[n], in, out);
        printf("%d %s;", second, m_error(made[n]));
    }
    m_destroy(made[0]);
    return 0;
}
"""


@needs("qemu-aarch64", "aarch64-linux-gnu-gcc")
@pytest.mark.parametrize("suffix", [".so", ".o", ".a"])
def test_a_c_program_of_another_machine(tmp_path, suffix):
    program = program_for(typed(looked_up, dims={"N": 2}), Cpu(triple="aarch64-linux-gnu"))
    aot.build(program, tmp_path / f"m{suffix}", cross_target("aarch64-linux-gnu"))
    (tmp_path / "main.c").write_text("#include <stdint.h>\n" + MAIN)
    command = ["aarch64-linux-gnu-gcc", "-Wall", "-Wextra", "-Werror", "main.c", f"./m{suffix}",
               "-o", "main", "-lm", "-pthread"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "./main"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    one, two, rest = done.stdout.split(";")
    assert one == two and rest == ""
    assert re.fullmatch(r"0 9 26 1 .*index -12345 .* must be in -9\.\.8", one)


SCRIPT = """import { load, inputs, outputs } from "./index.js";
const model = await load();
const x = Float32Array.from({ length: 27 }, (_, n) => n);
console.log(JSON.stringify([inputs[0].shape, outputs[0].shape]));
console.log(JSON.stringify(model.run(x, BigInt64Array.of(3n, -1n)).map((y) => [...y])));
for (const k of [BigInt64Array.of(0n, 12345n), BigInt64Array.of(1n), new Float32Array(2)]) {
  try { model.run(x, k); } catch (error) { console.log(String(error)); }
}
"""


@needs("node", "wasm-ld")
def test_a_package_for_javascript(tmp_path):
    program = program_for(typed(looked_up, dims={"N": 2}), Cpu(triple="wasm32"))
    aot.build(program, tmp_path / "m.wasm", cross_target("wasm32"))
    assert json.loads((tmp_path / "package.json").read_text())["main"] == "index.js"
    (tmp_path / "try.mjs").write_text(SCRIPT)
    done = subprocess.run(["node", "try.mjs"], cwd=tmp_path, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["[[9,3],[2,3]]", "[[9,10,11,24,25,26]]"], done.stderr
    assert "RangeError: " in lines[2] and "index 12345 " in lines[2]
    assert "must have 2 elements" in lines[3] and "must be a BigInt64Array" in lines[4]
    wasm = (
        "WebAssembly.Module.imports(new WebAssembly.Module(require('fs').readFileSync('m.wasm')))"
    )
    command = ["node", "-p", f"{wasm}.length"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True).strip() == "0"


@needs("node", "wasm-ld")
def test_a_package_of_open_shape(tmp_path):
    info = graphc.compile(layers, triple="wasm32", specialise="any").executables()[0]
    aot.build(info.run.program, tmp_path / "m.wasm", cross_target("wasm32"))
    (tmp_path / "try.mjs").write_text("""import { load } from "./index.js";
const model = await load();
const outputs = model.run({ N: 2 }, new Float32Array(24).fill(1), new BigInt64Array(24).fill(-8n));
console.log(outputs[0].length, model.shape(0).join(), outputs[2][0], outputs[3][23]);
try { model.run({ N: 7 }, new Float32Array(24), new BigInt64Array(24)); }
catch (error) { console.log(String(error)); }
""")
    done = subprocess.run(["node", "try.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "38 2,19 6n 2n", "RangeError: a size is out of its bounds",
    ], done.stderr  # fmt: skip


def test_packages_of_others_are_left_alone(tmp_path):
    (tmp_path / "Cargo.toml").write_text("[package]\nname = 'mine'\n")
    program = program_for(typed(looked_up, dims={"N": 2}))
    with pytest.raises(UnsupportedError, match="of another package"):
        aot.build(program, tmp_path / "m.a")
    assert [path.name for path in tmp_path.iterdir()] == ["Cargo.toml"]


@needs("cargo", "cc")
def test_a_crate_for_rust(tmp_path):
    program = program_for(typed(looked_up, dims={"N": 2}))
    (tmp_path / "m").mkdir()
    aot.build(program, tmp_path / "m" / "m.a")
    (tmp_path / "app" / "src").mkdir(parents=True)
    (tmp_path / "app" / "Cargo.toml").write_text(
        '[package]\nname = "app"\nversion = "1.0.0"\nedition = "2021"\n'
        '[dependencies]\nm = { path = "../m" }\n'
    )
    (tmp_path / "app" / "src" / "main.rs").write_text("""fn main() {
    let mut context = m::Context::new();
    let x: [f32; 27] = core::array::from_fn(|n| n as f32);
    let mut y = [0f32; 6];
    context.run(&x, &[3, -1], &mut y).unwrap();
    println!("{:?}", y);
    println!("{:?}", context.run(&x, &[3, 77], &mut y).unwrap_err());
}
""")
    command = ["cargo", "run", "--offline", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path / "app", capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "[9.0, 10.0, 11.0, 24.0, 25.0, 26.0]", done.stderr
    assert "index 77 " in lines[1]
