"""Streams of requests of random sizes: graphc against ONNX Runtime, from the start of processes.

    python benchmarks/streams.py distilbert.onnx seq=1..128 batch=1
    python benchmarks/streams.py unet.onnx H=64..320/32 W=64..320/32 --requests 100
    python benchmarks/streams.py gpt2.onnx new=1..500 past=0 --generate 32

Every symbol of the model is given, as a number or as bounds, with a step if it has one: the sizes
of each request are drawn from these. Both runtimes get the same requests, on one thread, in a
process of their own, which imports, loads and compiles all it needs; graphc is run with an empty
cache, then again with what that left there. Times are CPU seconds of the process, its background
threads included, so that other work on the machine counts little, but without what it takes to draw
requests and to look at answers; `wall` are seconds on the clock, all included.

With `--generate N`, a request is a prompt, with a run for each of N tokens. The model takes tokens
first and then a cache, which it gives back, longer, after the logits, in the same order. The next
token is the likeliest one.

One JSON line: `total` and `second` are the times of ONNX Runtime by those of graphc, over all
requests from the start of the process and over the second half of them; `first` those until the
first answer is there. `error` is the largest difference relative to the range of an output. With
`--shapes N`, graphc alone meets N random sizes: how its memory grows after the first thousand.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = 4096  # elements of an output that are compared
CONTENDERS = ("graphc", "onnxruntime")
Feeds = dict[str, np.ndarray]


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("sizes", nargs="*", help="NAME=8, NAME=1..128 or NAME=32..512/32")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--specialise", default="auto")
    parser.add_argument("--generate", type=int, default=0, help="tokens after each prompt")
    parser.add_argument("--bounds", action="store_true", help="tell graphc the bounds of sizes")
    parser.add_argument("--shapes", type=int, help="meet so many sizes, watching memory")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shapes:
        print(json.dumps(_growth(args)))
    elif args.contender:
        print(json.dumps(_stream(args)))
    else:
        print(json.dumps(_compared(args)))
    return 0


# ---------------------------------------------------------------- requests


def sizes_of(texts: list[str]) -> dict[str, tuple[int, int, int]]:
    """The least and the largest value of each symbol, and its step."""
    sizes = {}
    for text in texts:
        name, _, value = text.partition("=")
        bounds, _, step = value.partition("/")
        low, _, high = bounds.partition("..")
        sizes[name] = (int(low), int(high or low), int(step or 1))
    return sizes


def requests(path: Path, texts: list[str], count: int) -> Iterator[Feeds]:
    """The inputs of so many requests, the same every time. Integers are small, as those of words
    are; masks are ones."""
    inputs, dice = interface(path), np.random.default_rng(0)
    for _ in range(count):
        at = {
            name: int(dice.integers(0, (high - low) // step + 1)) * step + low
            for name, (low, high, step) in sizes_of(texts).items()
        }
        feeds = {}
        for name, dtype, dims in inputs:
            shape = [at[d] if isinstance(d, str) else d for d in dims]
            if "mask" in name:
                feeds[name] = np.ones(shape, dtype)
            elif dtype.kind in "iu":
                feeds[name] = dice.integers(0, 1000, shape, dtype)
            else:
                feeds[name] = dice.standard_normal(shape).astype(dtype)
        yield feeds


def interface(path: Path) -> list[tuple[str, np.dtype, list[int | str]]]:
    """The inputs of a model, which a process told once need not read again."""
    known = os.environ.get("STREAM_INPUTS")
    if known is None:
        import onnx

        graph = onnx.load(path, load_external_data=False).graph
        known = json.dumps(
            [
                [
                    value.name,
                    onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).str,
                    [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
                ]
                for value in graph.input
            ]
        )
        os.environ["STREAM_INPUTS"] = known
    return [(name, np.dtype(dtype), dims) for name, dtype, dims in json.loads(known)]


# ---------------------------------------------------------------- one process


def contender(args: argparse.Namespace) -> tuple[Any, Callable[[Feeds], list[Any]]]:
    """The model, loaded, and what runs it."""
    if args.contender == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(args.model), options, providers=["CPUExecutionProvider"]
        )
        return session, lambda feeds: session.run(None, feeds)
    import graphc

    bounds: dict[str, Any] = {
        name: low if low == high else (low, high)
        for name, (low, high, _) in sizes_of(args.sizes).items()
        if args.bounds or low == high > 0  # what is empty grows
    }
    model = graphc.compile(args.model, dims=bounds, threads=1, specialise=args.specialise)
    return model, model.run


def _stream(args: argparse.Namespace) -> dict[str, Any]:
    """Times of all requests in this process, from its start."""
    model, run = contender(args)
    loaded = time.process_time()
    marks, walls, answers = [], [], []
    own, since = 0.0, time.thread_time()  # seconds of this script
    for feeds in requests(args.model, args.sizes, args.requests):
        own += time.thread_time() - since
        outputs = _generated(run, feeds, args.generate) if args.generate else run(feeds)
        marks.append(time.process_time() - own)
        since = time.thread_time()
        walls.append(time.time() - float(os.environ["STREAM_START"]))
        answers += [_sample(np.asarray(output)) for output in outputs]
    if args.answers:
        np.savez(args.answers, *answers)
    told = {"load": loaded, "marks": marks, "walls": walls}
    if args.contender == "graphc":
        told["executables"] = [str(info) for info in model.executables()]
    return told


def _generated(run: Callable[[Feeds], list[Any]], feeds: Feeds, count: int) -> list[Any]:
    """What the last run gives of those for a prompt and for each token after it."""
    first, *caches = feeds
    outputs = run(feeds)
    for _ in range(count - 1):
        token = outputs[0][:, -1:].argmax(-1).astype(feeds[first].dtype)
        outputs = run({first: token, **dict(zip(caches, outputs[1:]))})
    return outputs


def _sample(output: np.ndarray) -> np.ndarray:
    flat = output.reshape(-1).astype(np.float64)
    return np.array([*flat[:: max(len(flat) // SAMPLE, 1)], flat.min(), flat.max()])


# ---------------------------------------------------------------- both


def _compared(args: argparse.Namespace) -> dict[str, Any]:
    interface(args.model)
    with tempfile.TemporaryDirectory() as folder:
        other = _run("onnxruntime", Path(folder))
        told: dict[str, Any] = {"model": args.model.stem, "sizes": args.sizes}
        for start in ("cold", "warm"):
            own = _run("graphc", Path(folder))
            told[start] = _ratios(own, other)
        told["onnxruntime"] = _times(other)
        told["error"] = _error(*(np.load(Path(folder, f"{name}.npz")) for name in CONTENDERS))
        told["executables"] = own["executables"]
    return told


def _run(name: str, folder: Path) -> dict[str, Any]:
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GRAPHC_CACHE_DIR": str(folder / "cache"),
        "STREAM_START": str(time.time()),
    }  # fmt: skip
    command = [sys.executable, *sys.argv, "--contender", name]
    done = subprocess.run(
        [*command, "--answers", str(folder / f"{name}.npz")],
        env=environment, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def _times(told: dict[str, Any]) -> dict[str, float]:
    """Seconds from the start of the process until it was loaded, until the first answer, and until
    the last; seconds of the second half of requests."""
    marks, half = told["marks"], len(told["marks"]) // 2
    return {
        "load": round(told["load"], 3),
        "first": round(marks[0], 3),
        "total": round(marks[-1], 3),
        "second": round(marks[-1] - marks[half - 1], 3),
        "wall": round(told["walls"][-1], 3),
    }


def _ratios(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    mine, theirs = _times(own), _times(other)
    return {"seconds": mine, **{name: round(theirs[name] / mine[name], 3) for name in mine}}


def _error(own: Any, other: Any) -> float:
    errors = []
    for name in other.files:
        a, b = own[name], other[name]
        errors.append(np.abs(a - b).max() / max(b[-1] - b[-2], 1e-30))
    return float(max(errors))


# ---------------------------------------------------------------- memory


def _growth(args: argparse.Namespace) -> dict[str, Any]:
    """Resident MiB after the first thousand requests, and every thousand from then on. What the
    script itself remembers is allocated before the first."""
    args.contender = "graphc"
    _, run = contender(args)
    resident, shapes = [], np.full(args.shapes, -1)
    for count, feeds in enumerate(requests(args.model, args.sizes, args.shapes)):
        run(feeds)
        shapes[count] = hash(tuple(x.shape for x in feeds.values()))
        if count % 1000 == 999:
            resident.append(_resident())
    return {"model": args.model.stem, "shapes": len(np.unique(shapes)), "mib": resident}


def _resident() -> float:
    """Resident MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 2)


if __name__ == "__main__":
    sys.exit(main())
