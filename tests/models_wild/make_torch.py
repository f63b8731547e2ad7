"""Models written by PyTorch's two exporters, with dynamic dimensions.

Needs torch and onnxscript (made with torch 2.13, onnxscript 0.7).
"""

from __future__ import annotations

import io
import math
import re
import warnings

import numpy as np
import onnx
import torch
from make_common import add_case, save
from torch import nn

F = nn.functional


class SkipNet(nn.Module):
    """Image to (mask, scores): down, gate by chunk, shuffle channels, up to a computed size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.gate = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.lift = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.mask = nn.Conv2d(8 + 8 + 3, 1, 1)
        self.fc = nn.Linear(8 * 4, 5)

    def forward(self, image):
        x = F.hardswish(self.norm(self.gate(F.relu(self.down(image)))))
        value, gate = x.chunk(2, dim=1)
        x = value * torch.sigmoid(gate)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        x = x.contiguous().view(batch, -1, height, width)
        x = self.depthwise(x)
        size = (image.size(2), image.size(3))
        smooth = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        lifted = self.lift(x)[:, :, : image.size(2), : image.size(3)]
        mask = torch.sigmoid(self.mask(torch.cat([smooth, lifted, image], 1)))
        rows = torch.linspace(-1, 1, 4).view(1, 1, 4).expand(batch, channels, 4)
        pooled = x.flatten(2).mean(-1, keepdim=True) * rows
        scores = self.fc(pooled.reshape(x.size(0), -1))
        return mask, F.log_softmax(scores, dim=-1)


class Tagger(nn.Module):
    """Token ids to tag scores: embedding, two-way LSTM, causal attention with padding masked."""

    def __init__(self, vocabulary: int = 40, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(32, width)
        self.lstm = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.tags = nn.Linear(width, 7)

    def forward(self, ids):
        batch, length = ids.shape
        positions = torch.arange(length, device=ids.device).unsqueeze(0).expand_as(ids)
        x = self.token(ids) + self.position(positions)
        x, _ = self.lstm(x)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        padding = (ids == 0)[:, None, None, :]
        scores = scores.masked_fill(future | padding, -1e4)
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        y = y.permute(0, 2, 1, 3).reshape(batch, length, -1)
        x = self.norm(x + self.out(y))
        scores, tag = self.tags(x).max(dim=-1)
        return scores, tag


class Squeezer(nn.Module):
    """squeeze() of a dimension unknown at export: the exporter writes an If on Shape."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x):
        return torch.tanh(torch.matmul(x.squeeze(1), self.weight)) + 1.0


class PatchNet(nn.Module):
    """Image of any size in patches to scores: patch convolution, one attention block, mean pool."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.grid = nn.Parameter(torch.randn(1, width, 4, 4) * 0.1)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        wide = 2 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patch(image)
        batch, width, rows, columns = x.shape
        x = x + F.interpolate(self.grid, size=(rows, columns), mode="nearest")
        x = x.flatten(2).transpose(1, 2)
        qkv = self.qkv(self.norm1(x)).reshape(batch, rows * columns, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, -1, width))
        x = x + self.mlp(self.norm2(x))
        weights = torch.softmax(x.mean(-1), dim=-1)
        return self.head((x * weights.unsqueeze(-1)).sum(1)), x


def torchscript(module, arguments, file, **options) -> None:
    buffer = io.BytesIO()
    torch.onnx.export(module.eval(), arguments, buffer, dynamo=False, **options)
    save(onnx.load_from_string(buffer.getvalue()), file)


def shorten_paths(model: onnx.ModelProto) -> onnx.ModelProto:
    """Keep the exporter's stack traces, but with file names in place of absolute paths."""
    for node in model.graph.node:
        for entry in node.metadata_props:
            entry.value = re.sub(r'File "[^"]*/([^"/]+)"', r'File "\1"', entry.value)
    return model


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_skipnet() -> None:
    torch.manual_seed(1)
    module = SkipNet()
    nn.init.uniform_(module.norm.running_mean, -0.3, 0.3)
    nn.init.uniform_(module.norm.running_var, 0.5, 1.5)
    axes = {"image": {0: "batch", 2: "height", 3: "width"}}
    axes |= {"mask": {0: "batch", 2: "height", 3: "width"}, "scores": {0: "batch"}}
    torchscript(
        module,
        (torch.randn(2, 3, 12, 16),),
        "torchscript_skipnet.onnx",
        opset_version=13,
        input_names=["image"],
        output_names=["mask", "scores"],
        dynamic_axes=axes,
    )
    style = "PyTorch TorchScript exporter, opset 13"
    file = "torchscript_skipnet.onnx"
    add_case(file, "torchscript_skipnet", style, {"image": normal(1, 2, 3, 12, 16)})
    add_case(file, "torchscript_skipnet_odd", style, {"image": normal(2, 1, 3, 9, 13)})


def make_tagger() -> None:
    torch.manual_seed(2)
    ids = np.random.default_rng(3).integers(1, 40, (3, 9))
    ids[1, 6:] = 0
    axes = {name: {0: "batch", 1: "length"} for name in ("ids", "scores", "tag")}
    torchscript(
        Tagger(),
        (torch.from_numpy(ids),),
        "torchscript_tagger.onnx",
        opset_version=14,
        input_names=["ids"],
        output_names=["scores", "tag"],
        dynamic_axes=axes,
    )
    style = "PyTorch TorchScript exporter, opset 14"
    add_case("torchscript_tagger.onnx", "torchscript_tagger", style, {"ids": ids})


def make_squeezer() -> None:
    torch.manual_seed(3)
    file = "torchscript_if_squeeze.onnx"
    torchscript(
        Squeezer(),
        (torch.randn(2, 1, 6),),
        file,
        opset_version=11,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "n", 1: "m"}},
    )
    style = "PyTorch TorchScript exporter, opset 11; If on a shape"
    add_case(file, "torchscript_if_squeeze", style, {"x": normal(4, 2, 1, 6)})
    add_case(file, "torchscript_if_squeeze_else", style, {"x": normal(5, 2, 3, 6)})


def make_patchnet() -> None:
    torch.manual_seed(4)
    file = "dynamo_patchnet.onnx"
    dim = torch.export.Dim
    batch, rows, columns = dim("batch", max=64), dim("rows", max=32), dim("columns", max=32)
    program = torch.onnx.export(
        PatchNet().eval(),
        (torch.randn(2, 3, 12, 20),),
        dynamo=True,
        input_names=["image"],
        output_names=["scores", "tokens"],
        dynamic_shapes={"image": {0: batch, 2: 4 * rows, 3: 4 * columns}},
        verbose=False,
    )
    save(shorten_paths(program.model_proto), file)
    style = "PyTorch dynamo exporter"
    add_case(file, "dynamo_patchnet", style, {"image": normal(6, 2, 3, 12, 20)})
    add_case(file, "dynamo_patchnet_large", style, {"image": normal(7, 1, 3, 24, 16)})


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    make_skipnet()
    make_tagger()
    make_squeezer()
    make_patchnet()


if __name__ == "__main__":
    main()
