"""Bundles of open shape: one for all sizes within bounds, which a run is given. They give what
ONNX Runtime gives, compiled with every warning and with sanitisers; sizes are checked."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import test_open_shapes as shapes
from bundles import SANITISED, STRICT, checked, model_of
from onnx import TensorProto, helper
from programs import check_program
from quantised_models import convolution

import graphc
from graphc.backends.micro_c import BundleOptions, bundle, write_bundle
from graphc.backends.micro_c import model_of as bundled
from graphc.backends.micro_c.budget import Budget
from graphc.backends.micro_c.cpus import CPUS
from graphc.backends.micro_c.host import HostModel
from graphc.cli import app
from graphc.driver import configured, load_graph, policy, to_program
from graphc.errors import ModelError, UnsupportedError
from graphc.ir.compare import compare
from graphc.ir.graph import Graph
from graphc.ir.interp import interpret
from graphc.ir.program import Program
from graphc.passes.general import general
from graphc.passes.specialise import pin, specialise
from graphc.runtime.feeds import random_feeds

sys.path.insert(0, str(Path(__file__).parents[2] / "frontend"))

from onnx_models import model

onnxruntime = pytest.importorskip("onnxruntime")

ARM = "arm-none-eabi-gcc"
WHERE = "where N: 1..5, S: 1..6, H: 5..9"
NETWORK = """g (float[N,S,8] x, float[N,S,8] y) => (z, top) {
    w = Constant<value = float[8,8] {WEIGHTS}>()
    a = MatMul(x, w)
    b = Add(a, y)
    c = Softmax<axis = 1>(b)
    z = Transpose<perm = [1, 0, 2]>(c)
    top = ReduceMax<keepdims = 0>(z)
}""".replace("WEIGHTS", ", ".join(f"{n % 7 - 3}.5" for n in range(64)))


def open_program(graph: Graph, **options: object) -> Program:
    target, settings = configured("c", None, options)
    program = to_program(general(graph, policy(target)), target, settings)
    check_program(program)
    return program


def bounded(source: object, **dims: tuple[int, int]) -> Graph:
    return pin(load_graph(source), dims=dims)


def network() -> Graph:
    return bounded(model(NETWORK), N=(1, 5), S=(1, 9))


def network_feeds(n: int, s: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n + s)
    return [rng.standard_normal((n, s, 8), np.float32) for _ in range(2)]


def by_onnx_runtime(proto: onnx.ModelProto, feeds: list[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, dict(zip([x.name for x in session.get_inputs()], feeds)))


def graph_of(name: str) -> Graph:
    text = shapes.GRAPHS[name].replace("{}", WHERE, 1).replace("{{", "{").replace("}}", "}")
    return graphc.parse(f"graph @g{text} return %r }}")


@pytest.mark.parametrize("io", ["caller", "arena"])
@pytest.mark.parametrize("name", shapes.GRAPHS)
def test_graphs(name, io):
    graph = graph_of(name)
    program = open_program(graph, io=io, cpu="cortex-m55" if io == "arena" else "generic")
    run = HostModel(program, sanitize=True)
    dice = random.Random(name)
    for seed in range(6):
        dims = {
            s.name: (s.lo, s.hi)[seed] if seed < 2 else dice.randint(s.lo, s.hi)
            for s in program.sizes
        }
        agrees(run, graph, dims, seed)


@pytest.mark.parametrize("path", shapes.MODELS, ids=lambda path: path.stem)
def test_models(path):
    graph = load_graph(path)
    graph = pin(graph, dims={name: (1, 64) for name in graph.symbols if name != "_"})
    run = HostModel(open_program(graph), sanitize=True)
    for seed, dims in enumerate(shapes.MODELS[path]):
        agrees(run, graph, dims, seed)


def agrees(run: HostModel, graph: Graph, dims: dict[str, int], seed: int) -> None:
    feeds = random_feeds(pin(graph, dims=dims), seed)
    expected = interpret(
        specialise(graph, {name: array.shape for name, array in feeds.items()}),
        list(feeds.values()),
    )
    for got, wanted in zip(run(list(feeds.values())), expected, strict=True):
        agreement = compare("output", got, wanted)
        assert agreement.within(2e-5), f"{dims}: {agreement}"


@pytest.mark.parametrize("size_type", ["int64_t", "int32_t"])
@pytest.mark.parametrize("io", ["caller", "arena"])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 9), (2, 7)])
def test_bundles_give_what_onnx_runtime_gives(sizes, io, size_type, tmp_path):
    feeds = network_feeds(*sizes)
    samples = feeds, by_onnx_runtime(model(NETWORK), feeds)
    options = BundleOptions("net", samples=samples, tolerance=1e-5)
    write_bundle(open_program(network(), io=io), tmp_path, options)
    flags = ["-std=c99", "-O1", f"-DNET_SIZE_T={size_type}", *STRICT, *SANITISED]
    checked(["gcc", *flags, "net.c", "net_weights.c", "net_test.c", "-lm", "-o", "t"], tmp_path)
    assert checked(["./t"], tmp_path).count("accepted") == 2


@pytest.mark.skipif(shutil.which(ARM) is None, reason="no compiler for Arm")
@pytest.mark.parametrize("hook", ["-DNET_PROFILE", "-DNET_TRACE", "-DNET_SUMMARY"])
def test_bundles_compile_for_processors(hook, tmp_path):
    write_bundle(open_program(network(), cpu="cortex-m4"), tmp_path, BundleOptions("net"))
    flags = ["-std=c99", "-O2", "-c", hook, *STRICT, *CPUS["cortex-m4"].flags]
    checked([ARM, *flags, "-DNET_STATIC_ARENA", "net.c", "net_weights.c"], tmp_path)
    undefined = checked(["arm-none-eabi-nm", "-u", "net.o"], tmp_path)
    assert not {"malloc", "calloc", "realloc", "printf"} & set(undefined.split())


def test_bundles_are_cpp_too(tmp_path):
    write_bundle(open_program(network()), tmp_path, BundleOptions("net"))
    for name in ("net.c", "net_weights.c"):
        checked(["g++", "-std=c++17", "-x", "c++", "-Wall", "-Wextra", "-c", name], tmp_path)


MAIN = """
#include "net.h"
#include <stdio.h>
static float x[360], y[360], z[360], top[1];
static uint8_t arena[NET_ARENA_SIZE + 1] __attribute__((aligned(NET_ARENA_ALIGN)));
int main(void)
{
    net_inputs in = {x, y};
    net_outputs out = {z, top};
    net_sizes sizes = {SIZES};
    NET_SIZE_T shape[4] = {0, 0, 0, 0};
    const int told = net_output_shape_0(&sizes, shape);
    const net_status status = net_run(&sizes, &in, &out, arena);
    printf("%d %d %d: %d %d %d\\n", (int)net_run(0, &in, &out, arena), told, (int)status,
        (int)shape[0], (int)shape[1], (int)shape[2]);
    return 0;
}
"""


@pytest.mark.parametrize(
    "sizes, told",
    [
        ("2, 7", "1 0 0: 7 2 8"),
        ("5, 9", "1 0 0: 9 5 8"),
        ("0, 7", "1 4 4: 0 0 0"),
        ("6, 7", "1 4 4: 0 0 0"),
        ("-1, 7", "1 4 4: 0 0 0"),
        ("1, 10", "1 4 4: 0 0 0"),
        ("4294967297, 1", "1 4 4: 0 0 0"),
    ],
)
def test_sizes_are_checked(sizes, told, tmp_path):
    write_bundle(open_program(network()), tmp_path, BundleOptions("net"))
    Path(tmp_path, "main.c").write_text(MAIN.replace("SIZES", sizes))
    flags = ["-std=c99", "-O1", *STRICT, *SANITISED]
    checked(["gcc", *flags, "main.c", "net.c", "net_weights.c", "-lm", "-o", "t"], tmp_path)
    assert checked(["./t"], tmp_path).strip() == told


def test_an_output_that_overlaps_at_these_sizes_is_refused():
    run = HostModel(open_program(network()))
    run(network_feeds(1, 2))
    text = bundle(run.model.program, BundleOptions("net"))["net.c"]
    assert "(uint32_t)(size_N * size_S * 8 * 4)" in text


def test_shapes_that_do_not_fit_are_refused():
    run = HostModel(open_program(network()))
    x, y = network_feeds(2, 3)
    with pytest.raises(ModelError, match=r"N = 6 is not in 1\.\.5"):
        run(network_feeds(6, 3))
    with pytest.raises(ModelError, match="input 'y' takes"):
        run([x, y[:, :2]])


def test_one_compilation_serves_all_sizes():
    compiled = graphc.compile(
        model(NETWORK), target="c", specialise="any", dims={"N": (1, 5), "S": (1, 9)}
    )
    for sizes in ((1, 1), (5, 9), (3, 4), (1, 9)):
        feeds = network_feeds(*sizes)
        for got, expected in zip(compiled.run(feeds), by_onnx_runtime(model(NETWORK), feeds)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert len([made for made in compiled.executables() if made.run]) == 1


def test_integer_models_stay_integer():
    proto = convolution(np.int8, (1, 8, 6, 7), (6, 8, 3, 3), pads=[1, 1, 1, 1]).result
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    del proto.graph.value_info[:]
    program = open_program(bounded(proto, N=(1, 4)))
    floats = [b for k in program.kernels.values() for b in k.params if b.dtype.is_float]
    assert not floats, "all kernels take integers"
    run = HostModel(program, sanitize=True)
    rng = np.random.default_rng(0)
    for count in (1, 3, 4):
        type = program.inputs[0][1]
        x = rng.integers(-100, 100, (count, *type.dims[1:])).astype(type.dtype.np)
        (expected,) = by_onnx_runtime(proto, [x])
        assert np.abs(run([x])[0].astype(int) - expected.astype(int)).max() <= 1


def test_documents_tell_the_bounds(tmp_path):
    program = open_program(network())
    files = write_bundle(program, tmp_path, BundleOptions("net"))
    report = json.loads(files["report.json"])
    assert report["sizes"] == {"N": [1, 5], "S": [1, 9]}
    assert report["inputs"][0]["bytes"] == 5 * 9 * 8 * 4
    header = files["net.h"]
    assert "#define NET_SIZES_S_MAX 9" in header and "NET_INPUT_x_SHAPE" not in header
    assert "net_run(&sizes, &in, &out, arena)" in files["README.md"]
    checked(["gcc", "-std=c99", "-O2", "-c", "-fstack-usage", "net.c"], tmp_path)
    used = {
        line.split("\t")[0].rpartition(":")[2]: int(line.split("\t")[1])
        for line in Path(tmp_path, "net.su").read_text().splitlines()
    }
    assert used["net_run"] <= Budget.of(bundled(program, BundleOptions("net"))).run_stack


def test_layers_are_traced_at_the_sizes_of_a_run():
    run = HostModel(open_program(network()), traced=True)
    few, many = run.trace(network_feeds(1, 2)), run.trace(network_feeds(5, 9))
    assert [t.layer for t in few] == [t.layer for t in many]
    assert [t.name for t in few][:2] == ["x", "y"] and few[0].crc != many[0].crc


def test_large_sizes_are_refused():
    graph = bounded(model("g (float[N,2] x) => (y) { y = Neg(x) }"), N=(1, 1 << 33))
    with pytest.raises((UnsupportedError, ModelError)):
        bundle(open_program(graph), BundleOptions("net"))


def test_the_command_line(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    onnx.save(model(NETWORK), path)
    arguments = ["compile", str(path), "--target", "c", "-o", str(tmp_path / "out")]
    assert app.main([*arguments, "--specialise", "any", "--dim", "N=1..5", "--dim", "S=1..9"]) == 0
    assert "net_sizes" in (tmp_path / "out" / "net.h").read_text()
    capsys.readouterr()
    assert app.main([*arguments, "--specialise", "any", "--dim", "N=1..5"]) != 0
    assert "S has no upper bound" in capsys.readouterr().err
    board = [*arguments, "--specialise", "any", "--dim", "N=1..5", "--dim", "S=1..9"]
    assert app.main([*board, "--board", "mps2-an386"]) != 0
    assert "--board: takes a model of fixed shapes" in capsys.readouterr().err


def test_names_of_sizes_are_fields():
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    shape = (TensorProto.FLOAT, ["batch-size", "int", "LEN"])
    proto = model_of(nodes, {"x": shape}, {"y": shape})
    graph = pin(load_graph(proto), dims={name: (1, 4) for name in load_graph(proto).symbols})
    run = HostModel(open_program(graph), sanitize=True)
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(run([x])[0], -x)


def test_layers_of_constant_shape_share_kernels(tmp_path):
    lengths = range(4, 9)
    given = ", ".join(f"float[{n},3] c{n}" for n in lengths)
    lines = "\n".join(f"y{n} = Transpose<perm = [1, 0]>(c{n})" for n in lengths)
    source = f"g (float[N,2] x, {given}) => (z, {', '.join(f'y{n}' for n in lengths)}) {{"
    source += f"\nz = Neg(x)\n{lines}\n}}"
    program = open_program(bounded(model(source), N=(1, 3)))
    shared = [step.sizes for step in program.calls if all(isinstance(n, int) for n in step.sizes)]
    assert len([sizes for sizes in shared if sizes]) == len(lengths)
    feeds = [random_floats(2, 2), *(random_floats(n, 3) for n in lengths)]
    samples = feeds, by_onnx_runtime(model(source), feeds)
    write_bundle(program, tmp_path, BundleOptions("net", samples=samples))
    flags = ["-std=c99", "-O1", *STRICT, *SANITISED]
    checked(["gcc", *flags, "net.c", "net_weights.c", "net_test.c", "-lm", "-o", "t"], tmp_path)
    checked(["./t"], tmp_path)


def random_floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def test_a_bundle_has_tiles_of_open_rows():
    program = open_program(graph_of("gemm"))
    (kernel,) = program.kernels.values()
    assert kernel.name.startswith("tiles") and kernel.sizes
