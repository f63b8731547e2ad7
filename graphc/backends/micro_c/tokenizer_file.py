"""Tokenizers from files: what text is divided into, and what tokens stand for.

A `tokenizer.json` of Hugging Face's library is taken if it is byte pair encoding as Llama has it:
characters, or the bytes of those that have no token, are merged pair by pair, those of the lowest
rank first; a space counts as U+2581. What divides text by regular expressions first (GPT-2, Llama
3) is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphc.errors import ModelError, UnsupportedError

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
BEGIN, END = ("<s>", "<|begin_of_text|>", "<bos>"), ("</s>", "<|end_of_text|>", "<eos>")
MOST = 1 << 17  # tokens, and merges


@dataclass(frozen=True)
class Tokenizer:
    """`pieces` are the UTF-8 bytes that tokens are looked up by, `texts` those that they stand for;
    `merges` gives the token of two, the lowest rank first. `bytes` has the token of each byte, if
    there are such; -1 is for what there is none of. With `prefix` a text begins with a space."""

    pieces: tuple[bytes, ...]
    texts: tuple[bytes, ...]
    merges: tuple[tuple[int, int, int], ...]
    bytes: tuple[int, ...]
    begin: int
    end: int
    unknown: int
    prefix: bool


def read_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """The tokenizer of a file; ModelError if it is none, UnsupportedError if it is of another
    kind."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise ModelError(f"--tokenizer {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"--tokenizer {path}: is no JSON: {error}") from None
    try:
        return _read(data, str(path))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ModelError(f"--tokenizer {path}: is no tokenizer.json: {error!r}") from None


def _read(data: Mapping[str, Any], path: str) -> Tokenizer:
    model = data["model"]
    if model.get("type", "BPE") != "BPE":
        raise UnsupportedError(f"--tokenizer {path}: takes BPE, found {model['type']}")
    splitting = data.get("pre_tokenizer")
    kinds = _kinds(splitting, "pretokenizers")
    if any(kind != "Metaspace" for kind in kinds):
        raise UnsupportedError(
            f"--tokenizer {path}: text is divided by {', '.join(kinds)} before it is merged; only "
            "tokenizers as Llama's (Metaspace, or none) are taken"
        )
    words = _words(model["vocab"], data.get("added_tokens") or (), path)
    numbers = {word: n for n, word in enumerate(words)}
    merges = tuple(_merge(pair, numbers, path) for pair in model["merges"])
    if len(merges) > MOST:
        raise UnsupportedError(f"--tokenizer {path}: has more than {MOST} merges")
    special = {token["content"] for token in data.get("added_tokens") or () if token["special"]}
    of_bytes = tuple(numbers.get(f"<0x{n:02X}>", -1) for n in range(256))
    return Tokenizer(
        tuple(word.encode() for word in words),
        tuple(b"" if word in special else _text(word) for word in words),
        merges, of_bytes, _first(BEGIN, numbers), _first(END, numbers),
        numbers.get(model.get("unk_token") or "", -1), _has_prefix(data),
    )  # fmt: skip


def _kinds(part: Any, inner: str) -> list[str]:
    """The types of a part and of those inside it."""
    if not part:
        return []
    if part["type"] == "Sequence":
        return [kind for piece in part[inner] for kind in _kinds(piece, inner)]
    return [part["type"]]


def _words(vocab: Mapping[str, int], added: Any, path: str) -> list[str]:
    """The tokens in the order of their numbers."""
    numbers = {**vocab, **{token["content"]: token["id"] for token in added}}
    if not 0 < len(numbers) <= MOST:
        raise UnsupportedError(f"--tokenizer {path}: has more than {MOST} tokens, or none")
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise ModelError(f"--tokenizer {path}: tokens must have numbers of their own, from 0 on")
    return sorted(numbers, key=lambda word: numbers[word])


def _merge(pair: Any, numbers: Mapping[str, int], path: str) -> tuple[int, int, int]:
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    for word in (left, right, left + right):
        if word not in numbers:
            raise ModelError(f"--tokenizer {path}: a merge of {pair!r} needs a token {word!r}")
    return numbers[left], numbers[right], numbers[left + right]


def _text(word: str) -> bytes:
    byte = BYTE.fullmatch(word)
    return bytes([int(byte[1], 16)]) if byte else word.replace(SPACE, " ").encode()


def _first(names: tuple[str, ...], numbers: Mapping[str, int]) -> int:
    return next((numbers[name] for name in names if name in numbers), -1)


def _has_prefix(data: Mapping[str, Any]) -> bool:
    """Whether a space is put in front of a text."""
    normalizer, splitting = data.get("normalizer"), data.get("pre_tokenizer")
    scheme = (splitting or {}).get("prepend_scheme", "always")
    metaspace = "Metaspace" in _kinds(splitting, "pretokenizers") and scheme != "never"
    return metaspace or "Prepend" in _kinds(normalizer, "normalizers")
