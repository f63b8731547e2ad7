"""Compiles a model for every batch size from 1 to 4, saves it, and loads it without compiling."""

import tempfile
from pathlib import Path

import numpy as np

import graphc

MODELS = Path(__file__).resolve().parent.parent / "models"
images = np.load(MODELS / "digits_samples.npz")["images"]

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "digits.gcm")
    graphc.compile(MODELS / "digits_cnn.onnx", dims={"N": (1, 4)}).save(file)

    model = graphc.load(file)  # native code: load only files from somebody you trust
    for batch in range(1, 5):
        (logits,) = model.run({"image": images[:batch]})
        print(f"batch of {batch}: {logits.argmax(1)}")
        assert logits.shape == (batch, 10)
