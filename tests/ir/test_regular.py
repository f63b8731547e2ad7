"""Regular expressions against ONNX Runtime's, which are RE2, and patterns that make others hang."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from onnx import helper

from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.ir.ops.strings import regex_full_match
from graphc.ir.regular import Pattern

ESCAPES = r"d D w W s S b B A z n x41 x{42} p{Lu} pL PN p{^Ll} pZ Q.*\E . - 1 01 Z e"
GROUPS = "(?i) (?i: (?: (?P<n> (?s) (?m) (?-i) (?U) (?=a)"
CLASSES = r"[a-b] [^a] [[:alpha:]] [[:^digit:]] [\d_] []a] [a-] [b-a]"
REPEATS = "{2} {1,2} {0,} {3,1} *? +? ??"
ATOMS = [
    *"abAB01_ -.\n^$|()[]{}?*+\\,:ékK",
    *("\\" + escape for escape in ESCAPES.split()),
    *f"{GROUPS} {CLASSES} {REPEATS}".split(),
]
CHARACTERS = [*"abAB01_ -.\n*éÉkK\u212a\u017fsS", ""]
PATTERNS = 400


def runtime(pattern: str, texts: list[str]) -> list[bool] | None:
    """What ONNX Runtime says of texts; None if it refuses the pattern."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    infos = [helper.make_tensor_value_info(n, t, ["N"]) for n, t in (("x", 8), ("y", 9))]
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    try:
        session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    except Exception:
        return None
    return session.run(None, {"x": np.array(texts, object)})[0].tolist()


def ours(pattern: str, texts: list[str]) -> list[bool] | None:
    try:
        compiled = Pattern(pattern)
    except GraphcError:
        return None
    return [compiled.fullmatch(text) for text in texts]


def test_random_patterns():
    pytest.importorskip("onnxruntime")
    rng, taken = random.Random(16), 0
    for _ in range(PATTERNS):
        pattern = "".join(rng.choices(ATOMS, k=rng.randint(1, 7)))
        texts = ["".join(rng.choices(CHARACTERS, k=rng.randint(0, 5))) for _ in range(30)]
        wanted = runtime(pattern, texts)
        taken += wanted is not None
        assert ours(pattern, texts) == wanted, pattern
    assert taken > PATTERNS // 4


@pytest.mark.parametrize(
    "pattern, text, matches",
    [
        (r"[\w.]+@\w+\.com", "a.b@c.com", True),
        (r"\d+", "\u0663", False),  # digits are those of ASCII
        ("(?i)stra(ss|ß)e", "STRASSE", True),
        ("a|b|", "", True),
        ("(a{2}){3}", "aaaaaa", True),
        ("(?s).", "\n", True),
        (".", "\n", False),
        ("a{,2}", "a{,2}", True),
    ],
)
def test_patterns(pattern, text, matches):
    assert Pattern(pattern).fullmatch(text) is matches


@pytest.mark.parametrize(
    "pattern, text",
    [
        ("(a+)+b", "a" * 20_000),
        ("(a|aa)*c", "a" * 20_000),
        ("(x+x+)+y", "x" * 20_000),
        ("(.*)(.*)(.*)(.*)(.*)[^a]*z", "ab" * 10_000),
        ("((a{0,30}){0,30})*b", "a" * 3000),
        ("(a?){200}b{200}", "a" * 200),
        ("(a|b)*a(a|b){60}", "ab" * 3000 + "b"),
    ],
)
def test_time_is_linear(pattern, text):
    start = time.process_time()
    assert not Pattern(pattern).fullmatch(text) or pattern.startswith("(a|b)")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "pattern, said",
    [
        ("(" * 5000, "nested more than 100"),
        ("(a{1000}){1000}", "more than 1000"),
        ("(.{500}|.{400}){2}" * 30, "more than 20000 states"),
        ("a" * 30_000, "longer than 20000"),
        ("[a", "ends too early"),
        ("a**", "repeated twice"),
        (r"(a)\1", "refers back"),
        ("(?<=a)b", "is not known here"),
    ],
)
def test_patterns_that_are_refused(pattern, said):
    with pytest.raises(ModelError, match=f"pattern .*{said}"):
        Pattern(pattern)
    with pytest.raises(UnsupportedError, match=r"\\p.Greek. are not known"):
        Pattern(r"\p{Greek}")


def test_the_operator():
    x = np.array([["ab", "b"], ["", "aab"]], object)
    assert regex_full_match(x, pattern="a*b").tolist() == [[True, True], [False, True]]
