"""Generating text with caches that keep their length: what docs/generation.md shows, with decoders
of several exporters, next to a loop of ONNX Runtime whose cache grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphc

ort = pytest.importorskip("onnxruntime")
HERE = Path(__file__).parent
PAGE = (HERE.parent / "docs" / "generation.md").read_text()
PROMPT = [int(n) for n in np.random.default_rng(5).integers(3, 50, 11)]
COUNT, CAPACITY = 12, 30


@pytest.fixture(scope="module")
def page() -> dict:
    """What the page defines."""
    names: dict = {"__name__": "docs"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(compile(block, "generation.md", "exec", dont_inherit=True), names)
    return names


def growing(path: Path, prompt: Sequence[int] = PROMPT) -> list[int]:
    """The tokens of ONNX Runtime, one at a time, with a cache that grows."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    past = {
        i.name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
        for i in inputs if i.name.startswith("past")
    }  # fmt: skip
    tokens = list(prompt)
    for position in range(len(prompt) + COUNT - 1):
        feeds = {
            "input_ids": np.array([[tokens[position]]]),
            "attention_mask": np.ones((1, position + 1), np.int64),
            "position_ids": np.array([[position]]),
            **past,
        }
        logits, *present = session.run(None, {i.name: feeds[i.name] for i in inputs})
        past = dict(zip(past, present))
        if position + 1 == len(tokens):
            tokens.append(int(logits[0, -1].argmax()))
    return tokens


@pytest.mark.parametrize(
    "file, how, compilations",
    [
        ("decoder_rotary", "generate", 2),
        ("decoder_rotary", "generate_in_window", 1),
        ("decoder_sliding", "generate_in_window", 1),
    ],
)
def test_a_cache_of_fixed_length(page, file, how, compilations):
    path = HERE / "models_wild" / f"{file}.onnx"
    model = graphc.compile(path, threads=1, specialise="exact")
    tokens = page[how](model, PROMPT, COUNT, CAPACITY)
    assert tokens == growing(path)
    assert len(set(tokens[len(PROMPT) :])) > 3  # no fixed point, which anything would reach
    assert len(model.executables()) == compilations


def test_one_program_serves_prompts_and_steps(page):
    path = HERE / "models_wild" / "decoder_rotary.onnx"
    model = graphc.compile(path, threads=1, specialise="auto")
    assert page["generate"](model, PROMPT, COUNT, CAPACITY) == growing(path)
    assert [info.is_general for info in model.executables()][0]


def test_batches_of_an_export_with_an_empty_cache(page):
    """One program takes the prompts, before which the cache is empty, and all steps; rows that are
    padded on the left give what they give alone."""
    path = HERE / "models_wild" / "decoder_batch.onnx"
    model = graphc.compile(path, threads=1, specialise="auto")
    prompts = [PROMPT, PROMPT[:4], PROMPT[3:10]]
    texts = page["generate_batch"](model, prompts, COUNT)
    assert texts == [growing(path, prompt) for prompt in prompts]
    (info,) = model.executables()
    assert info.is_general and 0 in [low for low, _ in info.bounds.values()]


def test_saved_models_generate(page, tmp_path):
    path = HERE / "models_wild" / "decoder_rotary.onnx"
    model = graphc.compile(path, threads=1)
    tokens = page["generate"](model, PROMPT, COUNT, CAPACITY)
    model.save(tmp_path / "decoder.gcm")
    assert (
        page["generate"](graphc.load(tmp_path / "decoder.gcm"), PROMPT, COUNT, CAPACITY) == tokens
    )


def test_a_shared_buffer():
    """GroupQueryAttention: the cache is as long as the mask, and what is given back goes in."""
    path = HERE / "models_wild" / "genai_style.onnx"
    model = graphc.compile(path, threads=1, specialise="exact")
    past = {
        s.name: np.zeros((1, s.shape[1], CAPACITY, s.shape[3]), np.float32)
        for s in model.inputs if s.name.startswith("past")
    }  # fmt: skip
    tokens, mask = list(PROMPT), np.zeros((1, CAPACITY), np.int64)
    for position in range(len(PROMPT) + COUNT - 1):
        mask[0, position] = 1
        feeds = {"input_ids": np.array([[tokens[position]]]), "attention_mask": mask}
        logits, *present = model.run({**feeds, **past})
        past = dict(zip(past, present))
        if position + 1 == len(tokens):
            tokens.append(int(logits[0, -1].argmax()))
    assert tokens == growing(path)
    assert len(model.executables()) == 1


@pytest.mark.parametrize("capacity, piece, compilations", [(8, 4, 6), (32, 5, 2), (32, 16, 2)])
def test_a_cache_that_is_updated_in_place(page, capacity, piece, compilations):
    path = HERE / "models_wild" / "genai_style.onnx"
    model = graphc.compile(path, threads=1, specialise="exact")
    tokens = page["generate_in_place"](model, PROMPT, COUNT, capacity, piece)
    assert tokens == growing(path)
    assert len(model.executables()) <= compilations


def test_sampled_words_are_among_the_likeliest(page):
    logits = np.random.default_rng(0).standard_normal(50)
    choose = page["sampled"](np.random.default_rng(1), top=3)
    picked = {int(choose(logits)) for _ in range(60)}
    assert picked == set(np.argsort(logits)[-3:].tolist())


SCATTERED = """<ir_version: 10, opset_import: ["": 24]>
decoder (int64[1, 1] token, int64[1] used, float[1, 1, 30, 8] keys, float[1, 1, 30, 8] values)
    => (float[1, 1, 1, 50] logits, float[1, 1, 30, 8] new_keys, float[1, 1, 30, 8] new_values)
{
  one = Constant <value_ints = [1]> ()
  axis = Constant <value_ints = [1]> ()
  word = Gather (words, token)
  x = Unsqueeze (word, axis)
  query = MatMul (x, wq)
  key = MatMul (x, wk)
  value = MatMul (x, wv)
  new_keys = TensorScatter <axis = 2> (keys, key, used)
  new_values = TensorScatter <axis = 2> (values, value, used)
  rows = Add (used, one)
  y = Attention (query, new_keys, new_values, , , , rows)
  sum = Add (x, y)
  back = Transpose <perm = [1, 0]> (words)
  logits = MatMul (sum, back)
}
"""


def test_rows_put_where_inputs_say():
    """TensorScatter and Attention with numbers of rows in use, next to all rows there are."""
    model = onnx.parser.parse_model(SCATTERED)
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal((8, 8)).astype(np.float32) for n in ("wq", "wk", "wv")}
    weights["words"] = random.standard_normal((50, 8)).astype(np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
    compiled = graphc.compile(model, threads=1)
    past = [np.zeros((1, 1, CAPACITY, 8), np.float32)] * 2
    seen, token = np.zeros((0, 8), np.float32), 3
    for position in range(COUNT):
        logits, *past = compiled.run([np.array([[token]]), np.array([position]), *past])
        x = weights["words"][token]
        seen = np.concatenate([seen, x[None]])
        scores = (x @ weights["wq"]) @ (seen @ weights["wk"]).T / np.sqrt(8)
        shares = np.exp(scores - scores.max())
        wanted = weights["words"] @ (x + shares / shares.sum() @ (seen @ weights["wv"]))
        np.testing.assert_allclose(logits.reshape(-1), wanted, rtol=1e-4, atol=1e-4)
        token = int(wanted.argmax())
    assert len(compiled.executables()) == 1
