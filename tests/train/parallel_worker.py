"""What a process of test_parallel.py runs: steps on its part of each batch."""

from __future__ import annotations

import os
import sys

import numpy as np

from graphc import ModelError, train
from graphc.train.parallel import DataParallel

MODEL, DATA, OUT, ENDS_AT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
rank = int(os.environ["RANK"])
step = train.Step(
    MODEL, optimizer=train.SGD(0.05, momentum=0.9), clip_norm=1.0, train_mode=False, threads=1,
    metrics=["accuracy"], exact=True,
)  # fmt: skip
if rank:  # the first one's parameters count
    step.load_state_dict({name: array * 0 for name, array in step.state_dict().items()})
NEVER_STARTS = -2
if ENDS_AT == NEVER_STARTS and rank == 1:
    os._exit(9)
try:
    meeting = 3 if ENDS_AT == NEVER_STARTS else 120
    parallel = DataParallel(step, bucket=1 << 12, timeout=60, meeting=meeting)
    with np.load(DATA) as data:
        x, y = data["x"], data["y"]
    edges = np.linspace(0, len(x[0]), parallel.size + 1).astype(int)
    part = slice(edges[rank], edges[rank + 1])
    share = (part.stop - part.start) / len(x[0])
    _, gradients = step.gradients((x[0][part], y[0][part]), share)
    parallel.add_up(gradients)
    losses = []
    for n in range(3):
        if n == ENDS_AT and rank == 1:
            os._exit(9)
        losses.append(parallel((x[n][part], y[n][part])).loss)
        parallel.save(f"{OUT}.step.npz")
    if rank == parallel.size - 1:
        own = {f"gradient {name}": g for name, g in gradients.items()}
        train.save_state_dict({**step.state_dict(), **own, "losses": np.array(losses)}, OUT)
except ModelError as error:
    print(error, file=sys.stderr)
    sys.stderr.flush()
    os._exit(3)
