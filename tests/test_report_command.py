"""graphc report: its data are whole and consistent on every target, and its page is sealed."""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import io
import json
import re
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from commands import DIGITS, graphc, make, ok, refused, save
from onnx import TensorProto, helper, numpy_helper

from graphc.cli import main
from graphc.report.gathered import finite
from graphc.report.page import page
from graphc.report.remedies import told
from graphc.targets.functions import by_braces, by_labels

QUICK = ["--seconds", "0.02", "--threads", "1", "--machine", "100,20"]
TARGETS = {
    "cpu": (["--threads", "1"], {"kernel", "llvm", "asm"}),
    "c": (["--target", "c", "--cpu", "cortex-m4"], {"kernel", "c"}),
    "cuda": (["--target", "cuda", "--arch", "sm_80"], {"kernel", "cuda"}),
}
HOSTILE = '</script><img src=x onerror="alert(1)">\u202e\x07{{data}}&amp;'


def report(*argv) -> dict:
    """The data of a report; of one that reads no file of a test's own, as it was made before."""
    own = any(isinstance(arg, Path) for arg in argv)
    make_report = printed.__wrapped__ if own else printed
    return json.loads(make_report(tuple(map(str, argv))), parse_constant=pytest.fail)


@cache
def printed(argv: tuple[str, ...]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["report", *argv, "--json"]) == 0
    return out.getvalue()


@pytest.mark.parametrize("target", TARGETS)
def test_everything_leads_to_code(target):
    options, forms = TARGETS[target]
    data = report(DIGITS, *options, "--seconds", "0", "--machine", "100,20")
    assert len(data["layers"]) == 13 and all(layer["steps"] for layer in data["layers"])
    for layer in data["layers"]:
        assert all(layer["name"] in data["steps"][n]["loc"] for n in layer["steps"])
        assert all(layer["name"] in data["groups"][n]["loc"] for n in layer["groups"])
        assert layer["fate"] and all(layer["types"])
    for step in data["steps"]:
        kernel = data["kernels"][step["kernel"]]
        assert kernel["name"] == step["name"] and set(kernel["code"]) == forms
        named = {"c": "_KERNEL void"}  # a bundle gives functions names of their own
        assert all(named.get(form, step["name"]) in text for form, text in kernel["code"].items())
        assert step["least"] > 0 and step["bound"] and step["seconds"] is None
        assert step["layers"] and step["strategy"]
    led = {n for group in data["groups"] for n in group["steps"]}
    assert led == set(range(len(data["steps"])))
    (arena,) = data["arenas"]
    assert len(arena["live"]) == len(data["steps"])
    assert max(offset + size for offset, size, *_ in arena["tensors"]) <= arena["bytes"]


def test_graphs_are_connected():
    data = report(DIGITS, *QUICK, "--seconds", "0")
    assert [layer["inputs"] for layer in data["layers"]][0] == ["image"]
    assert all(layer["reads"] == [n - 1] for n, layer in enumerate(data["layers"]) if n)
    assert [group["reads"] for group in data["groups"]][1:] == [[n] for n in range(5)]


def test_equal_ops_share_their_steps():
    """The trips of an LSTM that is unrolled: each has steps of its own."""
    data = report(Path(__file__).parent / "models_wild" / "torchscript_tagger.onnx", *QUICK[2:])
    steps = [n for group in data["groups"] for n in group["steps"]]
    assert sorted(set(steps)) == list(range(len(data["steps"])))
    assert len(steps) == len(data["steps"])


def test_times_are_measured():
    data = report(DIGITS, *QUICK)
    run = data["about"]["measured"]
    assert run["rounds"] >= 5 and run["run"] > 0
    assert all(step["seconds"] is not None and step["calls"] == 1 for step in data["steps"])
    assert sum(step["seconds"] for step in data["steps"]) > 0


def test_the_log_of_a_device_gives_times(capsys, tmp_path):
    log = tmp_path / "log.txt"
    options = ["--target", "c", "--log", log, "--mhz", "100"]
    log.write_text("".join(f"profile {n} {100 * (n + 1)}\n" for n in range(6)))
    steps = report(DIGITS, *options)["steps"]
    assert [step["seconds"] for step in steps[:6]] == pytest.approx(
        [1e-6 * (n + 1) for n in range(6)]
    )
    log.write_text("nothing")
    assert "no line has the form" in refused(capsys, "report", DIGITS, *options, "--json")


def test_instructions_of_a_microcontroller_give_times():
    data = report(DIGITS, "--target", "c", "--cpu", "cortex-m4", "--mhz", "100")
    assert "within" in data["about"]["times"]
    assert all(step["seconds"] > 0 for step in data["steps"])


# ---------------------------------------------------------------- code


def test_code_is_sorted_by_kernel():
    text = (
        "declare void @f_1()\ndefine internal void @f_1.0.body(ptr %x) {\n  ret void\n}\n"
        "define internal void @f_1(ptr %x) {\n  call void @f_1.0.body(ptr %x)\n}\n"
        "define void @f_10() {\n  ret void\n}\ndefine void @run() {\n  call void @f_1()\n}\n"
    )
    found = by_braces(text, ["f_1", "f_10"])
    assert found["f_1"].count("define") == 2 and "declare" not in found["f_1"]
    assert found["f_10"] == "define void @f_10() {\n  ret void\n}\n"
    listing = (
        "\t.type f_1,@function\nf_1:\n\tret\n\n\t.p2align 4\n.L1:\n\t.long 0\nf_10.0:\n\tret\n"
    )
    labelled = by_labels(f"{listing}\nrun:\n\tcall f_1\n", ["f_1", "f_10"])
    assert labelled["f_1"].endswith("f_1:\n\tret\n") and "f_10" not in labelled["f_1"]
    assert ".long 0" in labelled["f_10"] and "run" not in labelled["f_10"]


# ---------------------------------------------------------------- limits and remedies


def remedies(data: dict, **about) -> list[str]:
    changed = copy.deepcopy(data)
    changed["about"].update(about)
    return [remedy["title"] for remedy in told(changed)["remedies"]]


def test_remedies_follow_from_what_limits():
    options = ["--threads", "1", "--seconds", "0"]
    bound = {
        peaks: report(DIGITS, *options, "--machine", peaks)
        for peaks in ("1,1000", "100000,0.01", "10,1")
    }
    slow, narrow, both = bound.values()
    assert "arithmetic" in slow["limits"][0] and "bandwidth" in narrow["limits"][0]
    assert remedies(slow, cores=1, int8_flops=None) == []
    assert remedies(slow, cores=4, int8_flops=None) == ["--threads 4"]
    quantise = "graphc quantise MODEL --data DATA -o q.onnx"
    assert remedies(slow, cores=4, int8_flops=4e9) == ["--threads 4", quantise]
    assert quantise in remedies(narrow, cores=1)
    assert remedies(both, cores=1, int8_flops=4e10).count(quantise) == 1, "for two reasons"
    assert quantise not in remedies(narrow, cores=1, quantised=True)
    gains = [remedy["gain"] for remedy in narrow["remedies"]]
    assert len(gains) <= 3 and all(0.02 <= gain <= 1 for gain in gains)


def test_a_kernel_far_from_the_roofline_is_named():
    data = report(DIGITS, "--threads", "1", "--seconds", "0", "--machine", "1,1000")
    slow = max(data["steps"], key=lambda step: step["least"])
    for step in data["steps"]:
        step["seconds"] = step["least"] * (10 if step is slow else 1)
    text = told(data)
    assert any("/conv3/Conv" in remedy["title"] for remedy in text["remedies"])
    assert any("times what the roofline" in limit for limit in text["limits"])


def test_what_is_outside_the_steps_is_told():
    data = report(DIGITS, "--threads", "1", "--seconds", "0", "--machine", "1,1000")
    data["about"]["cores"] = 1
    for step in data["steps"]:
        step["seconds"] = step["least"]
    whole = sum(step["seconds"] for step in data["steps"])
    data["about"]["measured"] = {"run": 2 * whole, "inside": 0.5}
    text = told(data)
    assert any("(50%) is outside the compiled steps" in limit for limit in text["limits"])
    assert not any("disturbed" in limit for limit in text["limits"])
    gains = {remedy["title"]: remedy["gain"] for remedy in text["remedies"]}
    assert gains["--dim N=8"] == pytest.approx(0.5 * 7 / 8, rel=0.01)
    data["about"]["measured"] = {"run": 2 * whole, "inside": 1.0}
    assert any("Runs were disturbed" in limit for limit in told(data)["limits"])


# ---------------------------------------------------------------- the page


def unpacked(text: str) -> dict:
    (data,) = re.findall(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', text)
    return json.loads(zlib.decompress(base64.b64decode(data)))


def test_names_never_become_markup(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"], name=HOSTILE)
    model = save(tmp_path / "hostile.onnx", make([node]))
    data = report(Path(model), *QUICK, "--seconds", "0")
    assert data["layers"][0]["name"] == HOSTILE
    data["about"]["model"] = HOSTILE
    text = page(data)
    assert unpacked(text)["report"] == data
    assert "<img" not in text and "\u202e" not in text and text.count("</script>") == 2
    assert "<title>&lt;/script&gt;" in text


def test_the_policy_names_what_the_page_holds():
    text = page(report(DIGITS, *QUICK, "--seconds", "0"))
    for tag in ("script", "style"):
        body = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)[-1]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text and not re.search(r"(src|href)=", text)


def test_equal_data_give_equal_pages():
    data = report(DIGITS, *QUICK, "--seconds", "0")
    printed.cache_clear()
    assert data == report(DIGITS, *QUICK, "--seconds", "0")
    assert page(data) == page(json.loads(json.dumps(data)))


def test_numbers_that_json_lacks():
    found = finite({"a": [np.float32(1.5), float("inf"), float("nan")], "b": (np.int64(3),)})
    assert json.loads(json.dumps(found, allow_nan=False)) == {"a": [1.5, None, None], "b": [3]}


# ---------------------------------------------------------------- other files


def test_the_page_holds_both_reports(capsys, tmp_path):
    earlier = tmp_path / "earlier.json"
    data = report(DIGITS, *QUICK, "--seconds", "0")
    earlier.write_text(json.dumps(data))
    out = tmp_path / "both.html"
    argv = ["report", DIGITS, *QUICK, "--seconds", "0", "-o", out]
    told = ok(capsys, *argv, "--against", earlier)
    assert re.fullmatch(rf"wrote {out} \([\d.]+ KiB\)\n", told)
    assert unpacked(out.read_text()) == {"report": data, "against": data}
    ok(capsys, *argv, "--against", DIGITS)
    assert unpacked(out.read_text()) == {"report": data, "against": data}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[1]", "is not what graphc report --json prints"),
        ('{"format": "graphc-report", "version": 99}', "is a report of version 99"),
        ('{"format": "graphc-report", "version": 1}', "is damaged: layers"),
    ],
)
def test_what_is_no_report_is_refused(capsys, tmp_path, text, complaint):
    path = tmp_path / "b.json"
    if text is not None:
        path.write_text(text)
    argv = ["report", DIGITS, "--json", "--against", path]
    assert complaint in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", [3]), ("layers", [{"name": "a"}]), ("steps", {}), ("limits", [None]),
        ("groups", "all"), ("about", []),
    ],
)  # fmt: skip
def test_a_damaged_report_is_refused(capsys, tmp_path, name, value):
    data = report(DIGITS, *QUICK, "--seconds", "0")
    path = tmp_path / "b.json"
    path.write_text(json.dumps({**data, name: value}))
    complaint = refused(capsys, "report", DIGITS, "--json", "--against", path)
    assert f"is damaged: {name}" in complaint


def test_accuracy_is_that_of_a_comparison(capsys, tmp_path):
    compared = tmp_path / "compared.json"
    compared.write_text(ok(capsys, "compare", DIGITS, "--dim", "N=1", "--all", "--json"))
    data = report(DIGITS, *QUICK, "--seconds", "0", "--accuracy", compared)
    known = [layer["accuracy"] for layer in data["layers"] if layer["accuracy"]]
    assert len(known) > 5 and all(0 <= accuracy["relative"] < 1e-4 for accuracy in known)
    compared.write_text('{"layers": [{"layer": "/conv1/Conv", "relative": "<b>", "sqnr": 1}]}')
    data = report(DIGITS, *QUICK, "--seconds", "0", "--accuracy", compared)
    assert data["layers"][0]["accuracy"] == {"sqnr": 1}
    compared.write_text('{"layers": 3}')
    argv = ["report", DIGITS, "--json", "--accuracy", compared]
    assert "is not what graphc compare --json prints" in refused(capsys, *argv)


def test_phases_are_models_that_compute_the_same(capsys, tmp_path):
    folder = tmp_path / "phases"
    ok(capsys, "report", DIGITS, "--dim", "N=1", "--phases", folder)
    files = sorted(folder.glob("*.onnx"))
    assert [path.stem.partition("_")[2] for path in files] == [
        "imported", "typed", "canonical", "laid_out", "fused",
    ]  # fmt: skip
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    results = []
    for path in files:
        onnx.checker.check_model(str(path))
        results += onnxruntime.InferenceSession(path.read_bytes()).run(None, {"image": image})
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-4)  # BN is folded
    collection = json.loads((folder / "phases.json").read_text())
    assert set(collection) == {"label", "graphs"} and len(collection["graphs"]) == len(files)
    for graph in collection["graphs"]:
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        edges = [edge for node in graph["nodes"] for edge in node["incomingEdges"]]
        assert edges and all(edge["sourceNodeId"] in nodes for edge in edges)
    fused = collection["graphs"][-1]["nodes"]
    assert any(node["namespace"].startswith("fused") for node in fused)


def test_what_to_write_has_to_be_said(capsys):
    assert "give -o REPORT.html, --json or --phases" in refused(capsys, "report", DIGITS)


def test_a_model_that_fails_on_random_inputs_is_shown_without_times(capsys, tmp_path):
    table = numpy_helper.from_array(np.eye(3, dtype=np.float32), "table")
    node = helper.make_node("Gather", ["table", "x"], ["y"], "pick")
    model = make([node], [("x", TensorProto.INT64, (4,))], constants=[table])
    node = helper.make_node("Sub", ["x", "big"], ["low"], "lower")
    big = numpy_helper.from_array(np.array(1 << 40), "big")
    model.graph.node.insert(0, node)
    model.graph.node[1].input[1] = "low"
    model.graph.initializer.append(big)
    path = save(tmp_path / "m.onnx", model)
    code, out, err = graphc(capsys, "report", path, *QUICK, "--json")
    assert code == 0 and "nothing is measured" in err
    assert all(step["seconds"] is None for step in json.loads(out)["steps"])
