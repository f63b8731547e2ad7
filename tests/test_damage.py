"""Files that are damaged at random are refused in one line, or do no harm: never a wrong answer.

`--damages 2000` tries that many of each kind.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import damaged

import graphc
from graphc import dsl
from graphc.backends import cache, digests
from graphc.backends.digests import CHUNK
from graphc.backends.llvm_cpu.digest_sums import native_sums
from graphc.cli.saved import contents
from graphc.errors import ModelError

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
            lambda self, key: read.add(self._path(key)) or real(self, key),
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


def test_digests_of_large_parts_by_threads():
    parts = [RNG.bytes(n) for n in (3_000_000, 0, 5, 2_097_152)]
    assert digests.digests(parts, 3) == [digests.digest(part) for part in parts]


def test_a_digest_stays_what_it_is():
    """Files outlive versions: a change here is a change of format."""
    data = bytes(range(256)) * 300
    known = "fcd17dedd873c501b7579fbdd4eda626cff56bbcabff8f843dcf601649b1fc92"
    assert digests.digest(data) == known
