"""Operands for every operator that takes float16: what it sums or combines is long and large.

Operators whose operands are floats of any one shape need no entry: `cases_of` tries shapes. Others
have one in CASES; an operator that can have none is in EXEMPT, with the reason. An operator that is
in neither is an error, so that a new one is covered or refused knowingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.errors import GraphcError
from graphc.ir.build import Builder
from graphc.ir.dtypes import DType, f16
from graphc.ir.graph import Graph
from graphc.ir.opdef import OpDef
from graphc.ir.ops.helpers import RUNTIME
from graphc.ir.types import TensorType

SHAPES = ((2, 12000), (2, 3, 70, 70), (2, 48), (48,), (2, 4, 6))
LEARNING = "ai.onnx.preview.training"
TRADITIONAL = "ai.onnx.ml"
OURS = "graphc"


@dataclass
class Case:
    """Operands (floats are numbers of a few units, to be scaled), attributes, number of outputs.
    Arrays of other types are constants."""

    operands: list[np.ndarray | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def floats(self) -> list[np.ndarray]:
        return [x for x in self.operands if x is not None and x.dtype == np.float64]

    def graph(self, defn: OpDef, dtype: DType) -> Graph:
        """The operator on parameters of a float type."""
        graph = Graph("narrow")
        self.add(graph, defn, dtype)
        return graph

    def add(self, graph: Graph, defn: OpDef, dtype: DType) -> None:
        """Adds the operator, on parameters of its own, whose results become results."""
        b = Builder(graph)
        given = []
        for x in self.operands:
            if x is None or x.dtype != np.float64:
                given.append(x)
            else:
                given.append(graph.add_param(TensorType(dtype, x.shape), f"x{len(graph.params)}"))
        made = b.op(defn.name, *given, outputs=self.outputs, domain=defn.domain, **self.attrs)
        graph.set_results([*graph.results, *(made if isinstance(made, tuple) else [made])])


def positive(*shape: int) -> np.ndarray:
    """Numbers of 1/2 to 3/2."""
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape)


def signed(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + 1).standard_normal(shape)


def ints(*values) -> np.ndarray:
    return np.array(values, np.int64)


def below(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(limit).integers(0, limit, shape)


def recurrent(gates: int) -> Case:
    weights = [signed(1, gates * 8, n) / 8 for n in (600, 8)]
    return Case([signed(3, 2, 600), *weights, signed(1, gates * 16)], {"hidden_size": 8}, 2)


def pooled(**attrs: Any) -> Case:
    return Case([positive(1, 2, 96, 96)], {"kernel_shape": (90, 90), **attrs})


def image(*more: np.ndarray, **attrs: Any) -> Case:
    return Case([positive(1, 4, 40, 40), *more], attrs)


def attention(**attrs: Any) -> Case:
    return Case([signed(1, 2, 300, 16) for _ in range(3)], attrs)


def grouped() -> list[np.ndarray | None]:
    operands = (signed(1, 70, 64), signed(1, 70, 32), signed(1, 70, 32))
    return [*operands, None, None, np.array([69], np.int32), np.array(70, np.int32)]


def blob(blocks: int) -> np.ndarray:
    """Blocks of codes, each behind its scale: what MatMulFpQ4 takes."""
    scales = positive(blocks, 1).astype("<f4").view(np.uint8)
    return np.concatenate([scales, below(256, blocks, 16).astype(np.uint8)], axis=1).reshape(-1)


def scattered(name: str) -> Case:
    indices = below(3, 9000)
    if name == "ScatterND":
        return Case([positive(3), indices[:, None], positive(9000)], {"reduction": "add"})
    return Case([positive(3), indices, positive(9000)], {"reduction": "add"})


CASES: dict[str, Case | list[Case]] = {
    # windows and products
    "AveragePool": pooled(),
    "LpPool": pooled(p=2),
    "MaxPool": pooled(),
    "LRN": Case([positive(1, 900, 3, 3)], {"size": 801, "alpha": 3.0}),
    "Conv": Case([positive(1, 600, 5, 5), positive(4, 600, 3, 3), signed(4)]),
    "ConvTranspose": Case([positive(1, 900, 4, 4), positive(900, 4, 2, 2), signed(4)]),
    "DeformConv": Case(
        [positive(1, 300, 6, 6), positive(4, 300, 3, 3), signed(1, 18, 4, 4) / 9, signed(4)]
    ),
    "Col2Im": Case(
        [positive(1, 900, 900), ints(30, 30), ints(30, 30)], {"pads": (29, 0, 0, 29)}
    ),
    "Gemm": Case([positive(3, 9000), positive(9000, 5), signed(5)], {"alpha": 0.3, "beta": 0.7}),
    "Einsum": Case(
        [positive(3, 90), positive(90, 90), positive(90, 2)], {"equation": "ab,bc,cd->ad"}
    ),
    "CausalConvWithState": Case([positive(2, 3, 9), positive(3, 1, 4)], {"activation": "silu"}),
    # rows
    "GroupNormalization": Case([positive(2, 4, 3000), positive(4), signed(4)], {"num_groups": 2}),
    "CumSum": Case([positive(2, 9000), ints(1)]),
    "CumProd": Case([1 + signed(2, 900) / 99, ints(1)]),
    "ScatterElements": scattered("ScatterElements"),
    "ScatterND": scattered("ScatterND"),
    "NegativeLogLikelihoodLoss": Case([signed(9000, 7), below(7, 9000)], {"reduction": "sum"}),
    "SoftmaxCrossEntropyLoss": Case([signed(9000, 7), below(7, 9000)], {"reduction": "mean"}),
    f"{OURS}.LabelledLoss": Case([signed(90), below(7, 90), positive(7)]),
    "DFT": Case([positive(1, 9000, 1)], {"onesided": 1}),
    "STFT": Case([positive(1, 9000, 1), ints(900)[0], positive(3000)]),
    "Det": Case([signed(2, 6, 6)]),
    # recurrent layers and attention
    "RNN": recurrent(1),
    "GRU": recurrent(3),
    "LSTM": recurrent(4),
    "Attention": [attention(), attention(softcap=5.0, is_causal=1), Case(
        [*(signed(1, 2, 300, 16) for _ in range(3)), signed(300, 340),
         *(signed(1, 2, 40, 16) for _ in range(2))],
        {"qk_matmul_output_mode": 3}, 4,
    )],
    "LinearAttention": Case(
        [signed(1, 8, 32), signed(1, 8, 32), signed(1, 8, 32)],
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, 2,
    ),
    "RotaryEmbedding": Case([signed(1, 2, 9, 16), signed(1, 9, 8), signed(1, 9, 8)]),
    # coordinates
    "AffineGrid": Case([signed(2, 2, 3), ints(2, 3, 60, 60)]),
    "GridSample": image(np.tanh(signed(1, 30, 30, 2)), mode="cubic"),
    "Resize": image(None, None, ints(1, 4, 17, 55), mode="cubic"),
    "RoiAlign": image(np.array([[0, 0, 30.0, 30]]), ints(0), output_height=2, output_width=2),
    "MaxRoiPool": image(np.array([[0, 0, 0, 30.0, 30]]), pooled_shape=(2, 2)),
    # what moves elements
    "Cast": Case([positive(3, 4)], {"to": 1}),
    "CenterCropPad": Case([positive(3, 4), ints(2, 5)]),
    "Compress": Case([positive(8), np.arange(8) % 3 == 0]),
    "Concat": Case([positive(3, 4), positive(2, 4)], {"axis": 0}),
    "DepthToSpace": image(blocksize=2),
    "SpaceToDepth": image(blocksize=2),
    "Expand": Case([positive(3, 1), ints(3, 4)]),
    "Gather": Case([positive(3, 4), ints(2, 0)]),
    "GatherElements": Case([positive(3, 4), ints([2, 0, 1, 1])]),
    "GatherND": Case([positive(3, 4), ints([2, 0])]),
    "MaxUnpool": Case([positive(1, 1, 2, 2), ints([[[[0, 3], [8, 15]]]])[0]],
                      {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "OneHot": Case([ints(1, 0, 2), ints(3)[0], positive(2)]),
    "Pad": Case([positive(3, 4), ints(1, 0, 0, 1)]),
    "Reshape": Case([positive(3, 4), ints(2, 6)]),
    "ReverseSequence": Case([positive(3, 4), ints(1, 2, 3, 1)]),
    "Slice": Case([positive(3, 4), ints(1), ints(3)]),
    "Tile": Case([positive(3, 4), ints(1, 2)]),
    "TopK": Case([positive(30), ints(4)], {}, 2),
    "Unsqueeze": Case([positive(3, 4), ints(1)]),
    "Where": Case([np.array([True, False]), positive(2), positive(2)]),
    f"{OURS}.Corner": Case([positive(3, 48)], {"dims": (2, 40)}),
    f"{OURS}.Generic": Case(
        [signed(40, 300), signed(300, 20)],
        {"body": "sum(k0<300: $0[i0, k0] * $1[k0, i1])", "shape": (40, 20)},
    ),
    f"{OURS}.Frames": Case([positive(2, 30, 1)], {"step": 3, "length": 5}),
    f"{OURS}.Overlay": Case([signed(4, 90), signed(2, 90)], {"positions": (2, 0)}),
    f"{OURS}.Lookup": Case([below(9, 30).astype(np.uint8), positive(256)]),
    f"{TRADITIONAL}.ArrayFeatureExtractor": Case([positive(3, 4), ints(1, 0)]),
    # traditional models and learning
    f"{TRADITIONAL}.LinearRegressor": Case([positive(3, 900)], {"coefficients": (0.5,) * 900}),
    f"{TRADITIONAL}.LinearClassifier": Case(
        [positive(3, 900)],
        {"coefficients": (0.5,) * 1800, "intercepts": (0.1, 0.2), "classlabels_ints": (0, 1)}, 2,
    ),
    f"{TRADITIONAL}.Imputer": Case([positive(3, 4)], {"imputed_value_floats": (0.3,)}),
    f"{LEARNING}.Adagrad": Case(
        [positive(), ints(3)[0], positive(9), signed(9), positive(9)], {}, 2
    ),
    f"{LEARNING}.Adam": Case(
        [positive(), ints(3)[0], positive(9), signed(9), signed(9), positive(9)], {}, 3
    ),
    f"{LEARNING}.Momentum": Case(
        [positive(), ints(3)[0], positive(9), signed(9), signed(9)],
        {"alpha": 0.9, "beta": 0.3, "mode": "standard", "norm_coefficient": 0.01}, 2,
    ),
    # ONNX Runtime's own
    f"{RUNTIME}.Attention": Case(
        [positive(1, 5, 900), signed(900, 24) / 8, signed(24)], {"num_heads": 2}, 1
    ),
    f"{RUNTIME}.MultiHeadAttention": Case(
        [signed(1, 300, 32) for _ in range(3)], {"num_heads": 2}, 1
    ),
    f"{RUNTIME}.GroupQueryAttention": [
        Case(grouped(), {"num_heads": 4, "kv_num_heads": 2}),
        Case([*grouped(), *[None] * 3, signed(1, 4, 70, 70), signed(4)],
             {"num_heads": 4, "kv_num_heads": 2, "softcap": 3.0, "qk_output": 2}, 4),
    ],
    f"{RUNTIME}.RotaryEmbedding": Case(
        [signed(1, 2, 9, 16), np.arange(9)[None], signed(9, 8), signed(9, 8)]
    ),
    f"{RUNTIME}.BiasSoftmax": Case(
        [signed(2, 9000), signed(2, 9000)], {"axis": 1, "is_inner_broadcast": 1}
    ),
    f"{RUNTIME}.EmbedLayerNormalization": Case(
        [below(9, 2, 5), below(2, 2, 5), *(signed(n, 900) for n in (9, 9, 2)), *[signed(900)] * 2],
        {}, 2,
    ),
    f"{OURS}.SolveLinear": Case([np.eye(6) + signed(6, 6) / 9, signed(6, 2)], {}, 2),
    f"{RUNTIME}.Solve": Case([np.eye(6) + signed(6, 6) / 9, signed(6, 2)]),
    f"{RUNTIME}.Inverse": Case([np.eye(6) + signed(6, 6) / 9]),
    f"{RUNTIME}.FusedGemm": Case(
        [positive(3, 9000), positive(9000, 5), signed(5)], {"activation": "Relu", "alpha": 0.3}
    ),
    f"{RUNTIME}.GroupNorm": Case(
        [positive(2, 30, 30, 8), positive(8), signed(8)], {"groups": 2, "activation": 1}
    ),
    f"{RUNTIME}.SkipGroupNorm": Case(
        [positive(2, 30, 30, 8), positive(8), signed(8), positive(2, 30, 30, 8)],
        {"groups": 2, "activation": 0},
    ),
    f"{RUNTIME}.NhwcConv": Case([positive(1, 5, 5, 600), positive(4, 600, 3, 3), signed(4)]),
    f"{RUNTIME}.NhwcFusedConv": Case(
        [positive(1, 5, 5, 600), positive(4, 600, 3, 3), signed(4)], {"activation": "Relu"}
    ),
    f"{RUNTIME}.MatMulNBits": [
        Case([positive(3, 4096), below(256, 8, 128, 16).astype(np.uint8), positive(8, 128)],
             {"K": 4096, "N": 8, "block_size": 32, "bits": 4, "accuracy_level": level})
        for level in (0, 4)
    ],
    f"{OURS}.BlockProduct": Case(
        [positive(3, 4096), below(256, 8, 128, 16).astype(np.uint8), positive(8, 128)],
        {"K": 4096, "N": 8, "block_size": 32, "bits": 4},
    ),
    f"{OURS}.BlockScales": Case([signed(3, 90)], {"block_size": 32}),
    f"{OURS}.BlockCodes": Case([signed(3, 90)], {"block_size": 32}),
    f"{OURS}.ByteBlockProduct": Case(
        [below(127, 3, 128, 32).astype(np.int8), positive(3, 128),
         below(256, 8, 128, 16).astype(np.uint8), positive(8, 128)],
        {"K": 4096, "N": 8, "block_size": 32, "bits": 4},
    ),
    f"{RUNTIME}.GatherBlockQuantized": Case(
        [below(256, 4, 64).astype(np.uint8), ints(1, 3), positive(4, 4)],
        {"block_size": 32, "bits": 4},
    ),
    # what only ONNX Runtime still has, or has of its own
    "Crop": image(border=(1, 2, 3, 4)),
    "ImageScaler": image(scale=0.3, bias=(0.1, 0.2, 0.3, 0.4)),
    "ParametricSoftplus": Case([signed(2, 900)], {"alpha": 0.3, "beta": 0.7}),
    "ScaledTanh": Case([signed(2, 900)], {"alpha": 0.3, "beta": 0.7}),
    f"{RUNTIME}.CausalConvWithState": [
        Case([signed(2, 4, 90), signed(4, 1, 60), signed(4), signed(2, 4, 59)],
             {"activation": "silu"}, 2),
        Case([signed(2, 9, 4), signed(4, 1, 4)], {"channels_last": 1, "dilation": 2}, 2),
    ],
    f"{RUNTIME}.VarlenCausalConvWithState": Case(
        [signed(90, 4), signed(4, 1, 40), np.array([0, 1, 50, 90], np.int32), signed(4),
         signed(3, 4, 39)],
        {"activation": "silu"}, 2,
    ),
    f"{RUNTIME}.ConvTransposeWithDynamicPads": Case(
        [positive(1, 900, 4, 4), positive(900, 4, 2, 2), ints(0, 1, 1, 0), signed(4)]
    ),
    f"{RUNTIME}.CropAndResize": [
        image(np.array([[0.1, 0.2, 0.9, 0.7]]), np.array([0], np.int32), ints(7, 5), mode=mode)
        for mode in ("bilinear", "nearest")
    ],
    f"{RUNTIME}.MaxpoolWithMask": Case(
        [signed(1, 2, 20, 20), below(2, 1, 1, 20, 20).astype(np.int32)], {"kernel_shape": (5, 5)}
    ),
    f"{RUNTIME}.UnfoldTensor": Case([positive(3, 20)], {"size": 5, "step": 2}),
    f"{RUNTIME}.DecoderMaskedMultiHeadAttention": [
        Case([signed(2, 1, 32), signed(2, 2, 300, 16), signed(2, 2, 300, 16)], {"num_heads": 2}),
        Case([*(signed(2, 1, n) for n in (32, 32, 32)), None, signed(1, 2, 1, 300),
              *(signed(2, 2, 300, 16) for _ in range(2)), np.array([299], np.int32), None, None,
              signed(96)],
             {"num_heads": 2, "past_present_share_buffer": 1}, 3),
    ],
    f"{RUNTIME}.SparseAttention": [
        Case([signed(1, rows, 64) / soften, *(signed(1, rows, 32) for _ in range(2)),
              *(signed(1, 2, 128, 16) for _ in range(2)),
              np.array([[0, 1, 3, 5, 8]], np.int32),
              np.array([[0, 0, 1, 0, 2, 0, 2, 3]], np.int32),
              np.array(120, np.int32), np.array([120], np.int32), *tables],
             {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 32, **turned}, 3)
        # small scores where keys are turned, for the cache rounds those; elsewhere middling ones:
        # float32 is too coarse for larger, and weights, of float16 on CUDA, show in smaller
        for rows, soften, tables, turned in (
            (120, 3, [], {}),
            (1, 9999, [signed(128, 8) / 24, signed(128, 8) / 24], {"do_rotary": 1}),
        )
    ],
    f"{RUNTIME}.MRotaryEmbedding": Case(
        [signed(2, 9, 64), below(20, 3, 2, 9), signed(20, 8), signed(20, 8)],
        {"num_heads": 4, "mrope_section": (2, 3, 3)},
    ),
    f"{RUNTIME}.LinearAttention": [
        Case([signed(1, 60, 32) / 8 for _ in range(3)],
             {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, 2),
        Case([signed(1, 60, 32) / 8, signed(1, 60, 32) / 99, signed(1, 60, 32) / 8,
              signed(1, 2, 16, 16), -positive(1, 60, 2) / 99, positive(1, 60, 2) / 99],
             {"q_num_heads": 2, "kv_num_heads": 2}, 2),
    ],
    f"{RUNTIME}.GatedDeltaNet": [
        Case([signed(60, 2, 16), signed(60, 2, 16) / 99, signed(60, 4, 12),
              np.array([0, 20, 60], np.int32), -positive(60, 4) / 99, positive(60, 4) / 99,
              signed(2, 4, 12, 16)], {}, 2),
        Case([signed(60, 2, 16), signed(60, 2, 16), signed(60, 4, 12),
              np.array([0, 20, 60], np.int32), -positive(60, 4), signed(60, 4), None,
              signed(4) / 9, signed(4)],
             {"qk_l2_norm": 1, "beta_activation": "sigmoid", "gate_activation": "softplus"}, 2),
    ],
    f"{RUNTIME}.LinearAttentionGate": Case(
        [signed(2, 90, 8), signed(8), -positive(8), signed(2, 90, 8)], {}, 2
    ),
    f"{RUNTIME}.EngramGate": Case(
        [signed(2, 3, 2, 900), signed(2, 3, 2, 900), signed(2, 3, 900),
         *(positive(2, 900) for _ in range(3))], {}, 2
    ),
    f"{RUNTIME}.GatedAdd": Case([positive(2, 900), positive(2, 900), positive(2, 1)]),
    f"{RUNTIME}.HyperConnectionPostMix": Case(
        [positive(2, 90, 8), positive(2, 8), positive(2, 90), positive(2, 90, 90)]
    ),
    f"{RUNTIME}.MatMulBnb4": Case(
        [positive(3, 4096), below(256, 8 * 2048).astype(np.uint8), positive(8 * 64)],
        {"K": 4096, "N": 8, "block_size": 64, "quant_type": 1},
    ),
    f"{RUNTIME}.MatMulFpQ4": Case(
        [positive(3, 4096), blob(8 * 128), ints(4096, 8)], {"blk_quant_type": 0}
    ),
    f"{RUNTIME}.MoE": [
        Case([signed(6, 400), signed(6, 4), signed(4, 24, 400) / 8, signed(4, 24),
              signed(4, 400, size) / 8, signed(4, 400)], {"k": 2, **attrs})
        for size, attrs in (
            (24, {"activation_type": "gelu"}),
            (12, {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 7.0,
                  "activation_alpha": 1.702, "activation_beta": 1.0}),
        )
    ],
    f"{RUNTIME}.QMoE": Case(
        [signed(6, 400), signed(6, 4), below(256, 4, 24, 200).astype(np.uint8),
         positive(4, 24) / 8, signed(4, 24), below(256, 4, 400, 12).astype(np.uint8),
         positive(4, 400) / 8, signed(4, 400)],
        {"k": 2, "activation_type": "silu"},
    ),
    f"{RUNTIME}.MoEGroupRouter": [
        Case([signed(30, 8), signed(8)], {"top_k": 3, "n_group": 4, "topk_group": 2}),
        Case([signed(30, 8), signed(8)], {"top_k": 3}, 3),
    ],
    f"{OURS}.ExpertProduct": [
        Case([signed(6, 1, 4000), below(4, 6, 2), positive(4, 8, 4000), None, None, signed(4, 8)]),
        Case([signed(6, 1, 4000), below(4, 6, 2), below(256, 4, 8, 2000).astype(np.uint8),
              positive(4, 8, 250), None, signed(4, 8)], {"bits": 4, "block_size": 16}),
    ],
    f"{RUNTIME}.NGramRepeatBlock": Case(
        [below(3, 3, 8), signed(3, 6)], {"ngram_size": 2}
    ),
    f"{RUNTIME}.SparseToDenseMatMul": Case([positive(3, 9000), positive(9000, 5)], {"alpha": 0.3}),
    f"{RUNTIME}.WordConvEmbedding": Case(
        [1 + below(8, 6, 20), signed(5, 1, 9, 90) / 90, signed(5) / 9, signed(9, 90)]
    ),
}  # fmt: skip

_CODES = "its floats are the scales of 8-bit codes, whose products are integers"
EXEMPT = {
    **dict.fromkeys(
        [
            "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", f"{RUNTIME}.QAttention",
            f"{RUNTIME}.DynamicQuantizeMatMul", f"{RUNTIME}.DynamicQuantizeLSTM",
            f"{RUNTIME}.MatMulIntegerToFloat",
            f"{RUNTIME}.QEmbedLayerNormalization", f"{RUNTIME}.QGemm", f"{RUNTIME}.QLinearAdd",
            f"{RUNTIME}.QLinearAveragePool", f"{RUNTIME}.QLinearConcat", f"{RUNTIME}.QLinearConv",
            f"{RUNTIME}.QLinearGlobalAveragePool", f"{RUNTIME}.QLinearLeakyRelu",
            f"{RUNTIME}.QLinearMul", f"{RUNTIME}.QLinearSigmoid", f"{RUNTIME}.QLinearSoftmax",
            f"{RUNTIME}.QLinearWhere",
        ],
        _CODES,
    ),
    "TfIdfVectorizer": "it counts words, in float32",
    "NonMaxSuppression": "ONNX has it for float32 alone",
    "Upsample": "it is Resize, of old", "BitCast": "it is of bits",
    "MelWeightMatrix": "its floats are no tensors", "Range": "its floats decide its shape",
    "Unique": "its results are of no size that is known",
    "Multinomial": "it draws", "Bernoulli": "it draws", "Dropout": "it draws",
    f"{OURS}.Draw": "it draws", f"{OURS}.DropoutAt": "it draws",
    f"{OURS}.QuantizeAt": "it draws",
    "RandomNormalLike": "it draws", "RandomUniformLike": "it draws",
    f"{TRADITIONAL}.SVMClassifier": "it computes in float32, by test_ml_ops.py",
    f"{TRADITIONAL}.SVMRegressor": "likewise", f"{OURS}.CoupledProbabilities": "likewise",
    f"{TRADITIONAL}.TreeEnsemble": "leaves are summed in float32 (TreeLeaves), by test_ml_ops.py",
    f"{TRADITIONAL}.TreeEnsembleClassifier": "likewise", f"{OURS}.TreeLeaves": "likewise",
    f"{TRADITIONAL}.TreeEnsembleRegressor": "likewise",
    f"{OURS}.CutToTF32": "it is for float32", f"{OURS}.RoundToTF32": "it is for float32",
    f"{OURS}.DeltaRule": "what is made of it gives it float32, in which its states are its result",
    f"{OURS}.Rounded": "it is for float32", f"{OURS}.InRange": "it compares indices",
    f"{OURS}.Count": "it counts", f"{OURS}.Gradient": "it is made of what it differentiates",
}  # fmt: skip


def cases_of(defn: OpDef) -> list[Case]:
    """The cases of an operator; none if it has no entry, and no shape fits."""
    entry = CASES.get(defn.full_name)
    if entry is None:
        return list(_any_shapes(defn))
    return entry if isinstance(entry, list) else [entry]


def _any_shapes(defn: OpDef) -> Iterator[Case]:
    needed = [p for p in defn.params if p.kind != "optional"]
    if any(p.accepts.known or not p.accepts.accepts(f16) for p in needed):
        return
    made = 0
    for shape in SHAPES:
        for sizes in ([shape] * len(needed), [shape, *[shape[-1:]] * (len(needed) - 1)],
                      [shape, *[shape[1:2]] * (len(needed) - 1)]):  # fmt: skip
            case = Case([positive(*size) for size in sizes])
            if made < 2 and _fits(case, defn):
                made += 1
                yield case
                break


def _fits(case: Case, defn: OpDef) -> bool:
    try:
        case.graph(defn, f16)
    except GraphcError:
        return False
    return True
