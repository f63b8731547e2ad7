"""Every official ONNX case as PTX, without a GPU, in a run that can be interrupted and resumed.

    python tests/backends/cuda/ptx_conformance.py RESULTS.jsonl [--arch sm_80,sm_90a]
        [--only PATTERN] [--after NAME] [--limit SECONDS] [--again STATUS]

Each case is compiled for each architecture and run by the PTX machine, in a process of its own.
RESULTS has a line for each: passed, failed, unsupported (graphc says so itself), listed (a case of
known_failures.txt) or slow (it took more seconds of the processor than the limit), with the reason
and the seconds. Cases that RESULTS has are not run again, unless their status is asked for. At the
end, cases are counted by status, and those that did not pass are named. Most of a case's time is
nvcc's: with NVRTC (GRAPHC_CUDA_COMPILER=nvrtc) a case takes a fifth of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from test_conformance import KNOWN, cases, load, run

PASSED, FAILED, UNSUPPORTED, LISTED, SLOW = "passed", "failed", "unsupported", "listed", "slow"
WARM = ("test_matmul_2d", "test_softmax_example", "test_cumsum_1d", "test_basic_conv_with_padding")
WORST = 400  # letters of a reason
WALL = 5  # times the limit, for a case that waits


def outcome(name: str, arch: str) -> tuple[str, str]:
    """The status of a case, and the reason."""
    if name in KNOWN:
        return LISTED, KNOWN[name]
    try:
        run(load(cases()[name]), "PTX", arch=arch)
    except pytest.skip.Exception as skipped:
        return UNSUPPORTED, str(skipped)
    except Exception:
        return FAILED, traceback.format_exc()[-WORST:]
    return PASSED, ""


def apart(name: str, arch: str, limit: int) -> dict[str, object]:
    """A case in a process of its own, so that a crash or an endless loop costs one case."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        signal.alarm(WALL * limit)
        with os.fdopen(write, "w") as pipe:
            json.dump(outcome(name, arch), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, code, used = os.wait4(child, 0)
    if said:
        status, why = json.loads(said)
    elif os.WIFSIGNALED(code) and os.WTERMSIG(code) in (signal.SIGXCPU, signal.SIGALRM):
        status, why = SLOW, f"more than {limit} s"
    else:
        status, why = FAILED, f"the process died ({code})"
    seconds = round(used.ru_utime + used.ru_stime, 2)
    return {"name": name, "arch": arch, "status": status, "why": why, "seconds": seconds}


def kept(path: Path, again: str) -> dict[tuple[str, str], dict[str, object]]:
    """The lines of earlier runs by case and architecture, without those to run again."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [json.loads(line) for line in lines]
    latest = {(result["name"], result["arch"]): result for result in results}
    return {case: result for case, result in latest.items() if result["status"] != again}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--arch", default="sm_80,sm_90a")
    parser.add_argument("--only", default="", help="cases whose names match")
    parser.add_argument("--after", default="", help="cases behind this one, by name")
    parser.add_argument("--limit", type=int, default=120, help="seconds of the processor, each")
    parser.add_argument("--again", default="", help="run cases of this status again")
    given = parser.parse_args()
    results = kept(given.results, given.again)
    for name in WARM:  # imports what is imported when it is used, before processes are forked
        for arch in given.arch.split(","):
            outcome(name, arch)
    names = [name for name in cases() if name > given.after and re.search(given.only, name)]
    wanted = [(name, arch) for name in names for arch in given.arch.split(",")]
    with given.results.open("a") as lines:
        for name, arch in wanted:
            if (name, arch) not in results:
                results[name, arch] = apart(name, arch, given.limit)
                lines.write(json.dumps(results[name, arch]) + "\n")
                lines.flush()
    chosen = [results[case] for case in wanted]
    for result in chosen:
        if result["status"] != PASSED:
            print("{arch} {name}: {status} ({seconds} s): {why}".format(**result))
    for arch in given.arch.split(","):
        counts = Counter(r["status"] for r in chosen if r["arch"] == arch)
        print(f"{arch}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return int(any(result["status"] in (FAILED, SLOW) for result in chosen))


if __name__ == "__main__":
    sys.exit(main())
