"""A small trained model from file to answers: `make demo`, or `python -m graphc.demo`.

Compiles models/digits_cnn.onnx, runs it on the sample images, compares with ONNX Runtime, and
prints sizes, times, errors, where the time goes and how memory is used. The exit code is 1 if the
results are wrong.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from graphc import driver
from graphc.analysis import report
from graphc.analysis.text import duration, nbytes, table
from graphc.backends.llvm_cpu.machine import host_machine
from graphc.bench import measure
from graphc.errors import GraphcError
from graphc.ir.compare import compare
from graphc.ir.program import Program
from graphc.runtime.compiled import CompiledModel
from graphc.verify import Run, onnxruntime

MODELS = Path(__file__).parent.parent / "models"
MODEL = MODELS / "digits_cnn.onnx"
RTOL = 1e-4
SECONDS = 1.0  # for each latency
TOP = 6


def main() -> int:
    """Runs the demo; returns the exit code."""
    with np.load(MODELS / "digits_samples.npz") as samples:
        images, labels = samples["images"], samples["labels"]
    reference = onnxruntime(MODEL, threads=1)
    model, programs = compile_model(len(images))
    right = check(model, reference, images, labels)
    latency(model, reference, images, "all images")
    model, programs = compile_model(1)
    latency(model, reference, images[:1], "one image")
    peaks = host_machine().peaks()
    print(f"\nWhere the time of one image goes, at least, with {report.peaks_text(peaks)}:\n")
    print(report.steps(programs[0], peaks, TOP))
    print("\nHow memory is used:\n")
    print(report.memory(programs[0]))
    return 0 if right else 1


def compile_model(batch: int) -> tuple[CompiledModel, list[Program]]:
    """The model for a batch size, and the program it came to."""
    programs: list[Program] = []
    start = time.perf_counter()
    model = driver.compile(MODEL, dims={"N": batch}, threads=1, observe=programs.append)
    taken = time.perf_counter() - start
    program = programs[0]
    weights = sum(c.nbytes for c in program.constants)
    print(
        f"{MODEL.name} ({nbytes(MODEL.stat().st_size)}) for {batch} images: compiled in "
        f"{duration(taken)} to {len(program.calls)} steps; weights {nbytes(weights)}, "
        f"arena {nbytes(program.arena_bytes)} (at least {nbytes(program.arena_lower_bound)})"
    )
    return model, programs


def check(model: CompiledModel, reference: Run, images: np.ndarray, labels: np.ndarray) -> bool:
    """Accuracy on the samples, and agreement with ONNX Runtime."""
    (logits,) = model.run({"image": images})
    (expected,) = reference({"image": images})
    agreement = compare("logits", logits, expected)
    hits = int((logits.argmax(1) == labels).sum())
    print(f"{hits} of {len(labels)} sample images recognised; "
          f"error against ONNX Runtime {agreement.error:.1e} of the range")  # fmt: skip
    same = bool((logits.argmax(1) == expected.argmax(1)).all())
    return agreement.within(RTOL) and same


def latency(model: CompiledModel, reference: Run, images: np.ndarray, what: str) -> None:
    """Times both in turn, on one thread."""
    feeds = {"image": images}
    runs = {"graphc": partial(model.run, feeds), "ONNX Runtime": partial(reference, feeds)}
    times = measure(runs, SECONDS)
    rows = [(what, "median", "best")]
    rows += [(f"  {name}", duration(t.median), duration(t.best)) for name, t in times.items()]
    print(table(rows))
    print(f"  graphc is x{times['graphc'].ratio(times['ONNX Runtime']):.2f} as fast")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraphcError as error:
        sys.exit(f"graphc: {error}")
