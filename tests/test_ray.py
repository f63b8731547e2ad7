"""Batches in processes of Ray; without it, what its processes run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import graphc
from graphc import ray as batches

DIGITS = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"
X = np.random.default_rng(0).random((50, 1, 8, 8), np.float32)


@pytest.fixture
def cluster(tmp_path):
    ray = pytest.importorskip("ray")
    root = Path(graphc.__file__).parents[1]
    environment = {"env_vars": {"PYTHONPATH": f"{root}:{Path(__file__).parent}"}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield ray
    ray.shutdown()


@pytest.fixture
def compiled(tmp_path):
    """The model for batches of 8, in a file."""
    model = graphc.compile(DIGITS, dims={"N": 8}, threads=1)
    model.save(tmp_path / "digits.gcm")
    return tmp_path / "digits.gcm", graphc.compile(DIGITS).run([X])[0]


def test_a_process_fills_up_batches(compiled):
    path, wanted = compiled
    run = batches.Predictor(path, {"image": "picture"}, keep=("number",))
    name = run.model.outputs[0].name
    for rows in (slice(0, 8), slice(48, 50)):
        made = run({"picture": X[rows], "number": np.arange(50)[rows]})
        assert set(made) == {"number", name}
        np.testing.assert_allclose(made[name], wanted[rows], rtol=1e-5, atol=1e-6)


def test_what_is_missing_is_named(compiled):
    path, _ = compiled
    with pytest.raises(graphc.ModelError, match="there is no input 'picture'"):
        batches.Predictor(path, {"picture": "image"})
    with pytest.raises(graphc.ModelError, match="there is no column 'image'"):
        batches.Predictor(path)({"x": X})


def test_without_ray_it_is_told(compiled, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(graphc.UnsupportedError, match=r"pip install 'graphc-compiler\[ray\]'"):
        batches.predict(None, compiled[0])


def test_a_data_set(cluster, compiled):
    path, wanted = compiled
    columns = {"image": X, "number": np.arange(50)}
    dataset = cluster.data.from_items(
        [{name: array[n] for name, array in columns.items()} for n in range(50)]
    )
    found = batches.predict(dataset, path, batch=8, workers=2, keep=("number",)).take_all()
    name = graphc.load(path).outputs[0].name
    assert sorted(int(row["number"]) for row in found) == list(range(50))
    for row in found:
        np.testing.assert_allclose(row[name], wanted[int(row["number"])], rtol=1e-5, atol=1e-6)


def _loop(config):
    from graphc import train
    from graphc.train.parallel import DataParallel

    step = train.Step(config["model"], optimizer=train.SGD(0.05), train_mode=False, threads=1)
    parallel = DataParallel(step)
    for x, y in config["batches"]:
        parallel((x[parallel.rank :: parallel.size], y[parallel.rank :: parallel.size]))
    parallel.save(config["out"])


def test_training_in_processes(cluster, tmp_path):
    pytest.importorskip("ray.train")
    from graphc import train

    labels = np.arange(50) % 10
    steps = [(X[:10], labels[:10]), (X[10:20], labels[10:20])]
    config = {"model": str(DIGITS), "batches": steps, "out": str(tmp_path / "run.npz")}
    batches.fit(_loop, 2, config)
    alone = train.Step(DIGITS, optimizer=train.SGD(0.05), train_mode=False)
    for batch in steps:
        alone(batch)
    found = train.read_state_dict(tmp_path / "run.npz")
    for name, array in alone.state_dict().items():
        np.testing.assert_allclose(found[name], array, atol=1e-5)
