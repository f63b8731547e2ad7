"""What is put beside kernels: it stands alone, builds, and says what is missing."""

import ast
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_programs import chosen_architectures, cuda_of, needs_compiler, needs_nvcc
from fake_gpu import toolkit

import graphc.backends.cuda.runtime as runtime
from graphc.backends.cfamily import names
from graphc.backends.cuda import CudaSource
from graphc.backends.cuda.bundle import PACKAGE, bundle_files
from graphc.backends.cuda.nvcc import find_nvcc
from graphc.backends.digests import folded

GRAPH = """graph @net(%x: f32[20,37], %n: i64[3]) -> (?, ?, ?) {
  const %a : f32[37,30] = random(seed=1)
  const %b : f32[37,30] = random(seed=2)
  %l = MatMul(%x, %a)
  %s = Softmax(%l)
  %r = MatMul(%x, %b)
  %m = Add(%n, %n)
  return %s, %r, %m
}"""
WARNINGS = ("-std=c++11", "-Wall", "-Wextra", "-Werror")
OPTIONAL = {"pycuda", "cuda", "ml_dtypes"}


def folder(path: Path, archs: tuple[str, ...] = (), name: str = "net", graph: str = GRAPH) -> Path:
    for file, contents in bundle_files(cuda_of(graph), archs, name).items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_bytes(contents)
    return path


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)


def built(*command: object, cwd: Path) -> None:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_runtime_stands_alone(tmp_path):
    """It imports nothing but Python's library, numpy, itself, and bindings when it needs them."""
    for path in (folder(tmp_path) / PACKAGE).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                assert top in {"numpy", *OPTIONAL} or top in sys.stdlib_module_names, path


@pytest.fixture
def here(tmp_path):
    return folder(tmp_path)


def test_the_script_says_that_there_is_no_driver(here):
    if has_driver():
        pytest.skip("there is a driver here")
    done = run(sys.executable, "run_net.py", cwd=here)
    assert done.returncode == 1
    assert "run_net.py: no GPU can be used: NVIDIA's driver is not here" in done.stderr


def has_driver() -> bool:
    try:
        runtime.driver.library()
    except runtime.DriverMissing:
        return False
    return True


def test_the_script_reads_inputs(here):
    np.save(here / "x.npy", np.ones((20, 37), np.float32))
    code = (
        "import run_net\n"
        f"from {PACKAGE}.plan import Spec\n"
        "import json\n"
        "class M: inputs = [Spec(e, {}) for e in json.load(open('plan.json'))['inputs']]\n"
        "x, n = run_net.feeds(M, ['x=x.npy'], 0)\n"
        "print(x.sum(), n.dtype, n.shape)\n"
    )
    done = run(sys.executable, "-c", code, cwd=here)
    assert done.stdout.split() == ["740.0", "int64", "(3,)"], done.stderr


def test_the_script_says_which_input_is_wrong(here):
    (here / "empty.npy").write_bytes(b"")
    np.savez(here / "two.npz", a=np.ones(1), b=np.ones(1))
    code = (
        "import run_net\n"
        f"from {PACKAGE}.plan import Spec\n"
        "import json\n"
        "class M: inputs = [Spec(e, {}) for e in json.load(open('plan.json'))['inputs']]\n"
        "for text in ('x', 'x=missing.npy', 'x=empty.npy', 'x=two.npz', 'y=empty.npy'):\n"
        "    try:\n"
        "        run_net.feeds(M, [text], 0)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    done = run(sys.executable, "-c", code, cwd=here)
    found = done.stdout.splitlines()
    expected = ("--input is NAME=FILE.npy, found 'x'", "missing.npy cannot be read as .npy",
                "empty.npy cannot be read as .npy", "two.npz is no .npy file",
                "there is no input y")  # fmt: skip
    assert len(found) == len(expected), done.stderr
    assert all(line.startswith(start) for line, start in zip(found, expected)), found


NONZERO = """graph @found(%x: f32[4,3]) -> ? {
  %y = NonZero(%x)
  return %y
}"""


def test_outputs_that_depend_on_data_are_cut(tmp_path):
    """The header says which part of them counts; the script gives that part alone."""
    here = folder(tmp_path, graph=NONZERO)
    told = "y: i64[2,12] at most, of it the leading corner [sizes0[0], sizes0[1]]"
    assert told in (here / "net.h").read_text() and told in (here / "README.md").read_text()
    code = (
        "import json, numpy, run_net\n"
        "class M: plan = json.load(open('plan.json'))\n"
        "outputs = [numpy.arange(24).reshape(2, 12), numpy.array([2, 3])]\n"
        "print(run_net.results(M, outputs)['y'].tolist())\n"
    )
    assert run(sys.executable, "-c", code, cwd=here).stdout == "[[0, 1, 2], [12, 13, 14]]\n"


@needs_compiler
@needs_nvcc
def test_the_host_compiler_takes_the_launcher(here):
    """The launcher needs CUDA's headers alone."""
    include = toolkit(find_nvcc()) / "include"
    for source in ("net.cpp", "net_example.cpp"):
        built("g++", *WARNINGS, f"-I{include}", "-fsyntax-only", source, cwd=here)


HOSTILE = 'a"b\\\n??/|\u00e9\U0001f600\u202e'


def renamed(name: str) -> CudaSource:
    """The model, its title and operands with names that nothing expects."""
    source = cuda_of(GRAPH)
    program = source.program
    inputs = [(f"{name}{n}", type) for n, (_, type) in enumerate(program.inputs)]
    outputs = [(f"{name} {n}", type) for n, (_, type) in enumerate(program.outputs)]
    program = replace(program, name=name, inputs=inputs, outputs=outputs)
    return replace(source, program=program)


@needs_compiler
@needs_nvcc
@pytest.mark.parametrize("name", ["time", "std", "graphc", "graphc_model", "double", HOSTILE])
def test_names_break_nothing(tmp_path, name):
    source = renamed(name)
    files = bundle_files(source)
    for path, contents in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(contents)
    include = toolkit(find_nvcc()) / "include"
    (example,) = tmp_path.glob("*_example.cpp")
    plain = example.name.removesuffix("_example.cpp")
    for path in (example, tmp_path / f"{plain}.cpp"):
        built("g++", *WARNINGS, f"-I{include}", "-fsyntax-only", path, cwd=tmp_path)
    text = f"extern const char *const names[] = {{{names.text_literal(name)}}};"
    code = f"#include <cstdio>\n{text}\nint main() {{ std::fputs(names[0], stdout); }}\n"
    (tmp_path / "says.cpp").write_text(code)
    built("g++", *WARNINGS, "says.cpp", "-o", "says", cwd=tmp_path)
    assert run(tmp_path / "says", cwd=tmp_path).stdout == name
    for path in files:
        assert "\u202e" not in (tmp_path / path).read_bytes().decode(errors="replace"), path
    rows = [line for line in files["README.md"].decode().splitlines() if line.startswith("|")]
    assert len(rows) == 4 and all(row.endswith("|") for row in rows)


def test_outputs_may_have_any_name(here):
    code = (
        "import numpy, run_net\n"
        "names = ['file', 'allow_pickle', 'a/b', 'x\\ny']\n"
        "run_net.save('y.npz', {name: numpy.full(2, n) for n, name in enumerate(names)})\n"
    )
    built(sys.executable, "-c", code, cwd=here)
    found = np.load(here / "y.npz")
    assert [int(found[name][0]) for name in ("file", "allow_pickle", "a/b", "x\ny")] == [0, 1, 2, 3]


@pytest.mark.suite
@needs_nvcc
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_builds_a_program(here):
    """Without a GPU the program says so."""
    arch = chosen_architectures()[-1].removeprefix("sm_")
    built("cmake", "-S", ".", "-B", "build", "-DCMAKE_CUDA_FLAGS=-Werror=all-warnings",
          f"-DCMAKE_CUDA_ARCHITECTURES={arch}",
          f"-DCMAKE_CUDA_COMPILER={toolkit(find_nvcc()) / 'bin' / 'nvcc'}", cwd=here)  # fmt: skip
    built("cmake", "--build", "build", cwd=here)
    program = here / "build" / "net_example"
    done = run(program, "weights.bin", cwd=here)
    if done.returncode:
        assert done.stderr.startswith("device 0: "), done.stderr
    assert "net.cpp: cannot be read" in run(program, "net.cpp", cwd=here).stderr


SUM = """#include <cstdio>
#include "graphc_model.h"
int main()
{
    std::vector<char> bytes(%d);
    for (size_t n = 0; n < bytes.size(); ++n)
        bytes[n] = char(n * n %% 251);
    std::printf("%%llu", (unsigned long long)graphc::sum_of(bytes));
}
"""


@needs_compiler
@needs_nvcc
@pytest.mark.parametrize("size", [0, 1, 7, 65536, 65539, 200_000])
def test_sums_of_weights_agree(here, size):
    (here / "sum.cpp").write_text(SUM % size)
    include = toolkit(find_nvcc()) / "include"
    built("g++", *WARNINGS, "-O1", f"-I{include}", "sum.cpp", "-o", "sum", cwd=here)
    data = bytes(n * n % 251 for n in range(size))
    assert int(run(here / "sum", cwd=here).stdout) == folded(data)
