"""Tests marked `gpu` need a GPU; where there is none they are skipped, and say why."""

from __future__ import annotations

import pytest

from graphc.errors import UnsupportedError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--damages", type=int, default=40, help="damaged copies to try of each kind of file"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if marked else ""
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def why_no_gpu() -> str:
    """What is missing to run kernels on a GPU; nothing if one can be used."""
    from graphc.backends.cuda.gpu import image_for, open_gpu

    try:
        image_for("", open_gpu().arch)
    except UnsupportedError as error:
        return str(error)
    return ""


@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch) -> None:
    """A test runs in a folder of its own, where an internal error leaves its replay."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
