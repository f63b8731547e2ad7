"""Train the sample digit classifier; write digits_cnn.onnx and digits_samples.npz beside this file.

Needs torch, scikit-learn, onnx, onnxscript and onnxruntime; none of them but onnx is a dependency
of graphc, so use an environment of its own.  Runs in well under a minute on one CPU core.

The batch normalisations are kept as operators (not folded into the convolutions by the exporter),
so that folding them is left to graphc.
"""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
SEED = 20240229
EPOCHS = 40
BATCH = 64
SAMPLES = 64


class DigitsNet(nn.Module):
    """Three conv-bn-relu blocks and one linear layer: f32[N,1,8,8] in [0,1] to f32[N,10] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(image)))
        x = self.pool(torch.relu(self.bn2(self.conv2(x))))
        x = self.pool(torch.relu(self.bn3(self.conv3(x))))
        return self.fc(torch.flatten(x, 1))


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train and test images (f32[N,1,8,8] in [0,1]) and labels; a stratified 75/25 split."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None, :, :]
    labels = digits.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    return x_train, x_test, y_train, y_test


def train(images: np.ndarray, labels: np.ndarray) -> DigitsNet:
    model = DigitsNet()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch], label_smoothing=0.05)
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def export(model: DigitsNet, path: pathlib.Path) -> None:
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    onnx.checker.check_model(str(path), full_check=True)


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    x_train, x_test, y_train, y_test = load()
    path = HERE / "digits_cnn.onnx"
    export(train(x_train, y_train), path)

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": x_test})
    correct = int((logits.argmax(1) == y_test).sum())
    np.savez_compressed(
        HERE / "digits_samples.npz",
        images=x_test[:SAMPLES],
        labels=y_test[:SAMPLES],
        logits=logits[:SAMPLES],
    )
    operators = [node.op_type for node in onnx.load(path).graph.node]
    print(f"test accuracy {correct}/{len(y_test)} = {correct / len(y_test):.4f}")
    print(f"{path.name}: {path.stat().st_size} bytes, {' '.join(operators)}")


if __name__ == "__main__":
    main()
