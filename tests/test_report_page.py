"""The page of graphc report in Chromium, used as a person does: clicks, keys, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from chromium import PROGRAM, Chromium
from commands import DIGITS, make, ok, save
from onnx import TensorProto, helper, numpy_helper
from test_report_command import HOSTILE, QUICK, report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
CODE = "#detail .code[open] pre"


def residual(blocks: int, name: str = "layer{}/{}") -> onnx.ModelProto:
    """A network like ResNet: blocks of two convolutions with a shortcut, then a classifier."""
    rng, nodes, weights, x = np.random.default_rng(0), [], [], "x"

    def weight(label, *shape):
        array = rng.standard_normal(shape).astype(np.float32) / 9
        weights.append(numpy_helper.from_array(array, label))
        return label

    def node(operator, inputs, label, **attributes):
        result = f"{label} result"
        nodes.append(helper.make_node(operator, inputs, [result], label, **attributes))
        return result

    for n in range(blocks):
        shortcut = x
        for m in (1, 2):
            w = weight(f"w{n}.{m}", 4, 4, 3, 3)
            x = node("Conv", [x, w], name.format(n, f"conv{m}"), pads=[1, 1, 1, 1])
            if m == 1:
                x = node("Relu", [x], name.format(n, "relu1"))
        x = node(
            "Relu", [node("Add", [x, shortcut], name.format(n, "add"))], name.format(n, "relu2")
        )
    x = node("Flatten", [node("GlobalAveragePool", [x], "pool")], "flatten")
    nodes.append(helper.make_node("Gemm", [x, weight("fc", 4, 3)], ["y"], "fc/Gemm"))
    return make(nodes, [("x", TensorProto.FLOAT, (1, 4, 6, 6))], constants=weights)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> tuple[Path, dict]:
    """The page of the digits model, and its data."""
    path = tmp_path_factory.mktemp("digits") / "report.html"
    return path, report(DIGITS, *QUICK, "-o", str(path))


@pytest.fixture
def opened(browser, digits, tmp_path):
    """Opens the page of a model; in the end it has asked for nothing, and complained of nothing."""

    def opening(model, *options) -> tuple[Chromium, dict]:
        path, data = digits
        if model != DIGITS or options:
            path = tmp_path / "report.html"
            data = report(Path(model), *QUICK, "-o", path, *options)
        browser.requests.clear()
        browser.complaints.clear()
        browser.open(path)
        return browser, data

    yield opening
    assert [re.sub(r".*/", "", url) for url in browser.requests] == ["report.html"]
    assert browser.complaints == []


def row(kind: str, number: int) -> str:
    return f'tbody [data-kind="{kind}"][data-number="{number}"]'


def node(kind: str, number: int) -> str:
    return f'svg [data-kind="{kind}"][data-number="{number}"]'


@pytest.mark.parametrize("model", ["digits", "residual"])
def test_from_any_layer_to_its_code_in_two_clicks(opened, tmp_path, model):
    path = DIGITS if model == "digits" else save(tmp_path / "residual.onnx", residual(3))
    page, data = opened(path)
    for tab, where in (("layers", row), ("graph", node)):
        page.click(f'#tabs [data-tab="{tab}"]')
        for number, layer in enumerate(data["layers"]):
            page.click(where("layer", number))
            assert layer["name"] in page.texts("#detail h2")[0]
            page.click("#detail .kernels .link")
            kernel, code = page.texts("#detail h2")[0], page.texts(CODE)[0]
            step = data["steps"][int(kernel.rpartition("step ")[2])]
            assert kernel.startswith(step["name"]) and step["name"] in code
            assert code == data["kernels"][step["kernel"]]["code"]["llvm"]
            assert layer["name"] in step["loc"]


def test_a_layer_without_a_kernel_leads_to_what_reads_it(opened, tmp_path):
    constant = numpy_helper.from_array(np.ones((2, 3), np.float32), "c")
    nodes = [
        helper.make_node("Neg", ["c"], ["folded"], "folded away"),
        helper.make_node("Add", ["x", "folded"], ["y"], "kept"),
    ]
    page, data = opened(save(tmp_path / "m.onnx", make(nodes, constants=[constant])))
    assert [len(layer["steps"]) for layer in data["layers"]] == [0, 1]
    page.press("3")
    page.click(row("layer", 0))
    assert "folding" in page.texts("#detail .fate")[0]
    page.click("#detail .kernels .link")
    assert data["steps"][0]["name"] in page.texts(CODE)[0]


def test_selection_is_the_same_everywhere(opened):
    page, data = opened(DIGITS)
    bn = next(n for n, x in enumerate(data["layers"]) if x["operator"] == "BatchNormalization")
    page.press("2")
    page.click(node("layer", bn))
    (group,) = data["layers"][bn]["groups"]
    assert page.js(f"document.querySelector('{node('group', group)}').matches('.related')")
    assert page.js("document.querySelectorAll('.node.chosen').length") == 1
    page.click(f'#detail .link[data-kind="group"][data-number="{group}"]')
    chosen = page.js("[...document.querySelectorAll('.node.related')].map(e => e.dataset.number)")
    assert sorted(map(int, chosen)) == data["groups"][group]["layers"]
    page.press("4")
    related = page.js("[...document.querySelectorAll('tr.related')].map(e => e.dataset.number)")
    assert sorted(map(int, related)) == data["groups"][group]["steps"]
    page.press("5")
    marked = page.js("[...document.querySelectorAll('.live.chosen')].map(e => e.dataset.steps)")
    assert sorted(map(int, marked)) == data["groups"][group]["steps"]


def test_nodes_of_a_graph_stand_apart_and_edges_go_down(opened, tmp_path):
    page, data = opened(save(tmp_path / "m.onnx", residual(12, "block {} {}")))
    page.press("2")
    boxes = page.js(
        """[...document.querySelectorAll('.graph:first-child .node')].map((e) => {
        const [x, y] = e.getAttribute('transform').match(/[-.0-9]+/g).map(Number);
        return [e.dataset.number ?? null, x, y]; })"""
    )
    places = {int(number): (x, y) for number, x, y in boxes if number is not None}
    assert len(places) == len(data["layers"])
    rows: dict[float, list[float]] = {}
    for _, x, y in boxes:
        rows.setdefault(y, []).append(x)
    for across in map(sorted, rows.values()):
        assert all(b - a >= 156 for a, b in zip(across, across[1:]))
    for number, layer in enumerate(data["layers"]):
        assert all(places[m][1] < places[number][1] for m in layer["reads"])


def test_paths_collapse_and_open(opened, tmp_path):
    page, data = opened(save(tmp_path / "m.onnx", residual(30, "/net/layer{}/{}")))
    page.press("2")
    folder = ".graph:first-child .node.folder"
    count = "document.querySelectorAll('.graph:first-child .node').length"
    before = page.js(count)
    assert before < 80 < len(data["layers"])
    page.click(folder)
    after = page.js(count)
    assert after > before
    page.click('.graph:first-child [aria-label="collapse by path"]')
    assert page.js(count) < before
    page.press("3")
    page.click(row("layer", 70))
    page.press("2")
    assert page.js("document.querySelectorAll('.graph:first-child .folder.chosen').length") == 1


def test_tables_sort_and_filter(opened):
    page, data = opened(DIGITS)
    page.press("4")
    column = "[...document.querySelectorAll('tbody tr')].map(e => Number(e.dataset.number))"
    ordered = sorted(range(len(data["steps"])), key=lambda n: (-data["steps"][n]["seconds"], n))
    assert page.js(column) == ordered
    page.click("thead th:nth-child(1) button")
    assert page.js(column) == list(range(len(ordered)))[::-1]
    page.click("thead th:nth-child(1) button")
    assert page.js(column) == list(range(len(ordered)))
    assert page.js("document.querySelector('thead th').getAttribute('aria-sort')") == "ascending"
    page.press("/")
    page.type("POOL nest")
    shown = [n for n, s in enumerate(data["steps"]) if "/pool" in str(s["loc"])]
    assert page.js(column) == shown
    assert page.texts(".count") == [f"{len(shown)} of {len(data['steps'])}"]
    page.press("Enter")
    page.press("Enter")
    assert data["steps"][shown[0]]["name"] in page.texts("#detail h2")[0]


def test_keys(opened):
    page, data = opened(DIGITS)
    page.press("3")
    page.press("j")
    assert data["layers"][0]["name"] in page.texts("#detail h2")[0]
    page.press("ArrowDown")
    page.press("j")
    assert data["layers"][2]["name"] in page.texts("#detail h2")[0]
    page.press("k")
    assert data["layers"][1]["name"] in page.texts("#detail h2")[0]
    page.press("Escape")
    assert page.texts("#detail h2") == []
    page.press("2")
    page.click(node("layer", 0))
    page.js("document.querySelector('.canvas').focus()")
    page.press("ArrowDown")
    assert data["layers"][1]["name"] in page.texts("#detail h2")[0]
    page.press("ArrowUp")
    assert data["layers"][0]["name"] in page.texts("#detail h2")[0]
    page.press("?")
    assert page.js("document.querySelector('#help').open")
    page.press("Escape")
    assert not page.js("document.querySelector('#help').open")


def test_every_tab_shows_something(opened):
    page, data = opened(DIGITS)
    for key, expected in {
        "1": data["limits"][0], "2": "as imported", "3": "/conv1/Conv", "4": "contract_1",
        "5": "The arena over time", "6": "operations per byte",
    }.items():  # fmt: skip
        page.press(key)
        assert expected in page.texts("#view")[0]
    page.press("6")
    page.click('circle[data-kind="step"]')
    assert page.texts(CODE)


def test_overlays_colour_nodes(opened, tmp_path, capsys):
    compared = tmp_path / "compared.json"
    compared.write_text(ok(capsys, "compare", DIGITS, "--dim", "N=1", "--all", "--json"))
    page, _ = opened(DIGITS, "--accuracy", compared)
    page.press("2")
    names = page.js("[...document.querySelectorAll('#overlay option')].map(e => e.value)")
    assert {"time", "factor", "bound", "flops", "bytes", "memory", "accuracy"} <= set(names)
    for name in names:
        page.js(
            f"(() => {{ const s = document.querySelector('#overlay'); s.value = '{name}';"
            "s.dispatchEvent(new Event('change')); })()"
        )
        coloured = page.js(
            "document.querySelectorAll('.node[class*=heat-],.node[class*=bound-]').length"
        )
        assert (coloured == 0) == (name == "none"), name


def test_light_and_dark(opened):
    page, _ = opened(DIGITS)
    colour = "getComputedStyle(document.body).backgroundColor"

    def system(value: str) -> None:
        media = {"name": "prefers-color-scheme", "value": value}
        page.send("Emulation.setEmulatedMedia", features=[media])

    system("light")
    light = page.js(colour)
    system("dark")
    dark = page.js(colour)
    assert light != dark
    page.press("t")  # light, whatever the system has
    assert page.js(colour) == light
    system("light")
    page.press("t")
    assert page.js(colour) == dark
    page.press("t")
    assert page.js(colour) == light and page.texts("#theme") == ["auto"]


def test_two_reports_side_by_side(opened, tmp_path):
    other = save(tmp_path / "residual.onnx", residual(2))
    page, _ = opened(DIGITS, "--against", other)
    page.press("7")
    assert "A is digits_cnn" in page.texts("#view")[0]
    assert page.js("document.querySelectorAll('.totals tbody tr').length") >= 8
    page.press("b")
    assert page.texts("h1")[0].startswith("residual")
    page.press("3")
    assert "layer0/conv1" in page.texts("#view")[0]


def test_hostile_names_are_shown_as_text(opened, tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name=HOSTILE)
    page, _ = opened(save(tmp_path / "m.onnx", make([node])))
    for key in "12345":
        page.press(key)
        assert page.js("document.querySelectorAll('img').length") == 0
    page.press("3")
    page.press("j")
    shown = page.texts("#detail h2 small")[0]
    assert shown == HOSTILE.replace("\u202e", "\ufffd").replace("\x07", "\ufffd")
