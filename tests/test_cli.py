"""The command line: what every command does."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from commands import DIGITS, ROOT, graphc, make, ok, refused, relu, save
from onnx import TensorProto, helper

import graphc as compiler

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_help_and_version(capsys):
    assert "examples:" in ok(capsys, "--help")
    assert "graphc 0" in ok(capsys, "--version")
    for name in (
        "compile",
        "run",
        "train",
        "quantise",
        "verify",
        "bench",
        "opt",
        "inspect",
        "bisect",
        "replay",
    ):
        assert f"graphc {name} " in ok(capsys, name, "--help")


def test_runs_as_a_module_and_keeps_stdout_clean():
    done = subprocess.run(
        [sys.executable, "-m", "graphc", "run", DIGITS, "--dim", "N=2"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.startswith("logits: f32[2,10]") and done.stderr == ""


def test_compile_reports(capsys):
    out = ok(capsys, "compile", DIGITS, "--dim", "N=1")
    assert "steps of" in out and "arena" in out and "compiled for cpu in" in out


@pytest.mark.parametrize(
    ("phase", "found"),
    [
        ("imported", "f32[N,1,8,8]"),
        ("typed", "BatchNormalization"),
        ("canonical", "phase canonical"),
        ("laid_out", "@NHWC"),
        ("fused", "fused @"),
        ("lowered", "kernel @"),
        ("planned", "program @"),
        ("emitted", "define"),
    ],
)
def test_every_phase_prints(capsys, phase, found):
    pins = [] if phase == "imported" else ["--dim", "N=1"]
    assert found in ok(capsys, "compile", DIGITS, *pins, "--stop-after", phase)


@pytest.mark.parametrize(
    ("suffix", "found"),
    [
        (".ll", "define"),
        (".s", ".text"),
        (".c", "#include"),
        (".cu", "__global__"),
        (".gir", "graph @"),
    ],
)
def test_output_by_suffix(capsys, tmp_path, suffix, found):
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "-o", tmp_path / f"m{suffix}")
    assert found in (tmp_path / f"m{suffix}").read_text()


def test_folder_of_c_sources(capsys, tmp_path):
    folder = tmp_path / "digits"
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "--target", "c", "-o", folder, "--with-test")
    names = {p.name for p in folder.iterdir()}
    assert {"digits_cnn.h", "digits_cnn.c", "digits_cnn_test.c", "report.json"} <= names
    assert [p.name for p in tmp_path.iterdir()] == ["digits"]
    sources = [str(p) for p in folder.glob("*.c")]
    program = str(tmp_path / "test")
    subprocess.run(["gcc", "-O1", *sources, "-lm", "-o", program], check=True)
    assert subprocess.run([program]).returncode == 0


def test_saved_models_run(capsys, tmp_path):
    path = tmp_path / "digits.gcm"
    ok(capsys, "compile", DIGITS, "--dim", "N=2", "-o", path)
    compiled = ok(capsys, "run", DIGITS, "--dim", "N=2", "--seed", "5")
    assert ok(capsys, "run", path, "--seed", "5") == compiled
    assert "compiled already" in refused(capsys, "run", path, "--dim", "N=2")
    ok(capsys, "compile", DIGITS, "--dim", "N=1..2", "-o", path)
    assert ok(capsys, "run", path, "--dim", "N=2", "--seed", "5") == compiled
    assert ok(capsys, "run", path, "--shape", "image=2,1,8,8", "--seed", "5") == compiled
    assert "N" in refused(capsys, "run", path, "--dim", "N=3")
    shown = ok(capsys, "inspect", path)
    assert "in   image: f32[N,1,8,8]" in shown and "out  logits: f32[N,10]" in shown
    assert "2 more shapes" not in shown and "compiled for this machine" in shown
    assert "every byte matches its digest" in shown and "native code" in shown
    assert "--dim" in refused(capsys, "inspect", path, "--dim", "N=2")
    path.write_bytes(b"nothing")
    assert "digits.gcm" in refused(capsys, "run", path)
    assert "digits.gcm" in refused(capsys, "inspect", path)
    assert "dimension N" in refused(capsys, "compile", DIGITS, "-o", path)
    assert [p.name for p in tmp_path.iterdir()] == ["digits.gcm"]


MAIN = """
#include "digits.h"
#include <stdio.h>

int main(void) {
    static float image[DIGITS_INPUT0_ELEMENTS], logits[DIGITS_OUTPUT0_ELEMENTS];
    const void *inputs[] = {image};
    void *outputs[] = {logits};
    digits_context *context = digits_create(1);
    if (context == NULL || digits_run(context, inputs, outputs) != 0) return 1;
    digits_destroy(context);
    for (int k = 0; k < DIGITS_OUTPUT0_ELEMENTS; k++) printf("%.9g\\n", logits[k]);
    return 0;
}
"""


@pytest.mark.parametrize("suffix", [".so", ".o"])
def test_libraries_need_no_python(capsys, tmp_path, suffix):
    library = tmp_path / f"digits{suffix}"
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "-o", library)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits.h", library.name]
    (tmp_path / "main.c").write_text(MAIN)
    command = ["gcc", "main.c", str(library), "-lm", "-pthread", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    image = np.zeros((1, 1, 8, 8), np.float32)
    (expected,) = compiler.compile(DIGITS, threads=1).run([image])
    assert np.allclose(np.array(done.stdout.split(), np.float32), expected.ravel(), atol=1e-5)


def test_text_of_a_graph_can_be_used_again(capsys, tmp_path):
    text = tmp_path / "m.gir"
    ok(capsys, "compile", DIGITS, "--dim", "N=2", "--stop-after", "canonical", "-o", text)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gir", "m.gir.npz"]
    assert "passed" in ok(capsys, "verify", text, "--against", "interpreter")


def test_dump_and_explain(capsys, tmp_path):
    out = ok(capsys, "compile", DIGITS, "--dim", "N=1", "--dump-to", tmp_path / "stages",
             "--explain", "fold-bn-into-conv", "--explain", "layout")  # fmt: skip
    assert "fold-bn-into-conv: fired 3 times" in out and "layout: fired" in out
    dumped = sorted(p.name for p in (tmp_path / "stages").iterdir())
    assert dumped[0] == "01-checks.gir" and dumped[-1].endswith("-fuse-reductions.gir")


PLUGIN = '''
from dataclasses import dataclass
from graphc.passes import Pass, register_pass


@register_pass
@dataclass
class Rename(Pass):
    """Names every value "mine"."""

    name = "rename-{0}"
    requires = ("typed",)

    def run(self, graph, ctx):
        for op in graph.ops:
            op.output.name = "mine"
        return True
'''


def test_plugin(capsys, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.replace("{0}", "a"))
    out = ok(capsys, "compile", DIGITS, "--dim", "N=1", "--plugin", plugin, "--emit", "ir")
    assert "%mine.1" in out
    out = ok(capsys, "compile", DIGITS, "--dim", "N=1", "--passes", "rename-a", "--emit", "ir")
    assert "%mine.1" in out and "fused" not in out


def test_run_reads_and_writes_arrays(capsys, tmp_path):
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    model = save(tmp_path / "m.onnx", relu())
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x)
    for given in (f"x={tmp_path}/x.npy", f"{tmp_path}/all.npz"):
        ok(capsys, "run", model, "--input", given, "-o", tmp_path / "y.npz")
        with np.load(tmp_path / "y.npz") as found:
            assert np.array_equal(found["y"], np.maximum(x, 0))


def test_run_is_reproducible(capsys):
    runs = {ok(capsys, "run", DIGITS, "--dim", "N=1", "--seed", seed) for seed in "112"}
    assert len(runs) == 2


def test_set_binds_an_input(capsys, tmp_path):
    inputs = (("x", TensorProto.FLOAT, (2, 3)), ("shape", TensorProto.INT64, (2,)))
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = save(tmp_path / "m.onnx", make([node], inputs))
    assert "y: f32[6,1]" in ok(capsys, "run", model, "--set", "shape=[6,1]")
    assert "passed" in ok(capsys, "verify", model, "--set", "shape=[3,2]")
    assert "--set" in refused(capsys, "compile", model, "--emit", "ir")


def test_verify(capsys):
    assert "passed: cpu against onnxruntime" in ok(capsys, "verify", DIGITS, "--dim", "N=3")
    out = ok(capsys, "verify", DIGITS, "--target", "interpreter", "--dim", "N=2")
    assert "passed: interpreter against onnxruntime" in out
    assert "passed" in ok(capsys, "verify", DIGITS, "--dim", "N=2", "--against", "interpreter")


def test_gpu_kernels_in_the_simulator(capsys):
    pins = ["--dim", "N=1", "--target", "cuda"]
    assert "passed: cuda" in ok(capsys, "verify", DIGITS, *pins, "--simulate")
    assert "kernel @" in ok(capsys, "compile", DIGITS, *pins, "--emit", "kernel")
    refused(capsys, "compile", DIGITS, *pins, "--emit", "asm")
    assert "logits: f32[1,10]" in ok(capsys, "run", DIGITS, *pins, "--simulate")
    half = ok(capsys, "verify", DIGITS, *pins, "--simulate", "--precision", "f16")
    assert "passed: cuda in f16 against onnxruntime, rtol 0.01" in half
    assert "f16" in ok(capsys, "compile", DIGITS, *pins, "--precision", "f16", "--emit", "kernel")
    told = refused(capsys, "compile", DIGITS, "--dim", "N=1", "--precision", "f16", "--target", "c")
    assert "--precision: goes with --target cpu, found --target c" in told
    half = ok(capsys, "verify", DIGITS, "--dim", "N=1", "--precision", "f16")
    assert "passed: cpu in f16 against onnxruntime, rtol 0.01" in half
    hopper = ["--simulate", "--precision", "f16", "--arch", "sm_90a"]
    assert "passed: cuda" in ok(capsys, "verify", DIGITS, *pins, *hopper)
    assert "right after every rewrite" in ok(capsys, "bisect", DIGITS, *pins, *hopper)
    for option in ("--simulate", "--device=1", "--arch=sm_80"):
        told = refused(capsys, "run", DIGITS, "--dim", "N=1", option)
        assert f"{option.split('=')[0]}: goes with --target cuda" in told
    times = json.loads(ok(capsys, "bench", DIGITS, *pins, "--simulate", "--seconds", "0", "--json"))
    assert times["target"] == "cuda" and times["error"] < 1e-4


def test_a_form_that_one_target_has_is_made_as_that_target_makes_it(capsys):
    pins = ["--dim", "N=1", "--emit", "cuda", "--arch", "sm_90"]
    implied = ok(capsys, "compile", DIGITS, *pins)
    assert implied == ok(capsys, "compile", DIGITS, *pins, "--target", "cuda")


def test_a_folder_for_gpus(capsys, tmp_path, monkeypatch):
    """Made without a GPU, and without a compiler, which is noted."""
    monkeypatch.setenv("NVCC", "no-such-compiler")
    monkeypatch.setenv("GRAPHC_CUDA_COMPILER", "nvcc")
    pins = ["--dim", "N=1", "--target", "cuda"]
    code, _, err = graphc(capsys, "compile", DIGITS, *pins, "-o", tmp_path / "gpu")
    assert code == 0 and "no machine code is made: nvcc, which GRAPHC_CUDA_COMPILER asks" in err
    assert (tmp_path / "gpu" / "graphc_cuda" / "driver.py").is_file()
    (tmp_path / "gpu" / "kernels.sm_80.cubin").touch()  # of an earlier compilation
    (tmp_path / "gpu" / "notes.txt").touch()
    assert code == graphc(capsys, "compile", DIGITS, *pins, "-o", tmp_path / "gpu")[0]
    assert not list((tmp_path / "gpu").glob("*.cubin"))
    assert (tmp_path / "gpu" / "notes.txt").is_file()
    assert "compiled for cuda" in ok(capsys, "compile", DIGITS, *pins)
    assert "--arch: goes with" in refused(capsys, "compile", DIGITS, "--arch", "sm_80")
    assert "expected sm_80,sm_90" in refused(capsys, "compile", DIGITS, *pins, "--arch", "80")
    assert "GPU" in refused(capsys, "run", DIGITS, *pins, "--device", "99")


def test_failed_verification_is_exit_code_1(capsys):
    code, out, err = graphc(capsys, "verify", DIGITS, "--dim", "N=3", "--rtol", "0")
    assert code == 1 and "FAILED" in out and "logits" in out and err == ""


def test_bench(capsys):
    out = ok(
        capsys, "bench", DIGITS, "--dim", "N=1", "--threads", "1", "--seconds", "0.1", "--json"
    )
    result = json.loads(out)
    assert result["speedup"] > 0 and result["error"] < 1e-4 and result["rounds"] >= 5
    alone = ok(capsys, "bench", DIGITS, "--dim", "N=1", "--seconds", "0.1", "--against", "none")
    assert "median ms" in alone and "speedup" not in alone


def test_opt(capsys, tmp_path):
    path = tmp_path / "small.onnx"
    out = ok(capsys, "opt", DIGITS, "--dim", "N=2", "-o", path, "--verify")
    assert "BatchNormalization: 3 -> 0" in out
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert "BatchNormalization" not in {n.op_type for n in model.graph.node}


def test_opt_writes_nothing_that_is_wrong(capsys, tmp_path):
    code, out, _ = graphc(
        capsys, "opt", DIGITS, "--dim", "N=2", "-o", tmp_path / "m.onnx", "--verify", "--rtol", "0"
    )
    assert code == 1 and "m.onnx is not written" in out and list(tmp_path.iterdir()) == []


def test_opt_leaves_quantised_weights_quantised(capsys, tmp_path):
    source, path = tmp_path / "quantised.gir", tmp_path / "out.onnx"
    source.write_text("""graph @quantised(%x: f32[2,96]) -> ? {
  const %w : i8[96,256] = random(seed=1)
  const %scale : f32[] = 0.01
  %d = DequantizeLinear(%w, %scale)
  %i = Identity(%x)
  %y = MatMul(%i, %d)
  return %y
}""")
    ok(capsys, "opt", source, "-o", path, "--verify")
    nodes = [node.op_type for node in onnx.load(path).graph.node]
    assert nodes == ["DequantizeLinear", "MatMul"]
    assert path.stat().st_size < 96 * 256 + 2000


def test_inspect(capsys):
    out = ok(capsys, "inspect", DIGITS, "--dim", "N=1", "--machine", "100,20", "--all")
    conv = next(line for line in out.splitlines() if line.startswith("/conv2/Conv "))
    assert "590 k" in conv  # 2 * 32 * 16 * 9 * 8 * 8, less nothing: the padding is counted
    for part in ("f32[1,1,8,8]", "15.6 k elements", "FLOP/byte", "a machine with 100 GFLOP/s",
                 "bound by", "live bytes over", "largest tensors", "lower bound"):  # fmt: skip
        assert part in out


def test_inspect_a_program_for_all_sizes(capsys):
    options = ["--specialise", "any", "--machine", "100,20"]
    out = ok(capsys, "inspect", DIGITS, *options, "--dim", "N=1..64")
    assert "a program for all sizes; at the largest, N = 64:" in out
    assert "bytes of inputs: N * 256; of outputs: N * 40" in out
    assert out.endswith("where N in 1..64: general, all sizes have bounds\n")
    assert "--dim N=1..64" in refused(capsys, "inspect", DIGITS, *options)


def test_inspect_for_a_microcontroller(capsys):
    """The steps are those that the folder of C sources holds."""
    out = ok(capsys, "inspect", DIGITS, "--dim", "N=1", "--target", "c", "--machine", "1,1")
    assert "compiled for c (generic)" in out and "tiles_" in out and "6 steps take" in out


@pytest.mark.parametrize("options", [[], ["--cpu", "cortex-m4"]])
def test_inspect_shows_no_peaks_of_this_machine_for_another(capsys, monkeypatch, options):
    def measured(*_):
        raise AssertionError("this machine is no microcontroller")

    monkeypatch.setattr("graphc.backends.llvm_cpu.roofline.measured_peaks", measured)
    out = ok(capsys, "inspect", DIGITS, "--dim", "N=1", "--target", "c", *options)
    assert "not known: --machine" in out and "FLOP/byte" in out
    assert "GFLOP/s with" not in out and "at least  share" not in out and "bound by" not in out


def test_inspect_as_data(capsys):
    pins = ("--dim", "N=1", "--json")
    told = json.loads(ok(capsys, "inspect", DIGITS, *pins, "--machine", "100,20"))
    assert told["model"] == "digits_cnn" and told["target"] == "cpu"
    program = told["programs"][0]
    assert program["arena_bytes"] >= program["arena_bytes_least"] > 0
    assert program["steps"] and all(step["least_s"] > 0 for step in program["steps"])
    other = json.loads(ok(capsys, "inspect", DIGITS, *pins, "--target", "c"))["programs"][0]
    assert all(step["least_s"] is None and step["bound"] is None for step in other["steps"])
    assert "timing" not in other


def test_inspect_accesses(capsys):
    pins = (DIGITS, "--dim", "N=1")
    out = ok(capsys, "inspect", *pins, "--target", "cuda", "--arch", "sm_86", "--accesses", "2")
    assert "least times of NVIDIA RTX A6000 (sm_86) with 38.7 TFLOP/s, memory 768 GB/s" in out
    assert "coalesced  conflicts" in out
    assert "--target cuda" in refused(capsys, "inspect", *pins, "--accesses")


def test_inspect_counts_what_is_fused_once(capsys, tmp_path):
    totals = []
    for phase in ("laid_out", "fused"):
        path = tmp_path / f"{phase}.gir"
        ok(capsys, "compile", DIGITS, "--dim", "N=1", "--stop-after", phase, "-o", path)
        out = ok(capsys, "inspect", path, "--machine", "1,1")
        totals.append(next(line.split() for line in out.splitlines() if line.startswith("total")))
    assert totals[0][2:4] == totals[1][2:4]


def test_bisect(capsys, tmp_path):
    assert "right after every rewrite" in ok(capsys, "bisect", DIGITS, "--dim", "N=1")
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        "from graphc.passes import P, rule, var\n"
        "@rule('wrong-relu', P.Relu(var('x')))\n"
        "def wrong(rw, relu, x):\n"
        "    '''relu(x) == -x (it is not).'''\n"
        "    return rw.Neg(x)\n"
    )
    try:
        code, out, _ = graphc(capsys, "bisect", DIGITS, "--dim", "N=1", "--plugin", plugin)
    finally:
        from graphc.passes.rewriter import RULES

        RULES.pop("wrong-relu", None)
    assert code == 1 and "wrong-relu" in out


@pytest.mark.parametrize(
    "target, name", [("c", "kws-v1.0"), ("c", "net.d"), ("cuda", "gpu-v1.0"), ("c", ".hidden")]
)
def test_a_folder_may_have_a_dot_in_its_name(capsys, tmp_path, target, name):
    ok(capsys, "compile", DIGITS, "--dim", "N=1", "--target", target, "-o", tmp_path / name)
    assert (tmp_path / name).is_dir() and (tmp_path / name / "README.md").is_file()
    message = refused(capsys, "compile", DIGITS, "--dim", "N=1", "-o", tmp_path / "kws-v1.0")
    assert "expected a name ending in" in message
