"""Files that are damaged at random are refused in one line, or do no harm: never a wrong answer.

`--damages 2000` tries that many of each kind.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import struct
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from damage import damaged
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc import dsl, files
from graphc.backends import cache, digests
from graphc.backends.behind import finish
from graphc.backends.digests import CHUNK
from graphc.backends.llvm_cpu import digest_sums
from graphc.backends.llvm_cpu.container import MAGIC, Container
from graphc.backends.llvm_cpu.digest_sums import native_sums
from graphc.cli.models import load_npy, read_graph
from graphc.cli.saved import contents
from graphc.errors import ModelError
from graphc.ir import dtypes
from graphc.ir.text.printer import print_graph

DIGITS = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"
RNG = np.random.default_rng(0)


def test_saved_models(tmp_path, request):
    """Loaded and run for every shape; inspected as well."""
    inputs = [RNG.standard_normal((n, 1, 8, 8)).astype(np.float32) for n in (1, 2)]
    path = tmp_path / "digits.gcm"
    graphc.compile(DIGITS, dims={"N": (1, 2)}, threads=1).save(path)
    whole = path.read_bytes()
    wanted = [graphc.load(path, threads=1).run([x])[0] for x in inputs]
    harmless = []
    for what, data in damaged(whole, request.config.getoption("damages")):
        path.write_bytes(data)
        try:
            model = graphc.load(path, threads=1)
            for x, expected in zip(inputs, wanted):
                np.testing.assert_array_equal(model.run([x])[0], expected, err_msg=what)
            harmless.append(what)
        except ModelError as error:
            assert "\n" not in str(error) and str(path) in str(error), what
        with pytest.raises(ModelError):
            contents(str(path), None)
    assert not harmless  # there is no byte that no digest covers


TABLE = RNG.standard_normal((300, 300)).astype(np.float32)  # kept by the cache as weights


def test_weights_are_read_again_only_if_the_file_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "cache"))
    x = RNG.standard_normal((1, 1, 8, 8)).astype(np.float32)
    path = tmp_path / "digits.gcm"
    graphc.compile(DIGITS, dims={"N": 1}, threads=1).save(path)
    read = []
    check = Container.check
    monkeypatch.setattr(Container, "check", lambda self, *a: (read.append(a), check(self, *a)))

    def times_read() -> int:
        read.clear()
        graphc.load(path, threads=1).run([x])
        return len(read)

    assert [times_read(), times_read()] == [1, 1]  # it may still be written to
    monkeypatch.setattr(files, "RECENT", 0.0)
    assert [times_read(), times_read()] == [1, 0]
    data, status = bytearray(path.read_bytes()), path.stat()
    data[-100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ModelError, match="is damaged"):
        times_read()
    monkeypatch.setenv("GRAPHC_CACHE_DIR", "off")
    with pytest.raises(ModelError, match="is damaged"):
        times_read()


@dsl.graph
def small(x: dsl.f32[3, 300]):
    return dsl.Sqrt(dsl.Abs(x @ TABLE))


def test_the_cache(tmp_path, request, monkeypatch):
    """Each entry in turn is damaged; the model is compiled again, and gives what it gave."""
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_told", set())
    x = RNG.standard_normal((3, 300)).astype(np.float32)

    def run() -> np.ndarray:
        return graphc.compile(small, threads=1).run([x])[0]

    wanted = run()
    finish()
    entries = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    used = [p for p in entries if p in _read_by(run, monkeypatch)]
    assert len(used) >= 2  # an image and its weights
    count = request.config.getoption("damages")
    for seed, path in enumerate(used):
        for what, data in damaged(entries[path], -(-count // len(used)), seed):
            path.write_bytes(data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", graphc.ModelWarning)
                np.testing.assert_array_equal(run(), wanted, err_msg=f"{path}: {what}")
            path.write_bytes(entries[path])


def _read_by(run, monkeypatch) -> set[Path]:
    """The entries that a run reads."""
    read = set()
    real = cache.DiskCache.get_mapped
    with monkeypatch.context() as patch:
        patch.setattr(
            cache.DiskCache,
            "get_mapped",
            lambda self, key, *a, **k: read.add(self._path(key)) or real(self, key, *a, **k),
        )
        run()
    return read


def test_every_change_within_a_word_is_seen():
    data = RNG.integers(0, 256, CHUNK + 4099, np.uint8)
    known = digests.digest(data)
    for at in RNG.integers(0, data.size, 200):
        changed = data.copy()
        changed[at] ^= 1 << RNG.integers(8)
        assert digests.digest(changed) != known
    assert digests.digest(data[:-1]) != known
    assert digests.digest(np.append(data, np.uint8(0))) != known


@pytest.mark.parametrize("size", [0, 1, 3, 4, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 77])
def test_native_sums(size):
    data = RNG.integers(0, 256, size, np.uint8)
    np.testing.assert_array_equal(native_sums(data), digests.chunk_sums(data))
    assert digests.digests([data], 2, native_sums) == [digests.digest(data)]


def test_native_sums_keep_factors_that_no_cache_does(monkeypatch):
    """Of two threads that ask for them first, one gets an array of its own."""
    made = []

    def fresh() -> np.ndarray:
        array = digests.factors().astype(np.uint32)
        made.append(weakref.ref(array))
        return array

    def native(data: int, chunks: int, factors: int, out: int) -> None:
        array = made[-1]()
        assert array is not None and array.ctypes.data == factors

    monkeypatch.setattr(digest_sums, "_factors", fresh)
    monkeypatch.setattr(digest_sums, "_native", lambda: native)
    assert native_sums(np.zeros(CHUNK, np.uint8)).size == 1 == len(made)


def test_digests_of_large_parts_by_threads():
    parts = [RNG.bytes(n) for n in (3_000_000, 0, 5, 2_097_152)]
    assert digests.digests(parts, 3) == [digests.digest(part) for part in parts]


def test_a_digest_stays_what_it_is():
    """Files outlive versions: a change here is a change of format."""
    data = bytes(range(256)) * 300
    known = "fcd17dedd873c501b7579fbdd4eda626cff56bbcabff8f843dcf601649b1fc92"
    assert digests.digest(data) == known


def test_arrays_and_texts(tmp_path, request, monkeypatch):
    """Inputs (.npz) and the constants of a text (.gir.npz) are covered by their archives, and the
    latter by their names; an array alone (.npy) and a text have nothing but their form."""
    monkeypatch.chdir(tmp_path)
    bf16 = np.dtype(dtypes.bf16.np)
    weight = RNG.standard_normal(100).astype(bf16)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.BFLOAT16, [100]) for n in "xy")
    constant = numpy_helper.from_array(weight, "w")
    graph = helper.make_graph([node], "g", [x], [y], [constant])
    text = print_graph(graphc.import_onnx(helper.make_model(graph)))
    (key,) = re.findall(r"sha256:[0-9a-f]+", text)
    Path("m.gir").write_text(text)
    np.savez("m.gir.npz", **{key: weight})
    whole = Path("m.gir.npz").read_bytes()
    ones = np.ones(100, bf16)
    wanted = ones + weight
    assert read_graph(Path("m.gir"))  # numpy says of bfloat16 that it is two bytes
    for what, data in damaged(whole, request.config.getoption("damages")):
        Path("m.gir.npz").write_bytes(data)
        try:
            (found,) = graphc.interpret(read_graph(Path("m.gir")), [ones])
        except ModelError:
            continue
        np.testing.assert_array_equal(found, wanted, err_msg=what)
    np.savez("m.gir.npz", **{key: weight[::-1]})
    with pytest.raises(ModelError, match="is damaged"):
        read_graph(Path("m.gir"))
    np.save("x.npy", ones.astype(np.float32))
    for what, data in damaged(Path("x.npy").read_bytes(), request.config.getoption("damages")):
        Path("x.npy").write_bytes(data)
        try:
            load_npy(Path("x.npy"))
        except ModelError as error:
            assert "x.npy" in str(error), what


WRONG = (
    None, True, -1, 1.5, 1 << 40, 1 << 62, 10**400, "", "f32[9999999999999,9999999999999]",
    "../../etc/passwd", "\x1b[2J", [], [-1, -1, "x"], [[1 << 50] * 4], {}, {"x": [1, 2]},
)  # fmt: skip


def test_headers_that_lie(tmp_path, request):
    """A header with digests in order may say anything: files are refused or inspected, in one line
    of plain text each, and nothing is allocated by what they say."""
    path = tmp_path / "digits.gcm"
    graphc.compile(DIGITS, shapes={"image": (1, 1, 8, 8)}, threads=1).save(path)
    whole = path.read_bytes()
    (size,) = struct.unpack_from("<Q", whole, 8)
    header = json.loads(whole[56 : 56 + size])
    parts = whole[-(-(56 + size) // 64) * 64 :]
    assert _sealed(header, parts) == whole
    places = list(_places(header))
    lies = list(itertools.product(places, WRONG))
    lies = lies if request.config.getoption("damages") > 1000 else lies[::4]
    refused = 0
    for place, wrong in lies:
        changed = json.loads(json.dumps(header))
        inner = changed
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = wrong
        path.write_bytes(_sealed(changed, parts))
        try:
            shown = contents(str(path), None)
            assert "\x1b" not in shown, (place, wrong)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error), (place, wrong)
    assert refused > len(lies) // 2
    path.write_bytes(_sealed(json.loads("[" * 400 + "]" * 400), parts))
    with pytest.raises(ModelError):
        contents(str(path), None)


def _places(value, place=()):
    """Where something can be changed: the path of every item of what JSON says."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in itertools.islice(items, 12):
        yield (*place, key)
        if isinstance(inner, (dict, list)):
            yield from _places(inner, (*place, key))


def _sealed(header, parts):
    """The file of a header, its digest and sizes in order."""
    text = json.dumps(header).encode()
    front = -(-(56 + len(text)) // 64) * 64
    head = struct.pack("<8sQQ", MAGIC, len(text), front + len(parts))
    start = head + hashlib.sha256(head + text).digest() + text
    return start.ljust(front, b"\0") + parts
