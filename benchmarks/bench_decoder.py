"""An onnxruntime-genai export of a decoder on one thread, against onnxruntime-genai itself.

    python benchmarks/bench_decoder.py FOLDER [--prompt 64 200 500] [--tokens 64]

FOLDER is what onnxruntime-genai's builder writes: genai_config.json and model.onnx. Times are CPU
time: of a prompt until its first token, and per token after it; the two take turns, and the least
of several rounds counts. GB/s are of the model's files, tables of words included. `same` is how
many tokens agree before the first that differs (greedy).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime_genai as genai

import graphc

ROUNDS = 3


class Ours:
    """Greedy generation by graphc, with caches of the capacity asked for."""

    def __init__(self, folder: Path):
        start = time.process_time()
        config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
        dims = {"batch_size": 1, "kv_cache_dim": config["head_size"]}
        self.model = graphc.compile(folder / "model.onnx", threads=1, dims=dims)
        self.compile_seconds = time.process_time() - start

    def start(self, prompt: list[int], capacity: int) -> None:
        self.tokens, self.capacity = list(prompt), capacity
        self.caches = {
            spec.name: np.zeros((1, spec.shape[1], capacity, spec.shape[3]), np.float32)
            for spec in self.model.inputs
            if spec.name.startswith("past")
        }
        names = [spec.name for spec in self.model.outputs if spec.name.startswith("present")]
        self.into = dict(zip(names, self.caches.values()))  # updated in place
        self.step(prompt)

    def step(self, new: list[int]) -> None:
        mask = np.zeros((1, self.capacity), np.int64)
        mask[0, : len(self.tokens)] = 1
        feeds = {"input_ids": np.array([new]), "attention_mask": mask, **self.caches}
        logits = self.model.run(feeds, into=self.into)[0]
        self.logits = logits[0, -1]
        self.tokens.append(int(self.logits.argmax()))

    def next(self) -> None:
        self.step(self.tokens[-1:])


class Theirs:
    """Greedy generation by onnxruntime-genai."""

    def __init__(self, folder: Path):
        start = time.process_time()
        config = genai.Config(str(folder))
        options = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
        decoder = {"session_options": options}
        config.overlay(json.dumps({"model": {"decoder": decoder}}))
        self.model = genai.Model(config)
        self.compile_seconds = time.process_time() - start

    def start(self, prompt: list[int], capacity: int) -> None:
        params = genai.GeneratorParams(self.model)
        params.set_search_options(max_length=capacity, min_length=capacity, do_sample=False)
        self.generator = genai.Generator(self.model, params)
        self.generator.append_tokens(np.array([prompt], np.int32))
        self.generator.generate_next_token()

    def next(self) -> None:
        self.generator.generate_next_token()

    @property
    def tokens(self) -> list[int]:
        return list(self.generator.get_sequence(0))


def timed(runner: Ours | Theirs, prompt: list[int], count: int) -> tuple[float, float]:
    """CPU seconds until the first token, and per token after it."""
    start = time.process_time()
    runner.start(prompt, len(prompt) + count + 1)
    first = time.process_time() - start
    start = time.process_time()
    for _ in range(count):
        runner.next()
    return first, (time.process_time() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", nargs="+", type=int, default=[64, 200, 500])
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    runners = Ours(args.folder), Theirs(args.folder)
    size = sum(path.stat().st_size for path in args.folder.glob("model.onnx*"))
    print(f"loaded in {runners[0].compile_seconds:.2f} and {runners[1].compile_seconds:.2f} s")
    for length in args.prompt:
        prompt = np.random.default_rng(length).integers(3, 32000, length).tolist()
        times = [[timed(runner, prompt, args.tokens) for runner in runners] for _ in range(ROUNDS)]
        (own_first, own), (other_first, other) = np.min(times, axis=0)
        pairs = list(zip(runners[0].tokens, runners[1].tokens))[length:]
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
        first, later = other_first / own_first, other / own
        print(
            f"prompt {length}: first token {own_first * 1e3:6.1f} and {other_first * 1e3:6.1f} ms"
            f", ratio {first:5.2f};"
            f" then {own * 1e3:6.2f} and {other * 1e3:6.2f} ms, ratio {later:5.2f},"
            f" {size / own / 1e9:5.1f} GB/s; same {same} of {len(pairs)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
