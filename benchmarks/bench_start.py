"""CPU seconds, those in the system included, from the start of a process to its first answer: of
graphc that has to compile, of graphc that knows the model (from its cache, and from a .gcm), and of
ONNX Runtime. `whole` is the process that compiles to its end: the cache is written behind the
answer.

    python benchmarks/bench_start.py --directory MODELS resnet50 lstm_tagger --rounds 5

One JSON line per model: medians over rounds, in which the four take turns, on one thread. `stages`
are shares of one compilation. Python's bytecode is compiled in a first run that does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import models

GRAPHC = """
import os
import sys
import numpy as np
import graphc
feeds = dict(np.load(sys.argv[2]))
shapes = {name: array.shape for name, array in feeds.items()}
is_saved = sys.argv[1].endswith(".gcm")
model = graphc.load(sys.argv[1], 1) if is_saved else graphc.compile(
    sys.argv[1], shapes=shapes, threads=1)
model.run(feeds)
print(sum(os.times()[:2]))
"""
ONNXRUNTIME = """
import os
import sys
import numpy as np
import onnxruntime
feeds = dict(np.load(sys.argv[2]))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, feeds)
print(sum(os.times()[:2]))
"""
STAGES = """
import json, sys, time
import numpy as np
begin = time.process_time()
import graphc
from graphc import driver
from graphc.backends.llvm_cpu import codegen
from graphc.frontend import onnx_import
spent = {"imports": time.process_time() - begin}
def timed(module, name, stage):
    inner = getattr(module, name)
    def outer(*args, **options):
        start = time.process_time()
        result = inner(*args, **options)
        spent[stage] = spent.get(stage, 0) + time.process_time() - start
        return result
    setattr(module, name, outer)
timed(driver, "load_graph", "reading")
timed(driver, "optimise", "passes")
timed(driver, "lower", "lowering")
timed(codegen, "llvm_text", "printing")
timed(codegen, "cached_object", "llvm")
shapes = {name: array.shape for name, array in np.load(sys.argv[2]).items()}
graphc.compile(sys.argv[1], shapes=shapes, threads=1)
total = time.process_time() - begin
spent["other"] = total - sum(spent.values())
print(json.dumps({stage: round(seconds / total, 3) for stage, seconds in spent.items()}))
"""


def seconds(code: str, model: Path, feeds: Path, cache: str) -> tuple[float, float]:
    """The CPU seconds of a process, in user code and in the system: to what it prints, which is
    what they were then, and to its end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, model, feeds], env=environment(cache),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{model.name}: the process ended with {process.returncode}")
    return float(told), used.ru_utime + used.ru_stime


def environment(cache: str) -> dict[str, str]:
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **one, "GRAPHC_CACHE_DIR": cache}


def measured(path: Path, rounds: int, scratch: Path) -> dict[str, object]:
    """What is printed of a model."""
    import graphc

    model, _, feeds = models.load(path)
    whole, saved, given = scratch / path.name, scratch / "model.gcm", scratch / "feeds.npz"
    onnx.save(model, whole)
    np.savez(given, **feeds)
    shapes = {name: array.shape for name, array in feeds.items()}
    graphc.compile(whole, shapes=shapes, threads=1).save(saved)
    known = str(scratch / "known")
    for name in (whole, saved):
        seconds(GRAPHC, name, given, known)
    kinds = ("cold", "cached", "gcm", "onnxruntime", "whole")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as empty:
            answer, end = seconds(GRAPHC, whole, given, empty)
        times["cold"].append(answer)
        times["whole"].append(end)
        times["cached"].append(seconds(GRAPHC, whole, given, known)[0])
        times["gcm"].append(seconds(GRAPHC, saved, given, known)[0])
        times["onnxruntime"].append(seconds(ONNXRUNTIME, whole, given, known)[0])
    told = subprocess.run(
        [sys.executable, "-c", STAGES, whole, given],
        env=environment("off"), check=True, capture_output=True, text=True,
    )  # fmt: skip
    medians = {name: round(statistics.median(values), 3) for name, values in times.items()}
    return {"model": path.stem, **medians, "stages": json.loads(told.stdout)}


def main() -> None:
    parser = models.arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for path in models.paths(args):
        with tempfile.TemporaryDirectory() as scratch:
            print(json.dumps(measured(path, args.rounds, Path(scratch))), flush=True)


if __name__ == "__main__":
    main()
