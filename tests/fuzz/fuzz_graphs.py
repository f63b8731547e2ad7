"""Fuzzing: random graphs on the interpreter, a target and ONNX Runtime, compared.

    python tests/fuzz/fuzz_graphs.py --seed 0 --minutes 10            # from this seed on
    python tests/fuzz/fuzz_graphs.py --seed 1234 --count 1 --print    # one case again
    python tests/fuzz/fuzz_graphs.py --target open --no-judge         # dims open, at 20 sizes each
    python tests/fuzz/fuzz_graphs.py --target tiers --no-judge        # two tiers, sizes that grow
    python tests/fuzz/fuzz_graphs.py --target cuda --family attention --precision f16 --arch any

The interpreter is compared with the target and with ONNX Runtime (judging.py). A failing case is
made smaller (shrinking.py) and written to a folder as a model, its inputs and what was expected.
Cases run in a child process, so that a crash or a hang is a finding like any other.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generator import families, generate
from judging import ONNXRUNTIME, Runner, failure, target_runner
from shrinking import save, smaller
from worker import Worker, add_bounds

from graphc.errors import UnsupportedError


def examine(
    seed: int, runners: dict[str, Runner], folder: Path | None, family: str = ""
) -> list[str]:
    """Findings of one seed, a line each; failing cases are written to `folder`."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = generate(seed, family)
        for name, runner in runners.items():
            try:
                problem = failure(case, runner)
            except UnsupportedError:
                continue
            if problem:
                small = smaller(case, runner) if folder else case
                problem = failure(small, runner) or problem
                ops = [op.name for op in small.graph.ops if op.name != "Constant"]
                found.append(f"{name} {seed}: {problem} [{' '.join(ops)}]")
                if folder:
                    save(small, folder, f"{name}-{seed}", found[-1])
    return found


def examiner(args: argparse.Namespace) -> Callable[[int], list[str]]:
    """Examines seeds on a target and, if asked to, on ONNX Runtime."""
    os.environ["GRAPHC_CACHE_DIR"] = "off"
    runners = {args.target: target_runner(args.target, args.precision, args.arch)}
    if not args.no_judge:
        runners["onnxruntime"] = ONNXRUNTIME
    return lambda seed: examine(seed, runners, args.output, args.family)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_bounds(parser)
    parser.add_argument(
        "--target", default="cpu", help="cpu, c, micro, cuda, onnx, open or tiers (see judging.py)"
    )
    parser.add_argument("--precision", default="f32", help="of cuda: f32, tf32, f16, bf16")
    parser.add_argument(
        "--arch", default="", help="of cuda: sm_75, sm_90a, ...; of cpu: sse, avx2, ...; or any"
    )
    parser.add_argument(
        "--family",
        default="",
        choices=("", *families()),
        help="larger graphs around one kind of layer",
    )
    parser.add_argument("--no-judge", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--output", type=Path, help="folder for failing cases, made smaller")
    parser.add_argument("--print", action="store_true", help="print each graph")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    worker = Worker(examiner, args)
    return worker.work(args, lambda seed: print(generate(seed, args.family).graph))


if __name__ == "__main__":
    sys.exit(main())
