"""Models of ONNX Runtime's own operators, built by hand: a language model in the habits of
onnxruntime-genai's model builder (packed weights, grouped queries, a cache), and an encoder as
onnxruntime.transformers leaves it.  Needs onnx and onnxruntime only.
"""

from __future__ import annotations

import numpy as np
import onnx
from make_common import Writer, add_case, model_of, save, value

DOMAIN = "com.microsoft"
SIZE, HEADS, KEY_HEADS, WIDTH, LAYERS, WORDS = 16, 4, 2, 64, 2, 50
HIDDEN = 96  # of the feed-forward layers
NARROW = 32  # width of the encoder


def own_model(graph: onnx.GraphProto, opset: int, producer: str) -> onnx.ModelProto:
    model = model_of(graph, opset, 10, producer)
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return model


class Net:
    def __init__(self, seed: int) -> None:
        self.w = Writer("/model/")
        self.random = np.random.default_rng(seed)

    def own(self, kind: str, *inputs: str, **attributes):
        """A node of ONNX Runtime's domain."""
        return self.w.node(kind, *inputs, domain=DOMAIN, **attributes)

    def weights(self, name: str, *shape: int) -> str:
        scale = 1.0 / np.sqrt(shape[0]) if len(shape) > 1 else 1.0
        return self.w.initializer(name, self.random.standard_normal(shape) * scale)


# ---------------------------------------------------------------- a language model


class Decoder(Net):
    FILE, STYLE = "genai_style.onnx", "by hand, after onnxruntime-genai, int4"

    def packed(self, x: str, name: str, depth: int, columns: int) -> str:
        blocks = -(-depth // 32)
        codes = self.random.integers(0, 256, (columns, blocks, 16))
        scales = self.random.uniform(0.5, 1.5, (columns, blocks)) / (4.6 * np.sqrt(depth))
        points = self.random.integers(0, 256, (columns, -(-blocks // 2)))
        return self.own(
            "MatMulNBits", x,
            self.w.initializer(f"{name}.qweight", codes, np.uint8),
            self.w.initializer(f"{name}.scales", scales),
            self.w.initializer(f"{name}.qzeros", points & 0x77 | 0x11, np.uint8),
            K=depth, N=columns, bits=4, block_size=32, accuracy_level=1,
        )  # fmt: skip

    def lengths(self) -> tuple[str, str]:
        """seqlens_k and total_sequence_length, from the mask."""
        w = self.w
        last = w.node("Sub", w.node("ReduceSum", "attention_mask", "one_axis", keepdims=0), "one")
        total = w.node("Gather", w.node("Shape", "attention_mask"), "second", axis=0)
        return w.node("Cast", last, to=6), w.node("Cast", total, to=6)

    def layer(self, number: int, x: str, normal: str, lengths: tuple[str, str]) -> tuple[str, str]:
        name, w = f"layers.{number}", self.w
        columns = (HEADS + 2 * KEY_HEADS) * SIZE
        joint = self.packed(normal, f"{name}.qkv", WIDTH, columns)
        cache = [f"past_key_values.{number}.{what}" for what in ("key", "value")]
        attended = f"{name}.attended"
        outputs = [attended, *(f"present.{number}.{what}" for what in ("key", "value"))]
        w.nodes.append(onnx.helper.make_node(
            "GroupQueryAttention", [joint, "", "", *cache, *lengths, "cos_cache", "sin_cache"],
            outputs, name=f"{name}/GroupQueryAttention", domain=DOMAIN, num_heads=HEADS,
            kv_num_heads=KEY_HEADS, do_rotary=1, rotary_interleaved=0, local_window_size=-1,
        ))  # fmt: skip
        x, normal = self.skip(x, self.packed(attended, f"{name}.o", WIDTH, WIDTH), f"{name}.post")
        gate = self.packed(normal, f"{name}.gate", WIDTH, HIDDEN)
        up = self.packed(normal, f"{name}.up", WIDTH, HIDDEN)
        act = w.node("Mul", w.node("Mul", gate, w.node("Sigmoid", gate)), up)
        return self.skip(x, self.packed(act, f"{name}.down", HIDDEN, WIDTH), f"{name}.next")

    def skip(self, x: str, y: str, name: str) -> tuple[str, str]:
        """The sum of both, and its normalisation."""
        gain = self.weights(f"{name}.weight", WIDTH)
        normal, _, _, total = self.own(
            "SkipSimplifiedLayerNormalization", x, y, gain, outputs=4, epsilon=1e-5
        )
        self.w.nodes[-1].output[1:3] = ["", ""]
        return total, normal

    def build(self) -> onnx.GraphProto:
        w = self.w
        w.initializer("one_axis", [1], np.int64)
        w.initializer("one", [1], np.int64)
        w.initializer("second", 1, np.int64)
        angles = np.outer(np.arange(32), 10000.0 ** -(np.arange(SIZE // 2) / (SIZE // 2)))
        w.initializer("cos_cache", np.cos(angles))
        w.initializer("sin_cache", np.sin(angles))
        codes = w.initializer(
            "embed.qweight", self.random.integers(0, 256, (WORDS, WIDTH // 2)), np.uint8
        )
        scales = w.initializer("embed.scales", self.random.uniform(0.1, 0.3, (WORDS, WIDTH // 32)))
        x = self.own("GatherBlockQuantized", codes, "input_ids", scales, bits=4, block_size=32)
        gain = self.weights("layers.0.input.weight", WIDTH)
        normal = w.node("SimplifiedLayerNormalization", x, gain, axis=-1, epsilon=1e-5)
        lengths = self.lengths()
        for number in range(LAYERS):
            x, normal = self.layer(number, x, normal, lengths)
        w.nodes.append(onnx.helper.make_node(
            "Identity", [self.packed(normal, "lm_head", WIDTH, WORDS)], ["logits"]
        ))  # fmt: skip
        batch, rows = "batch_size", "sequence_length"
        kinds = [f"{n}.{what}" for n in range(LAYERS) for what in ("key", "value")]

        def cache(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = [batch, KEY_HEADS, length, SIZE]
            return [value(f"{prefix}.{kind}", np.float32, shape) for kind in kinds]

        inputs = [
            value("input_ids", np.int64, [batch, rows]),
            value("attention_mask", np.int64, [batch, "total_sequence_length"]),
            *cache("past_key_values", "past_sequence_length"),
        ]
        logits = value("logits", np.float32, [batch, rows, WORDS])
        return w.graph("genai", inputs, [logits, *cache("present", "total_sequence_length")])


def generate() -> None:
    """A prompt, one more token, several more, and two texts of different lengths."""
    save(own_model(Decoder(7).build(), 21, "genai-style"), Decoder.FILE, is_onnx=False)
    random = np.random.default_rng(8)

    def feeds(ids: np.ndarray, past: list[np.ndarray], used: tuple[int, ...]) -> dict:
        total = past[0].shape[2] + ids.shape[1]
        mask = np.arange(total) < np.array(used)[:, None]
        kinds = [f"{n}.{what}" for n in range(LAYERS) for what in ("key", "value")]
        given = {f"past_key_values.{k}": array for k, array in zip(kinds, past, strict=True)}
        return {"input_ids": ids, "attention_mask": mask.astype(np.int64), **given}

    def words(batch: int, rows: int) -> np.ndarray:
        return random.integers(0, WORDS, (batch, rows))

    empty = [np.zeros((1, KEY_HEADS, 0, SIZE), np.float32)] * 2 * LAYERS
    _, *cache = add_case(
        Decoder.FILE, "genai_style_prompt", Decoder.STYLE, feeds(words(1, 6), empty, (6,))
    )
    add_case(Decoder.FILE, "genai_style_next", Decoder.STYLE, feeds(words(1, 1), cache, (7,)))
    add_case(Decoder.FILE, "genai_style_more", Decoder.STYLE, feeds(words(1, 3), cache, (9,)))
    two = [np.concatenate([x, x]) for x in cache]
    for x in two:
        x[1, :, 3:] = 0  # which the second text has not reached
    add_case(Decoder.FILE, "genai_style_two", Decoder.STYLE, feeds(words(2, 1), two, (7, 4)))


# ---------------------------------------------------------------- an encoder


class Encoder(Net):
    FILE, STYLE = "transformers_style.onnx", "by hand, after onnxruntime.transformers, bert"

    def skip(self, x: str, y: str, name: str) -> str:
        parts = [self.weights(f"{name}.{part}", NARROW) for part in ("gamma", "beta", "bias")]
        return self.own("SkipLayerNormalization", y, x, *parts, epsilon=1e-12)

    def layer(self, x: str, number: int) -> str:
        w, name = self.w, f"layer.{number}"
        if number:
            parts = [
                w.node("MatMul", x, self.weights(f"{name}.{part}", NARROW, NARROW))
                for part in "qkv"
            ]
            bias = self.weights(f"{name}.qkv.bias", 3 * NARROW)
            y = self.own("MultiHeadAttention", *parts, bias, "mask", num_heads=HEADS)
        else:
            joint = self.weights(f"{name}.qkv", NARROW, 3 * NARROW)
            bias = self.weights(f"{name}.qkv.bias", 3 * NARROW)
            y = self.own("Attention", x, joint, bias, "mask", num_heads=HEADS)
        y = w.node("MatMul", y, self.weights(f"{name}.o", NARROW, NARROW))
        x = self.skip(x, y, f"{name}.attention")
        y = w.node("MatMul", x, self.weights(f"{name}.up", NARROW, 2 * NARROW))
        kind = ("BiasGelu", "FastGelu")[number % 2]
        y = self.own(kind, y, self.weights(f"{name}.up.bias", 2 * NARROW))
        y = w.node("MatMul", y, self.weights(f"{name}.down", 2 * NARROW, NARROW))
        return self.skip(x, y, f"{name}.output")

    def build(self) -> onnx.GraphProto:
        w = self.w
        tables = [self.weights(n, rows, NARROW) for n, rows in
                  (("word", WORDS), ("position", 32), ("segment", 2))]  # fmt: skip
        ends = [self.weights(f"embeddings.{part}", NARROW) for part in ("gamma", "beta")]
        x, _ = self.own("EmbedLayerNormalization", "ids", "segments", *tables, *ends, outputs=2)
        for number in range(LAYERS):
            x = self.layer(x, number)
        scores = self.own("FusedMatMul", x, self.weights("scores", 5, NARROW), alpha=0.5, transB=1)
        w.nodes.append(onnx.helper.make_node("QuickGelu", [scores], ["scored"], domain=DOMAIN))
        shape = ["batch", "length"]
        inputs = [value(name, np.int32, shape) for name in ("ids", "segments", "mask")]
        return w.graph("encoder", inputs, [value("scored", np.float32, [*shape, 5])])


def encode() -> None:
    save(own_model(Encoder(9).build(), 17, "transformers-style"), Encoder.FILE)
    random = np.random.default_rng(10)
    for name, shape in (("transformers_style", (2, 7)), ("transformers_style_one", (1, 12))):
        mask = np.ones(shape, np.int32)
        mask[0, shape[1] - 3 :] = 0
        feeds = {
            "ids": random.integers(0, WORDS, shape).astype(np.int32),
            "segments": random.integers(0, 2, shape).astype(np.int32),
            "mask": mask,
        }
        add_case(Encoder.FILE, name, Encoder.STYLE, feeds)


if __name__ == "__main__":
    generate()
    encode()
