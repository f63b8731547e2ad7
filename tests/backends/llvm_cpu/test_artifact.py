"""Saved models, the compilation cache, and libraries for C programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import dsl
from graphc.backends import cache
from graphc.backends.behind import finish
from graphc.backends.llvm_cpu import aot, artifact, codegen
from graphc.backends.llvm_cpu.target import host_target
from graphc.cli import main as cli
from graphc.errors import ModelError, UnsupportedError


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setattr(cache, "_told", set())


DIGITS = Path(__file__).parents[3] / "models" / "digits_cnn.onnx"
compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
needs_compiler = pytest.mark.skipif(compiler is None, reason="no C compiler")


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 1, 8, 8)).astype(np.float32)


def test_saved_for_several_shapes(tmp_path):
    model = graphc.compile(DIGITS, specialise="exact", threads=1)
    expected = {n: model.run([images(n)])[0] for n in (1, 3)}
    model.save(tmp_path / "digits.gcm")
    loaded = graphc.load(tmp_path / "digits.gcm", threads=1)
    assert [s.name for s in loaded.inputs] == ["image"]
    for n, wanted in expected.items():
        np.testing.assert_array_equal(loaded.run({"image": images(n)})[0], wanted)
    with pytest.raises(UnsupportedError, match=r"saved for inputs of shapes .*found \[\[2, 1"):
        loaded.run([images(2)])
    assert [p.name for p in tmp_path.iterdir()] == ["digits.gcm"]


def test_saved_for_all_shapes_within_bounds(tmp_path):
    model = graphc.compile(DIGITS, dims={"N": (2, 4)}, specialise="exact", threads=1)
    model.save(tmp_path / "digits.gcm")
    assert len(model.executables()) == 3
    loaded = graphc.load(tmp_path / "digits.gcm", threads=1)
    for n in (2, 3, 4):
        np.testing.assert_array_equal(loaded.run([images(n)])[0], model.run([images(n)])[0])
    with pytest.raises(UnsupportedError, match=r"found \[\[5, 1, 8, 8\]\]"):
        loaded.run([images(5)])
    code = sum(len(info.run.image.code) for info in model.executables())
    constants = sum(c.nbytes for c in model.executables()[0].run.image.constants)
    assert (tmp_path / "digits.gcm").stat().st_size < code + 2 * constants  # not once per shape


def test_nothing_to_save(tmp_path):
    with pytest.raises(ModelError, match=r"dimension N is open: .* bound it with --dim N=1\.\.8"):
        graphc.compile(DIGITS, threads=1).save(tmp_path / "digits.gcm")
    with pytest.raises(ModelError, match=r"within N=1\.\.100 a model has 100 shapes"):
        model = graphc.compile(DIGITS, dims={"N": (1, 100)}, specialise="exact", threads=1)
        model.save(tmp_path / "digits.gcm")


def test_damaged_files(tmp_path):
    path = tmp_path / "digits.gcm"
    model = graphc.compile(DIGITS, shapes={"image": (1, 1, 8, 8)}, threads=1)
    model.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    wrong = [b"", b"graphc", whole[:100], whole[: len(whole) // 2], b"x" * 500]
    for _ in range(60):  # the header, where a changed byte must never do harm
        changed = bytearray(whole)
        changed[int(rng.integers(0, 400))] ^= int(rng.integers(1, 256))
        wrong.append(bytes(changed))
    for data in wrong:
        path.write_bytes(data)
        try:
            graphc.load(path, threads=1)
        except ModelError:
            continue
        except UnsupportedError as error:
            raise AssertionError(data[:50]) from error
    code = bytearray(whole)
    code[code.index(b"\x7fELF") + 700] ^= 1
    path.write_bytes(code)
    with pytest.raises(ModelError, match="code at byte .* does not match its digest"):
        graphc.load(path)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        graphc.load(path)


def test_another_machine(tmp_path):
    model = graphc.compile(DIGITS, shapes={"image": (1, 1, 8, 8)}, threads=1)
    model.save(tmp_path / "a.gcm")
    data = (tmp_path / "a.gcm").read_bytes()
    cpu = host_target().key.encode()[:6]
    (tmp_path / "a.gcm").write_bytes(data.replace(cpu, cpu[::-1], 1))
    with pytest.raises(ModelError, match="damaged: its header does not match"):
        graphc.load(tmp_path / "a.gcm")


def test_the_second_compilation_comes_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))
    calls = []
    real = codegen.compile_program
    monkeypatch.setattr(codegen, "compile_program", lambda p: calls.append(p) or real(p))
    x = images(2)
    results = [
        graphc.compile(DIGITS, shapes={"image": x.shape}, threads=1).run([x])[0] for _ in range(3)
    ]
    assert len(calls) == 1
    np.testing.assert_array_equal(results[0], results[2])
    for entry in tmp_path.rglob("*"):
        if entry.is_file():
            entry.write_bytes(entry.read_bytes()[:-40])  # truncated: a miss, not a failure
    with pytest.warns(graphc.ModelWarning, match="is damaged"):
        again = graphc.compile(DIGITS, shapes={"image": x.shape}, threads=1).run([x])[0]
    assert len(calls) == 2
    np.testing.assert_array_equal(results[0], again)


WEIGHT = np.random.default_rng(1).standard_normal((256, 512)).astype(np.float32)


@dsl.graph
def large(x: dsl.f32["N: 1..64", 256]):  # noqa: F722
    return dsl.Relu(x @ WEIGHT)


def product(rows: int) -> np.ndarray:
    """What a product with a large weight gives for so many rows."""
    return graphc.compile(large, specialise="exact", threads=1).run(
        [np.ones((rows, 256), np.float32)]
    )[0]


def test_weights_are_kept_once_for_all_shapes(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))
    calls = []
    real = codegen.compile_program
    monkeypatch.setattr(codegen, "compile_program", lambda p: calls.append(p) or real(p))

    def sizes() -> list[int]:
        return [e.stat().st_size for e in tmp_path.rglob("*") if e.is_file()]

    tried = (16, 24, 32)  # rows in whole tiles of one size, whatever the vectors of this CPU
    results = [product(rows) for rows in (*tried, *tried)]
    assert len(calls) == 3 and len([s for s in sizes() if s > artifact.SHARED_BYTES]) == 1
    for rows, first, second in zip(tried, results, results[3:]):
        assert first.shape == (rows, 512)
        np.testing.assert_array_equal(first, second)
    (kept,) = [e for e in tmp_path.rglob("*") if e.is_file() and e.stat().st_size == max(sizes())]
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")  # damaged: a miss, and written again
    with pytest.warns(graphc.ModelWarning, match="is damaged"):
        np.testing.assert_array_equal(product(16), results[0])
    finish()
    np.testing.assert_array_equal(product(24), results[1])
    assert len(calls) == 4
    np.testing.assert_array_equal(product(16), results[0])
    assert len(calls) == 4


PROGRAM = """#include "net.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    static float x[NET_INPUT0_ELEMENTS], y[NET_OUTPUT0_ELEMENTS];
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (argc != 3 || fread(x, sizeof x, 1, in) != 1)
        return 1;
    net_context *context = net_create(2);
    const void *const inputs[NET_INPUTS] = {x};
    void *const outputs[NET_OUTPUTS] = {y};
    if (net_run(context, inputs, outputs) || net_run(NULL, inputs, outputs) != -1)
        return 2;
    net_destroy(context);
    fwrite(y, sizeof y, 1, out);
    return fclose(out);
}
"""


OPEN_PROGRAM = """#include "net.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    static float x[NET_INPUT0_MOST_ELEMENTS], y[NET_OUTPUT0_MOST_ELEMENTS];
    net_context *context = net_create(2);
    net_sizes sizes = {argc > 1 ? atoi(argv[1]) : 0, argc > 2 ? atoi(argv[2]) : 0};
    const void *const inputs[NET_INPUTS] = {x};
    void *const outputs[NET_OUTPUTS] = {y};
    int64_t shape[NET_OUTPUT0_RANK] = {-1, -1, -1};
    for (int n = 0; n < sizes.batch * sizes.wide * 3 && n < NET_INPUT0_MOST_ELEMENTS; ++n)
        x[n] = (float)n;
    int status = net_output_shape_0(&sizes, shape);
    int ran = net_run(context, &sizes, inputs, outputs);
    if (net_run(context, NULL, inputs, outputs) != -1 || net_output_shape_0(NULL, shape) != -1)
        return 9;
    net_destroy(context);
    printf("%d %d %d %d %d", status, ran, (int)shape[0], (int)shape[1], (int)shape[2]);
    for (int n = 0; !ran && n < shape[0] * shape[1] * shape[2]; ++n)
        printf(" %g", y[n]);
    return 0;
}
"""


@needs_compiler
@pytest.mark.parametrize("suffix", [".so", ".o"])
def test_a_c_program_of_open_shape(tmp_path, suffix):
    """Sums of neighbours along an axis that is cut by half, for any sizes within bounds."""
    graph = graphc.parse("""graph @net(%x: f32[batch,3,wide]) -> ? where batch: 1..4, wide: 2..9 {
  %sums = AveragePool(%x) {kernel_shape=[2], strides=[2]}
  %twice = Add(%sums, %sums)
  return %twice
}""")
    (info,) = graphc.compile(graph, specialise="any", triple="host").executables()
    aot.build(info.run.program, tmp_path / f"net{suffix}")
    (tmp_path / "main.c").write_text(OPEN_PROGRAM)
    options = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    command = [compiler, *options, "main.c", f"./net{suffix}", "-o", "main", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for batch, wide in [(1, 2), (4, 9), (2, 5), (3, 8)]:
        x = np.arange(batch * wide * 3, dtype=np.float32).reshape(batch, 3, wide)
        wanted = graphc.interpret(graph, [x])[0]
        words = _told(tmp_path, batch, wide)
        assert words[:5] == ["0", "0", *map(str, wanted.shape)]
        np.testing.assert_allclose(list(map(float, words[5:])), wanted.reshape(-1))
    for batch, wide in [(0, 2), (5, 2), (1, 1), (1, 10), (-1, 5)]:
        assert _told(tmp_path, batch, wide) == ["2", "2", "-1", "-1", "-1"]


def _told(folder, *sizes):
    """What the program of a folder prints, in words."""
    command = ["./main", *map(str, sizes)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.split()


@needs_compiler
def test_the_command_makes_libraries_of_open_shape(tmp_path, capsys):
    library = str(tmp_path / "net.so")
    arguments = ["compile", str(DIGITS), "--dim", "N=1..8", "-o", library]
    assert cli([*arguments, "--specialise", "exact"]) == 2
    assert "--specialise any" in capsys.readouterr().err
    assert cli(["compile", str(DIGITS), "-o", library]) == 2
    assert cli(arguments) == 0
    header = (tmp_path / "net.h").read_text()
    assert "int64_t N; /* N: 1 to 8 */" in header and "#define NET_SIZES_N_MAX 8" in header
    assert "#define NET_INPUT0_MOST_ELEMENTS 512" in header
    assert "int net_output_shape_0(const net_sizes *sizes, int64_t shape[]);" in header


@needs_compiler
@pytest.mark.parametrize("suffix", [".so", ".o"])
def test_a_c_program(tmp_path, suffix):
    x = images(2)
    library = tmp_path / f"net{suffix}"
    model = graphc.compile(DIGITS, shapes={"image": x.shape}, triple="host")
    (apart,) = [info.run for info in model.executables()]
    aot.build(apart.program, library)
    (tmp_path / "main.c").write_text(PROGRAM)
    x.tofile(tmp_path / "x.bin")
    options = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    command = [compiler, *options, "main.c", str(library), "-o", "main", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run(["./main", "x.bin", "y.bin"], cwd=tmp_path, check=True)
    wanted = model.run([x])[0]
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(wanted.shape)
    np.testing.assert_array_equal(found, wanted)
