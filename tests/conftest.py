"""What the whole suite shares: options, markers, and a folder for tests that write into theirs.

Tests marked `gpu` need a GPU; where there is none they are skipped, and say why. With --cases N at
most N cases of each function run, always the same ones; all of one marked `suite("all")`, as they
are quick. --quick is --cases QUICK: then n cases run of a function marked `suite(n)`, none of one
marked `suite`; with a larger N more in proportion.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator

import pytest

from graphc.backends import cache
from graphc.backends.behind import finish
from graphc.errors import UnsupportedError
from graphc.ir.opdef import REGISTRY
from graphc.passes.manager.base import PASSES
from graphc.passes.rewriter import RULES
from graphc.targets import TARGETS

QUICK = 2
SIMULATED = "tests/backends/cuda/"  # where a case compiles C++, for about a second: half as many


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--damages", type=int, default=40, help="damaged copies to try of each kind of file"
    )
    parser.addoption("--cases", type=int, default=0, help="at most so many cases of each function")
    parser.addoption("--quick", action="store_true", help=f"the same as --cases {QUICK}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = QUICK if config.getoption("quick") else config.getoption("cases")
    if cases:
        leave_out(beyond(cases, items), config, items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if marked else ""
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def beyond(most: int, items: list[pytest.Item]) -> set[str]:
    """The names of the cases that --cases leaves out: of each function those of largest hashes."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.split("[")[0]].append(item)
    names: set[str] = set()
    for cases in functions.values():
        marker = cases[0].get_closest_marker("suite")
        kept = max(1, most // 2) if cases[0].nodeid.startswith(SIMULATED) else most
        if marker is not None:
            marked = next(iter(marker.args), 0)
            kept = len(cases) if marked == "all" else marked * most // QUICK + most - QUICK
        ordered = sorted((case.nodeid for case in cases), key=lambda s: (zlib.crc32(s.encode()), s))
        names.update(ordered[kept:])
    return names


def leave_out(names: set[str], config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests by their names."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in names])
    items[:] = [item for item in items if item.nodeid not in names]


def why_no_gpu() -> str:
    """What is missing to run kernels on a GPU; nothing if one can be used."""
    from graphc.backends.cuda.gpu import image_for, open_gpu

    try:
        image_for("", open_gpu().arch)
    except UnsupportedError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Whatever a test registers, or a plugin that it loads, is forgotten after it, and it leaves no
    work behind."""
    before = [(registry, dict(registry)) for registry in (REGISTRY, PASSES, RULES, TARGETS)]
    yield
    finish()
    for registry, old in before:
        registry.clear()
        registry.update(old)


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    """An empty cache, and none of the operators and rules that other test files define, for which
    models would not be cached."""
    monkeypatch.setenv("GRAPHC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_told", set())
    registries: tuple[dict, ...] = (REGISTRY, RULES)
    for registry in registries:
        for name, made in list(registry.items()):
            if made.function is not None and not made.function.__module__.startswith("graphc."):
                monkeypatch.delitem(registry, name)


@pytest.fixture
def elsewhere(tmp_path_factory, monkeypatch) -> None:
    """A test runs in a folder of its own, where an internal error leaves its replay."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
