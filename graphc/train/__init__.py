"""Training: a step of gradient descent as one compiled program.

step = graphc.train.Step("model.onnx", loss="cross_entropy", optimizer=graphc.train.AdamW(1e-3))
for x, y in batches:
    print(step((x, y)).loss)
step.save("weights.npz")
"""

from graphc.train.loss_scale import LossScale
from graphc.train.losses import LOSSES
from graphc.train.memory import Memory
from graphc.train.metrics import METRICS
from graphc.train.optimizers import SGD, Adagrad, Adam, AdamW, Lion, Optimizer, RMSProp
from graphc.train.state_files import read_state_dict, save_state_dict
from graphc.train.step import Result, Step

__all__ = [
    "LOSSES", "METRICS", "SGD", "Adagrad", "Adam", "AdamW", "Lion", "LossScale", "Memory",
    "Optimizer", "RMSProp", "Result", "Step", "read_state_dict", "save_state_dict",
]  # fmt: skip
