"""From text to text with a small decoder: tokens, sampling, and a loop in C."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from bundles import STRICT, checked
from commands import refused

import graphc
from graphc.backends.micro_c.boards import ARM
from graphc.backends.micro_c.tokenizer_file import read_tokenizer
from graphc.cli import main
from graphc.errors import ModelError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import little_decoder

TINY = little_decoder.Shape(32, 48, 2, 2, 1, 360)
CAPACITY, MOST = 24, 24
PROMPT = "a bad é!"
FLAGS = ("-std=c99", "-O1", *STRICT, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module", autouse=True)
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(little_decoder.SHAPES, "tiny", TINY)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A decoder, and its tokenizer."""
    folder = tmp_path_factory.mktemp("decoder")
    onnx.save(little_decoder.decoder("tiny", 4, CAPACITY), folder / "decoder.onnx")
    (folder / "words.json").write_text(json.dumps(little_decoder.tokenizer("tiny")))
    return folder


@pytest.fixture(scope="module")
def bundle(files):
    """Its sources, with an image's for a board where there are the tools."""
    folder = files / "firmware"
    state = little_decoder.state_of("tiny")
    assert main(["compile", str(files / "decoder.onnx"), "--target", "c", "--board", "mps3-an547",
                 "--state", state, "--tokenizer", str(files / "words.json"), "--name", "net",
                 "-o", str(folder)]) == 0  # fmt: skip
    return folder


def merged(tokenizer, text):
    """The tokens of a text, as the rules of byte pair encoding say."""
    pieces = {piece: n for n, piece in enumerate(tokenizer.pieces)}
    tokens = []
    for character in ("▁" + text.replace(" ", "▁")) if text else "":
        own = character.encode()
        tokens += [pieces[own]] if own in pieces else [tokenizer.bytes[b] for b in own]
    ranks = {(left, right): n for n, (left, right, _) in enumerate(tokenizer.merges)}
    while True:
        places = [(ranks.get(pair, 1 << 30), n) for n, pair in enumerate(zip(tokens, tokens[1:]))]
        rank, n = min(places, default=(1 << 30, 0))
        if rank == 1 << 30:
            return [tokenizer.begin, *tokens]
        tokens[n : n + 2] = [tokenizer.merges[rank][2]]


def compiled(bundle, name, main=None, *flags):
    if main is not None:
        (bundle / f"{name}.c").write_text(main)
    sources = [f"{name}.c", "net_text.c", "net.c", "net_weights.c"]
    checked(["gcc", *FLAGS, *flags, *sources, "-lm", "-o", name], bundle)
    return f"./{name}"


ENCODE = """
#include "net_text.h"
#include <stdio.h>
#include <string.h>
int main(int count, char **words)
{
    static int32_t tokens[200];
    int n;
    for (n = 1; n < count; ++n) {
        const uint32_t bytes = (uint32_t)strlen(words[n]);
        const int32_t made = net_encode(words[n], bytes, tokens, 200);
        int32_t k;
        printf("%d:", (int)net_encode(words[n], bytes, tokens, (int32_t)bytes + 1));
        (void)net_encode(words[n], bytes, tokens, (int32_t)bytes + 2);
        for (k = 0; k < made; ++k) {
            printf(" %d", (int)tokens[k]);
        }
        printf("\\n");
    }
    return 0;
}
"""


def test_encoding_is_that_of_byte_pairs(files, bundle):
    tokenizer = read_tokenizer(files / "words.json")
    random = np.random.default_rng(3)
    texts = ["", " ", "a", "  two  spaces ", "naïve 東京 🙂", "\t\n", PROMPT]
    texts += ["".join(random.choice(list("ab cdefgh"), 40)) for _ in range(10)]
    lines = checked([compiled(bundle, "encode", ENCODE), *texts], bundle).splitlines()
    for text, line in zip(texts, lines, strict=True):
        refused, _, tokens = line.partition(":")
        assert [int(n) for n in tokens.split()] == merged(tokenizer, text)
        assert refused == "-1"  # room for one less than asked


def greedy(run, tokens):
    """The prompt's tokens and those that follow it, MOST in all."""
    shape = (1, TINY.key_heads, CAPACITY, TINY.head)
    names = [f"past_{n}.{part}" for n in range(TINY.layers) for part in ("key", "value")]
    caches = dict.fromkeys(names, np.zeros(shape, np.int8))
    made = list(tokens)
    for position in range(MOST - 1):
        given = {"token": np.array([[made[position]]], np.int32)}
        logits, *new = run({**given, "position": np.array([position], np.int32), **caches})
        caches = {name: np.array(value) for name, value in zip(names, new)}
        if position + 1 == len(made):
            made.append(int(logits[0, -1].argmax()))
    return made


def test_text_is_that_of_other_engines(files, bundle):
    tokenizer = read_tokenizer(files / "words.json")
    command = compiled(bundle, "net_say", None, f'-DNET_PROMPT="{PROMPT}"', f"-DNET_MOST={MOST}")
    said = run_bytes(command, bundle)
    prompt = merged(tokenizer, PROMPT)
    assert len(prompt) < MOST - 4
    session = onnxruntime.InferenceSession(str(files / "decoder.onnx"))
    ours = graphc.compile(files / "decoder.onnx", threads=1)
    for run in (lambda feeds: session.run(None, feeds), ours.run):
        tokens = greedy(run, prompt)
        assert len(set(tokens[len(prompt) :])) > 1
        assert said == b"".join(tokenizer.texts[n] for n in tokens)[1:] + b"\n"


def run_bytes(command, folder):
    done = subprocess.run([command], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(bool(ARM.missing()) or not shutil.which("make"), reason="no tools of Arm")
def test_text_in_an_emulator_is_the_host_s(bundle):
    host = run_bytes(compiled(bundle, "net_say"), bundle)
    checked(["make", "-s", "net.elf"], bundle)
    done = subprocess.run(["make", "-s", "run"], cwd=bundle, capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stdout == host


SAMPLE = """
#include "net_text.h"
#include <stdio.h>
int main(void)
{
    static float logits[NET_WORDS];
    net_sampling how = {TEMPERATURE, SHARE, 7};
    int n, k;
    for (n = 0; n < 4000; ++n) {
        for (k = 0; k < (int)NET_WORDS; ++k) {
            logits[k] = k < 5 ? (float)k : -50.0f;
        }
        printf("%d\\n", (int)net_sample(logits, &how));
    }
    return 0;
}
"""


@pytest.mark.parametrize(("temperature", "share"), [(0.0, 1.0), (1.0, 1.0), (2.0, 0.8)])
def test_tokens_are_drawn_by_their_shares(bundle, temperature, share):
    defines = [f"-DTEMPERATURE={temperature}f", f"-DSHARE={share}f"]
    said = checked([compiled(bundle, "sample", SAMPLE, *defines)], bundle)
    counts = np.bincount([int(n) for n in said.split()], minlength=5) / 4000
    logits = np.arange(5.0)
    wanted = np.exp(logits / temperature) if temperature else (logits == 4).astype(float)
    wanted /= wanted.sum()
    if share < 1:  # the likeliest that have the share together
        kept = np.cumsum(wanted[::-1])[::-1] - wanted < share
        wanted = np.where(kept, wanted, 0) / wanted[kept].sum()
    np.testing.assert_allclose(counts, wanted, atol=0.03)


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        (lambda d: d.pop("model"), ModelError, "no tokenizer.json"),
        (lambda d: d["model"].update(type="Unigram"), UnsupportedError, "takes BPE, found Unigram"),
        (lambda d: d.update(pre_tokenizer={"type": "ByteLevel"}), UnsupportedError, "ByteLevel"),
        (lambda d: d["model"]["merges"].append(["a", "nothing"]), ModelError, "needs a token"),
        (lambda d: d["model"]["vocab"].update(again=5), ModelError, "from 0 on"),
        (lambda d: d["model"].update(merges=7), ModelError, "no tokenizer.json"),
    ],
)
def test_other_files_are_refused(tmp_path, change, error, told):
    data = little_decoder.tokenizer("tiny")
    change(data)
    path = tmp_path / "words.json"
    path.write_text(json.dumps(data))
    with pytest.raises(error, match=told):
        read_tokenizer(path)


def test_no_json_is_refused(tmp_path):
    path = tmp_path / "words.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="no JSON"):
        read_tokenizer(path)
    with pytest.raises(ModelError, match="No such file"):
        read_tokenizer(tmp_path / "none.json")


def test_other_models_are_refused(files, capsys, tmp_path):
    arguments = ["compile", files / "decoder.onnx", "--target", "c", "--tokenizer",
                 files / "words.json", "-o", tmp_path / "out"]  # fmt: skip
    assert "--state" in refused(capsys, *arguments)
    data = little_decoder.tokenizer("260K")
    (tmp_path / "more.json").write_text(json.dumps(data))
    arguments[5] = tmp_path / "more.json"
    told = refused(capsys, *arguments, "--state", little_decoder.state_of("tiny"))
    assert "there are 512 tokens" in told and "f32[1,1,360]" in told
