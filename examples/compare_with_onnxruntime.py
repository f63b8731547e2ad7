"""Compiles a model for two targets, runs it, and compares the outputs with ONNX Runtime's."""

from pathlib import Path

import numpy as np
import onnxruntime

import graphc

MODELS = Path(__file__).resolve().parent.parent / "models"

samples = np.load(MODELS / "digits_samples.npz")
feeds = {"image": samples["images"][:16]}

session = onnxruntime.InferenceSession(
    MODELS / "digits_cnn.onnx", providers=["CPUExecutionProvider"]
)
(expected,) = session.run(None, feeds)

for target in ("cpu", "c"):
    model = graphc.compile(
        MODELS / "digits_cnn.onnx", target=target, shapes={"image": (16, 1, 8, 8)}
    )
    (logits,) = model.run(feeds)
    print(f"{target}: largest difference {abs(logits - expected).max():.1e}")
    assert np.allclose(logits, expected, atol=1e-4)
