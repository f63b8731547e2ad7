"""The cache of whole models: what a warm process imports, staleness, damage, concurrent writers,
directories that cannot be written to or that others own."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc import driver, files
from graphc.backends import cache as C
from graphc.backends.behind import finish
from graphc.backends.llvm_cpu import target
from graphc.errors import ModelError, ModelWarning, UnsupportedError
from graphc.ir import opdef
from graphc.runtime import tiers
from graphc.runtime.model_cache import CachedModel

DIGITS = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"
pytestmark = pytest.mark.usefixtures("own_cache")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(factor=2.0, rows=2, external=None, inputs=("x",)):
    """A model of the product of its inputs and a factor, rows of three elements, which may lie in a
    file beside it."""
    constant = numpy_helper.from_array(np.full((1, 3), factor, np.float32), "0")
    nodes = [helper.make_node("Mul", [str(n), name], [str(n + 1)]) for n, name in enumerate(inputs)]
    names = (*inputs, str(len(inputs)))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 3]) for n in names]
    graph = helper.make_graph(nodes, "scaled", values[:-1], values[-1:], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    if external:
        onnx.external_data_helper.convert_model_to_external_data(
            model, location=external, size_threshold=0
        )
    return model


def saved(path, **options):
    onnx.save(scaled(**options), path)
    return path


def is_cached(source, **options):
    return type(graphc.compile(source, threads=1, **options)) is CachedModel


def test_a_known_model_is_not_compiled_again(tmp_path):
    path = saved(tmp_path / "m.onnx")
    interfaces = []
    for cached in (False, True):
        model = graphc.compile(path, threads=1)
        assert (type(model) is CachedModel) == cached and isinstance(model, graphc.CompiledModel)
        np.testing.assert_array_equal(model(X)[0], 2 * X)
        interfaces.append([(s.name, str(s.type)) for s in (*model.inputs, *model.outputs)])
    assert interfaces[0] == interfaces[1]
    with pytest.raises(ModelError, match="takes shape"):
        model([X[:, :2].tolist()])
    content = path.read_bytes()
    assert is_cached(content)  # the bytes are the key, not the file
    (tmp_path / "copy.onnx").write_bytes(content)
    assert is_cached(str(tmp_path / "copy.onnx"))


WARM = """
import sys
import numpy as np
import graphc
model = {how}
(y,) = model(np.ones((1, 1, 8, 8), np.float32))
heavy = ("onnx", "llvmlite", "ml_dtypes", "graphc.ir.graph", "graphc.ir.simplify", "graphc.ir.text",
         "graphc.passes", "graphc.driver", "graphc.targets", "importlib.metadata",
         "google.protobuf", {more})
print(float(y.sum()), [name for name in heavy if name in sys.modules])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere LLVM loads the code")
@pytest.mark.parametrize(
    "shapes, more", [({"image": (1, 1, 8, 8)}, '"graphc.ir.expr"'), (None, "")]
)
def test_a_warm_process_imports_no_compiler(tmp_path, shapes, more):
    model = graphc.compile(DIGITS, shapes=shapes, threads=1)
    wanted = float(model(np.ones((1, 1, 8, 8), np.float32))[0].sum())
    model.save(tmp_path / "digits.gcm")
    how = (
        f"graphc.compile({str(DIGITS)!r}, shapes={shapes}, threads=1)",
        f"graphc.load({str(tmp_path / 'digits.gcm')!r}, threads=1)",
    )
    for text in how:
        told = ""
        for _ in range(2):  # the first one may compile what checks digests
            told = subprocess.run(
                [sys.executable, "-c", WARM.format(how=text, more=more)],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
        assert told == f"{wanted} []\n"


def test_the_command_line_takes_a_known_model_from_the_cache():
    arguments = ["run", str(DIGITS), "--shape", "image=1,1,8,8", "--threads", "1"]
    heavy = ("onnx", "llvmlite", "graphc.driver", "graphc.passes.specialise")
    code = f"""
import sys
from graphc.cli import main
main({arguments})
print([name for name in {heavy} if name in sys.modules])
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    first, *_, last = (run.stdout.splitlines() for run in runs)
    assert first[:-1] == last[:-1] != []
    assert last[-1] == "[]"


# ---------------------------------------------------------------- staleness


def test_changed_bytes(tmp_path):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    times = os.stat(path)
    saved(path, factor=3.0)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    model = graphc.compile(path, threads=1)
    assert type(model) is not CachedModel
    np.testing.assert_array_equal(model(X)[0], 3 * X)


def test_a_remembered_digest_is_that_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RECENT", 0.0)  # digests are remembered at once
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    assert is_cached(path)
    data, times = path.read_bytes(), os.stat(path)
    path.write_bytes(data.replace(np.float32(2).tobytes(), np.float32(5).tobytes()))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(data) == path.stat().st_size
    np.testing.assert_array_equal(graphc.compile(path, threads=1)(X)[0], 5 * X)


@pytest.mark.parametrize("external", [None, "weights.bin"])
def test_what_changes_before_it_is_hashed_is_not_kept(tmp_path, external):
    path = tmp_path / "m.onnx"
    onnx.save(scaled(external=external), path)
    first = graphc.compile(path, threads=1)
    onnx.save(scaled(factor=3.0, external=external), path)  # the old bytes are not hashed yet
    finish()
    model = graphc.compile(path, threads=1)
    assert type(model) is not CachedModel
    np.testing.assert_array_equal(first(X)[0], 2 * X)
    np.testing.assert_array_equal(model(X)[0], 3 * X)
    assert is_cached(path)


def test_external_data(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(scaled(external="weights.bin"), path)
    graphc.compile(path, threads=1)
    assert is_cached(path)
    (tmp_path / "weights.bin").write_bytes(np.full(3, 7, np.float32).tobytes())
    model = graphc.compile(path, threads=1)
    assert type(model) is not CachedModel
    np.testing.assert_array_equal(model(X)[0], 7 * X)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="missing"):
        graphc.compile(path, threads=1)


def test_arguments_are_part_of_the_key(tmp_path):
    path = saved(tmp_path / "m.onnx", rows="N", inputs=("x", "z"))
    value = np.ones((2, 3), np.float32)
    for options in (
        {"dims": {"N": 2}},
        {"dims": {"N": 3}},
        {"dims": {"N": (1, 2)}},
        {"shapes": {"x": (2, 3), "z": (2, 3)}},
        {"values": {"x": value}, "dims": {"N": 2}},
        {"values": {"x": 2 * value}, "dims": {"N": 2}},
        {"dims": {"N": 2}, "checks": "off"},
        {"dims": {"N": 2}, "max_iterations": 3},
    ):
        assert not is_cached(path, **options)
        assert is_cached(path, **options)
    with pytest.raises(ModelError, match="no option"):
        graphc.compile(path, dims={"N": 2}, cheks="off")


def test_who_watches_or_extends_graphc_compiles(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    assert not is_cached(path, observe=lambda program: None)
    assert not is_cached(path, passes="decompose, fold, fuse")
    with monkeypatch.context() as patch:
        patch.setenv("GRAPHC_FUEL", "0")
        assert not is_cached(path)
    with monkeypatch.context() as patch:
        own = opdef.lookup("Mul")
        patch.setattr(opdef, "REGISTRY", {**opdef.REGISTRY, "mine": _Foreign(own)})
        assert not is_cached(path)
    assert is_cached(path)


class _Foreign:
    """A definition of a user's own."""

    def __init__(self, defn):
        self.defn, self.function = defn, lambda: None


def test_version_and_cpu_are_part_of_the_key(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(C, "_fingerprint", lambda: b"another version")
        assert not is_cached(path)
    with monkeypatch.context() as patch:
        scalar = target.named_target("scalar")
        patch.setattr(target, "_host_target", lambda: scalar)
        assert not is_cached(path)
    assert is_cached(path)


# ---------------------------------------------------------------- open shapes


def test_open_shapes(tmp_path):
    path = saved(tmp_path / "m.onnx", rows="N")
    options = {"threads": 1, "specialise": "exact"}
    first = graphc.compile(path, **options)
    first(X)
    model = graphc.compile(path, **options)
    assert type(model) is CachedModel and model.inputs[0].shape == first.inputs[0].shape
    np.testing.assert_array_equal(model(X)[0], 2 * X)
    assert "whole" not in vars(model)
    np.testing.assert_array_equal(model(X[:1])[0], 2 * X[:1])  # compiled now, and kept
    assert "whole" in vars(model)
    again = graphc.compile(path, **options)
    again(X[:1])
    assert "whole" not in vars(again)
    assert again.graph.name == "scaled" and again.prepare() is False


def test_the_program_for_all_shapes_comes_from_the_cache(tmp_path):
    path = saved(tmp_path / "m.onnx", rows="N")
    graphc.compile(path, threads=1, specialise="auto")(X)
    model = graphc.compile(path, threads=1, specialise="auto")
    assert type(model) is CachedModel
    for x in (X, X[:1]):
        np.testing.assert_array_equal(model(x)[0], 2 * x)
    assert "whole" not in vars(model)


LARGE = np.ones((1000, 3), np.float32)  # beyond the bounds of a program made for two rows


@pytest.mark.parametrize("mode, new", [("exact", X[:1]), ("auto", LARGE)])
def test_a_source_that_has_changed_is_not_compiled_for_new_shapes(tmp_path, mode, new):
    path = saved(tmp_path / "m.onnx", rows="N")
    graphc.compile(path, threads=1, specialise=mode)(X)
    model = graphc.compile(path, threads=1, specialise=mode)
    saved(path, rows="N", factor=4.0)
    np.testing.assert_array_equal(model(X)[0], 2 * X)
    with pytest.raises(ModelError, match="has changed"):
        model(new)


def test_why_there_is_no_program_for_all_shapes_is_kept(tmp_path, monkeypatch):
    tried = []

    def refused(graph, *more):
        tried.append(graph.name)
        raise UnsupportedError("it is odd")

    monkeypatch.setattr(tiers, "open_within", refused)
    path = saved(tmp_path / "m.onnx", rows="N")
    model = graphc.compile(path, threads=1, specialise="auto")
    np.testing.assert_array_equal(model(X)[0], 2 * X)
    attempts = len(tried)
    np.testing.assert_array_equal(model(X[:1])[0], 2 * X[:1])
    later = graphc.compile(path, threads=1, specialise="auto")
    np.testing.assert_array_equal(later(LARGE)[0], 2 * LARGE)  # compiled in another process
    assert len(tried) == attempts > 0
    assert model.why_exact == later.why_exact == "it is odd"


def test_a_wrong_request_says_nothing_of_programs_for_all_shapes():
    text = """<ir_version: 10, opset_import: ["": 20]>
    pairs (float[N, K] x, float[N, L] y) => (float[N, M] z) { z = Add (x, y) }"""
    model = graphc.compile(onnx.parser.parse_model(text), threads=1, specialise="auto")
    for _ in range(2):
        with pytest.raises(ModelError):
            model(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model(x, x)[0], 2 * x)
    assert any(info.is_general for info in model.executables())


def test_a_cached_model_can_be_saved(tmp_path):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    model = graphc.compile(path, threads=1)
    assert type(model) is CachedModel
    model.save(tmp_path / "m.gcm")
    np.testing.assert_array_equal(graphc.load(tmp_path / "m.gcm", threads=1)(X)[0], 2 * X)


# ---------------------------------------------------------------- trust


def _entries(tmp_path):
    return [p for p in sorted((tmp_path / "cache").rglob("*")) if p.is_file()]


@pytest.mark.parametrize("how", ["removed", "cut", "changed", "swapped"])
def test_damaged_entries(tmp_path, how):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    contents = {p: p.read_bytes() for p in _entries(tmp_path)}
    other = next(iter(contents.values()))
    for entry, data in contents.items():
        if how == "removed":
            entry.unlink()
        else:
            middle = len(data) // 2
            entry.write_bytes({
                "cut": data[:middle],
                "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "swapped": other,
            }[how])  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            model = graphc.compile(path, threads=1)
        np.testing.assert_array_equal(model(X)[0], 2 * X)
        for p, kept in contents.items():
            p.write_bytes(kept)


def test_concurrent_writers(tmp_path):
    path = saved(tmp_path / "m.onnx")
    wrong = []

    def work():
        for _ in range(3):
            if not np.array_equal(graphc.compile(path, threads=1)(X)[0], 2 * X):
                wrong.append(path)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and is_cached(path)


def test_a_directory_that_cannot_be_written_to(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx")

    def refused(*_args, **_options):
        raise PermissionError(13, "read-only")

    with monkeypatch.context() as patch:
        patch.setattr(C, "_write_aside", refused)
        assert not is_cached(path) and not is_cached(path)
    graphc.compile(path, threads=1)
    monkeypatch.setattr(C, "_write_aside", refused)
    monkeypatch.setattr(C.os, "utime", refused)
    assert is_cached(path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="only POSIX tells owners")
def test_entries_of_another_owner(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx")
    graphc.compile(path, threads=1)
    assert is_cached(path)
    for entry in _entries(tmp_path):
        entry.chmod(0o666)
    with pytest.warns(ModelWarning, match="can be written by other users"):
        assert not is_cached(path)
    (tmp_path / "cache").chmod(0o777)
    assert not is_cached(path) and not is_cached(path)


def test_warnings_are_not_lost(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx")
    real = driver.load_graph

    def odd(source):
        graphc.errors.warn("the model is odd")
        return real(source)

    monkeypatch.setattr(driver, "load_graph", odd)
    for _ in range(2):
        with pytest.warns(ModelWarning, match="odd"):
            assert not is_cached(path)


def test_a_model_from_the_cache_saves_what_it_was_run_with(tmp_path):
    path = saved(tmp_path / "m.onnx", rows="rows")
    inputs = [np.ones((n, 3), np.float32) for n in (2, 5)]
    model = graphc.compile(path, threads=1, specialise="exact")
    for x in inputs:
        model.run([x])
    model = graphc.compile(path, threads=1, specialise="exact")
    assert type(model) is CachedModel
    for x in inputs:
        model.run([x])
    assert [str(info) for info in model.executables()] == [
        f"[{n}, 3]: exact, from the cache of models" for n in (2, 5)
    ]
    model.save(tmp_path / "m.gcm")
    loaded = graphc.load(tmp_path / "m.gcm", threads=1)
    assert [str(info) for info in loaded.executables()] == [
        f"[{n}, 3]: exact, from the file" for n in (2, 5)
    ]
    for x in inputs:
        np.testing.assert_array_equal(loaded.run([x])[0], 2 * x)
