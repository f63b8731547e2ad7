"""Decoders with a cache of open length, as PyTorch's two exporters write those of transformers:
keys turned by their positions, and attention within a window.

Needs torch and transformers (made with torch 2.13, transformers 4.57; decoder_batch with 5.23).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import onnx
import torch
import transformers
from transformers import masking_utils

FOLDER = Path(__file__).parent
SIZES = dict(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=32, max_position_embeddings=64,
    initializer_range=0.5,
)  # fmt: skip


class Decoder(torch.nn.Module):
    """Logits and present keys and values of tokens after past ones."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2])):
            cache.update(keys, values, layer)
        results = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        layers = results.past_key_values.layers
        return (results.logits, *[x for layer in layers for x in (layer.keys, layer.values)])


def inputs(batch: int) -> dict[str, torch.Tensor]:
    arrays = {
        "input_ids": torch.ones(batch, 3, dtype=torch.long),
        "attention_mask": torch.ones(batch, 8, dtype=torch.long),
        "position_ids": torch.arange(5, 8).repeat(batch, 1),
    }
    names = [f"past_{kind}_{layer}" for layer in range(2) for kind in ("key", "value")]
    return arrays | {name: torch.zeros(batch, 2, 5, 4) for name in names}


def over_indices(function, bh_indices=True):
    """A mask at all indices at once, without torch.vmap, which the older exporter does not take."""
    return lambda b, h, q, k: function(
        b[:, None, None, None], h[:, None, None], q[:, None], k
    ).expand(b.shape[0], -1, q.shape[0], k.shape[0])


def export(model: torch.nn.Module, name: str, opset: int, dynamo: bool, batch: int = 1) -> None:
    """Writes a decoder; batches are open if the one that it is traced with has several rows."""
    given = inputs(batch)
    opened = {"input_ids": {1: "new"}, "attention_mask": {1: "total"}, "position_ids": {1: "new"}}
    opened |= {name: {2: "past"} for name in given if name.startswith("past")}
    if batch > 1:
        opened = {name: {0: "batch", **dims} for name, dims in opened.items()}
    shapes = [{d: torch.export.Dim.DYNAMIC for d in opened[name]} for name in given]
    how = (
        {"dynamic_shapes": (*shapes[:3], tuple(shapes[3:]))} if dynamo else {"dynamic_axes": opened}
    )
    torch.onnx.export(
        Decoder(model.eval()), tuple(given.values()), FOLDER / name, input_names=list(given),
        output_names=["logits", *[n.replace("past", "present") for n in given if "past" in n]],
        opset_version=opset, dynamo=dynamo, **how, **({"external_data": False} if dynamo else {}),
    )  # fmt: skip
    made = onnx.load(FOLDER / name)
    for node in made.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for part in (*made.graph.value_info, *made.functions, *made.graph.input, *made.graph.output):
        part.ClearField("metadata_props")
    made.graph.ClearField("value_info")
    onnx.save(made, FOLDER / name)


if __name__ == "__main__":
    torch.manual_seed(0)
    attention = {"attn_implementation": "eager"}
    rotary = transformers.LlamaConfig(**SIZES, **attention)
    export(transformers.LlamaForCausalLM(rotary), "decoder_rotary.onnx", 20, True)
    torch.manual_seed(0)
    export(transformers.LlamaForCausalLM(rotary), "decoder_batch.onnx", 20, True, batch=2)
    masking_utils._vmap_for_bhqkv = over_indices
    masking_utils.TransformGetItemToIndex = contextlib.nullcontext
    sliding = transformers.MistralConfig(**SIZES, sliding_window=4, **attention)
    export(transformers.MistralForCausalLM(sliding), "decoder_sliding.onnx", 17, False)
