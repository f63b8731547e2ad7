"""A Llama-like decoder for microcontrollers, its weights drawn: one token in, logits out.

    python benchmarks/little_decoder.py 15M -o decoder.onnx [--bits 4] [--capacity 256]

The shapes are those of Karpathy's stories260K and stories15M (github.com/karpathy/llama2.c). What
it is made of are ONNX Runtime's operators for generated text (com.microsoft): MatMulNBits with
weights of 4 or 8 bits in blocks of 32 and activations of 8 bits (accuracy_level 4),
GatherBlockQuantized for the table of words, which is also that of the last product,
GroupQueryAttention with rotary positions and a cache of 8 bits, and RMS normalisations.

Inputs are `token`, `position` (how many tokens came before) and the cache; outputs are `logits` and
the cache again. The cache lies in the state of the caller, and a run appends a row to it. To text,
in QEMU:

    python benchmarks/little_decoder.py 260K -o decoder.onnx --tokenizer words.json
    graphc compile decoder.onnx --target c --board mps3-an547 --tokenizer words.json -o firmware \
        --state $(python benchmarks/little_decoder.py 260K --state)
    make -C firmware run
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RUNTIME = "com.microsoft"
BLOCK = 32
FIRST, LONGEST = 100, 16  # of drawn words: how many end others, and letters of one
KEY_SCALE, VALUE_SCALE = 1 / 12, 1 / 24  # of the cache: what drawn weights give, with room


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    width: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    words: int

    @property
    def head(self) -> int:
        return self.width // self.heads


SHAPES = {
    # of the original's 8 and 4 heads, two each are one: ONNX Runtime asks for a size of 16
    "260K": Shape(64, 172, 5, 4, 2, 512),
    "15M": Shape(288, 768, 6, 6, 6, 32000),
}


class Maker:
    """The nodes and weights of a decoder."""

    def __init__(self, shape: Shape, bits: int, capacity: int, seed: int):
        self.shape, self.bits, self.capacity = shape, bits, capacity
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: list[str], *outputs: str, domain: str = "", **attrs) -> str:
        made = helper.make_node(kind, inputs, list(outputs), outputs[0], domain=domain, **attrs)
        self.nodes.append(made)
        return outputs[0]

    def matrix(self, name: str, rows: int, columns: int, spread: float) -> list[str]:
        """Names of codes (rows, blocks, bytes) and of scales of a drawn matrix."""
        blocks = -(-columns // BLOCK)
        real = np.zeros((rows, blocks * BLOCK), np.float32)
        real[:, :columns] = self.random.standard_normal((rows, columns), np.float32) * spread
        real = real.reshape(rows, blocks, BLOCK)
        half = 1 << (self.bits - 1)
        scales = np.abs(real).max(2) / (half - 1)
        codes = np.rint(real / scales[:, :, None]).astype(np.int32) + half
        packed = codes.astype(np.uint8)
        if self.bits == 4:
            packed = (codes[:, :, ::2] | codes[:, :, 1::2] << 4).astype(np.uint8)
        return [
            self.constant(f"{name}.codes", packed),
            self.constant(f"{name}.scales", scales.reshape(-1)),
        ]

    def product(self, x: str, name: str, rows: int, columns: int, spread: float = 1.0) -> str:
        weights = self.matrix(name, rows, columns, spread / np.sqrt(columns))
        return self.times(x, name, weights, rows, columns)

    def times(self, x: str, name: str, weights: list[str], rows: int, columns: int) -> str:
        return self.node(
            "MatMulNBits", [x, *weights], name, domain=RUNTIME, K=columns, N=rows, bits=self.bits,
            block_size=BLOCK, accuracy_level=4,
        )  # fmt: skip

    def norm(self, x: str, name: str) -> str:
        scale = self.constant(f"{name}.scale", np.ones(self.shape.width, np.float32))
        return self.node("SimplifiedLayerNormalization", [x, scale], name, epsilon=1e-5)

    def layer(self, x: str, n: int) -> str:
        s = self.shape
        h = self.norm(x, f"{n}.norm")
        keys = s.key_heads * s.head
        q = self.product(h, f"{n}.q", s.width, s.width, 1.5)
        k, v = (self.product(h, f"{n}.{part}", keys, s.width) for part in "kv")
        h = self.node(
            "GroupQueryAttention",
            [q, k, v, f"past_{n}.key", f"past_{n}.value", "position", "capacity", "cos", "sin",
             "", "", "", "key_scale", "value_scale"],
            f"{n}.attention", f"present_{n}.key", f"present_{n}.value", domain=RUNTIME,
            num_heads=s.heads, kv_num_heads=s.key_heads, do_rotary=1, rotary_interleaved=1,
            k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8,
        )  # fmt: skip
        x = self.node("Add", [x, self.product(h, f"{n}.o", s.width, s.width)], f"{n}.middle")
        h = self.norm(x, f"{n}.norm2")
        gate, up = (self.product(h, f"{n}.{part}", s.hidden, s.width) for part in ("gate", "up"))
        sigmoid = self.node("Sigmoid", [gate], f"{n}.sigmoid")
        gate = self.node("Mul", [gate, sigmoid], f"{n}.silu")
        h = self.node("Mul", [gate, up], f"{n}.hidden")
        return self.node("Add", [x, self.product(h, f"{n}.down", s.width, s.hidden)], f"{n}.sum")

    def model(self) -> onnx.ModelProto:
        s = self.shape
        self.constant("capacity", np.array(self.capacity, np.int32))
        self.constant("key_scale", np.array([KEY_SCALE], np.float32))
        self.constant("value_scale", np.array([VALUE_SCALE], np.float32))
        turns = np.arange(self.capacity)[:, None] / 1e4 ** (np.arange(s.head // 2) / (s.head / 2))
        self.constant("cos", np.cos(turns).astype(np.float32))
        self.constant("sin", np.sin(turns).astype(np.float32))
        codes, scales = self.matrix("words", s.words, s.width, 0.1)  # layers weigh more than words
        blocks = -(-s.width // BLOCK)
        packed, steps = (numpy_helper.to_array(tensor) for tensor in self.weights[-2:])
        self.constant("words.table", packed.reshape(s.words, -1))
        self.constant("words.table_scales", steps.reshape(s.words, blocks))
        x = self.node(
            "GatherBlockQuantized", ["words.table", "token", "words.table_scales"], "words.row",
            domain=RUNTIME, gather_axis=0, quantize_axis=1, block_size=BLOCK, bits=self.bits,
        )  # fmt: skip
        for n in range(s.layers):
            x = self.layer(x, n)
        logits = self.times(self.norm(x, "norm"), "logits", [codes, scales], s.words, s.width)
        cache = [1, s.key_heads, self.capacity, s.head]
        names = [f"{n}.{part}" for n in range(s.layers) for part in ("key", "value")]
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "decoder",
            [info("token", TensorProto.INT32, [1, 1]), info("position", TensorProto.INT32, [1]),
             *(info(f"past_{n}", TensorProto.INT8, cache) for n in names)],
            [info(logits, TensorProto.FLOAT, [1, 1, s.words]),
             *(info(f"present_{n}", TensorProto.INT8, cache) for n in names)],
            self.weights,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def decoder(name: str, bits: int = 4, capacity: int = 256, seed: int = 0) -> onnx.ModelProto:
    """A decoder of one of SHAPES."""
    return Maker(SHAPES[name], bits, capacity, seed).model()


def state_of(name: str) -> str:
    """What `--state` is given."""
    layers = range(SHAPES[name].layers)
    return ",".join(f"past_{n}.{p}=present_{n}.{p}" for n in layers for p in ("key", "value"))


def tokenizer(name: str, seed: int = 0) -> dict:
    """A tokenizer.json of as many tokens as a decoder has words: three special ones, all bytes, all
    letters, and words of drawn syllables with the merges that make them."""
    random = np.random.default_rng(seed)
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", *".,!?'ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    known = dict.fromkeys([*words, *letters])
    parts, merges = letters[:27], []
    while len(known) < SHAPES[name].words:
        left, right = (parts[n] for n in random.integers(0, [len(parts), min(len(parts), FIRST)]))
        made = left + right
        if made in known or right.startswith("\u2581") or len(made) > LONGEST:
            continue
        known[made] = None
        parts.append(made)
        merges.append([left, right])
    special = [{"id": n, "content": words[n], "special": True} for n in range(3)]
    return {
        "version": "1.0", "added_tokens": special, "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True,
                  "vocab": {word: n for n, word in enumerate(known)}, "merges": merges},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("-o", "--output", type=Path, help="the ONNX file")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--capacity", type=int, default=256, help="tokens that the cache holds")
    parser.add_argument("--tokenizer", type=Path, help="write a tokenizer.json for it here")
    parser.add_argument("--state", action="store_true", help="print the pairs for --state")
    args = parser.parse_args()
    if args.state:
        print(state_of(args.shape))
    if args.tokenizer:
        args.tokenizer.write_text(json.dumps(tokenizer(args.shape)))
    if args.output:
        onnx.save(decoder(args.shape, args.bits, args.capacity), args.output)


if __name__ == "__main__":
    main()
