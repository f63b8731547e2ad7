"""Fuzzing: random graphs on the interpreter, a target and ONNX Runtime, compared.

    python tests/fuzz/fuzz_graphs.py --seed 0 --minutes 10            # from this seed on
    python tests/fuzz/fuzz_graphs.py --seed 1234 --count 1 --print    # one case again

The interpreter is compared with the target and with ONNX Runtime. The tolerance of an element grows
with how much it moves when the inputs move by one part in a million, so that cancellation is
not taken for an error. A failing case is made smaller by cutting off what the failure does not
need, and written to a folder as a model, its inputs and what was expected. Cases run in a child
process, so that a crash or a hang is a finding like any other.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from generator import Case, generate
from worker import Worker

from graphc.errors import InternalError, UnsupportedError
from graphc.ir.graph import Graph, Value, clone_graph
from graphc.ir.interp import interpret
from graphc.passes.dce import remove_dead

RELATIVE = {"float64": 1e-6, "float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}
Runner = Callable[[Case], list[Any]]


# ---------------------------------------------------------------- running


def run_interpreter(case: Case) -> list[Any]:
    return interpret(case.graph, case.inputs)


def target_runner(target: str) -> Runner:
    """Runs cases compiled for a target."""

    def run(case: Case) -> list[Any]:
        from graphc.driver import compile

        return compile(clone_graph(case.graph), target).run(list(case.inputs))

    return run


def run_onnxruntime(case: Case) -> list[Any]:
    """Runs a case in ONNX Runtime; UnsupportedError if it does not take it."""
    import onnxruntime

    from graphc.frontend.onnx_export import export_onnx

    if not case.for_onnxruntime or case.special:
        raise UnsupportedError("special values, or an operator that ONNX Runtime takes otherwise")
    types = [v.tensor for op in case.graph.ops for v in op.outputs]
    if any(t.size == 0 or t.dtype.bits == 16 and t.dtype.is_float for t in types):
        raise UnsupportedError("ONNX Runtime is wrong on empty tensors, and rounds float16 anyhow")
    try:
        model = export_onnx(clone_graph(case.graph))
    except InternalError as error:  # element types that graphc takes and ONNX does not
        raise UnsupportedError(str(error)) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        names = [i.name for i in session.get_inputs()]
        feeds = dict(zip([p.name for p in case.graph.params], case.inputs))
        return session.run(None, {n: feeds[n] for n in names})
    except Exception as error:  # the runtime raises types of its own for what it lacks
        raise UnsupportedError(str(error)) from error


# ---------------------------------------------------------------- comparing


def perturbed(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The inputs moved by about one part in a million (floats of more than 16 bits alone)."""
    rng = np.random.default_rng(0)
    out = []
    for x in inputs:
        if x.dtype in (np.float32, np.float64):
            with np.errstate(all="ignore"):
                x = (x * (1 + 1e-6 * rng.choice([-1, 1], x.shape))).astype(x.dtype)
        out.append(x)
    return out


def difference(found: Any, wanted: Any, moved: Any, floor: float = 1e-6) -> str | None:
    """What differs between two results, or None. `moved` is `wanted` for perturbed inputs."""
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return f"shape {np.shape(found)}, expected {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"dtype {found.dtype}, expected {wanted.dtype}"
    if wanted.dtype.kind in "biuO":
        bad = found != wanted
        return report(bad, found, wanted) if bad.any() else None
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        c = moved.astype(np.float64) if np.shape(moved) == wanted.shape else b
        tolerance = allowed(b, c, wanted.dtype, floor)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance)
        top = 0.99 * float(np.finfo(wanted.dtype).max) if wanted.dtype.kind == "f" else 1e38
        same |= (np.abs(a) > top) & (np.abs(b) > top) & (np.sign(a) == np.sign(b))
        same |= ~np.isfinite(b) != ~np.isfinite(c)  # at the brink of overflow
    return None if same.all() else report(~same, found, wanted)


def allowed(
    wanted: np.ndarray, moved: np.ndarray, dtype: np.dtype, smallest: float
) -> np.ndarray:
    """The tolerance of each element."""
    relative = RELATIVE.get(dtype.name, 0.0)
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(finite.max()) if finite.size else 0.0
    jitter = np.nan_to_num(np.abs(wanted - moved), nan=0.0, posinf=0.0)
    scale = smallest * 1e-3 if dtype == np.float64 else 1e-38 if largest < 1e-30 else smallest
    share = 0.02 if smallest < 1e-5 else 0.5
    floor = max(relative * share * min(largest, 1e30), scale if largest < 1e30 else 0.0)
    return relative * np.abs(wanted) + floor + 50 * jitter


def report(bad: np.ndarray, found: np.ndarray, wanted: np.ndarray) -> str:
    where = tuple(int(n) for n in np.argwhere(bad)[0])
    return (f"{int(bad.sum())} of {bad.size} differ, first at {where}: "
            f"{found[where]!r}, expected {wanted[where]!r}")  # fmt: skip


def failure(case: Case, runner: Runner) -> str | None:
    """What is wrong with a runner's results, or None. UnsupportedError goes through."""
    floor = 1e-5 if runner is run_onnxruntime else 1e-6  # its sigmoid is rough
    wanted = run_interpreter(case)
    moved = interpret(case.graph, perturbed(case.inputs))
    try:
        found = runner(case)
    except UnsupportedError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    for n, values in enumerate(zip(found, wanted, moved)):
        problem = difference(*values, floor)
        if problem:
            return f"output {n}: {problem}"
    return None


# ---------------------------------------------------------------- making cases smaller


def smaller(case: Case, runner: Runner, seconds: float = 60.0) -> Case:
    """A case that fails as this one does, with as few ops as can be found greedily."""
    until = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < until:
        improved = False
        for candidate in candidates(case):
            if time.monotonic() > until:
                break
            if fails(candidate, runner):
                case, improved = candidate, True
                break
    return case


def fails(case: Case, runner: Runner) -> bool:
    try:
        return failure(case, runner) is not None
    except Exception:
        return False


def candidates(case: Case):
    """Smaller cases: one result alone; a value as an input; an op skipped."""
    graph = case.graph
    if len(graph.results) > 1:
        for n in range(len(graph.results)):
            yield with_results(case, [n])
    contents = values_of(case)
    for number in reversed(range(len(graph.ops))):
        op = graph.ops[number]
        if op.name == "Constant":
            continue
        for k, value in enumerate(op.outputs):
            if value.uses and isinstance(contents.get(value), np.ndarray):
                yield cut_at(case, number, k, contents[value])
        for operand in op.inputs:
            if operand is not None and operand.type == op.outputs[0].type:
                yield without(case, number, op.inputs.index(operand))


def values_of(case: Case) -> dict[Value, Any]:
    found: dict[Value, Any] = {}
    interpret(case.graph, case.inputs, lambda op, results: found.update(zip(op.outputs, results)))
    return found


def tidied(case: Case, graph: Graph, inputs: list[np.ndarray]) -> Case:
    remove_dead(graph)
    used = [p.uses != [] for p in graph.params]
    if any(used):
        inputs = [x for x, keep in zip(inputs, used) if keep]
        graph.params = [p for p, keep in zip(graph.params, used) if keep]
        for index, param in enumerate(graph.params):
            param.index = index
    return replace(case, graph=graph, inputs=inputs)


def with_results(case: Case, numbers: list[int]) -> Case:
    graph = clone_graph(case.graph)
    graph.set_results([graph.results[n] for n in numbers])
    graph.output_names = graph.output_names[: len(numbers)]
    graph.output_types = [v.type for v in graph.results]
    return tidied(case, graph, list(case.inputs))


def cut_at(case: Case, number: int, output: int, contents: np.ndarray) -> Case:
    """The value of an op becomes an input."""
    graph = clone_graph(case.graph)
    value = graph.ops[number].outputs[output]
    param = graph.add_param(value.type, f"cut{len(graph.params)}")
    value.replace_uses(param)
    return tidied(case, graph, [*case.inputs, contents])


def without(case: Case, number: int, operand: int) -> Case:
    """An op is replaced by one of its operands."""
    graph = clone_graph(case.graph)
    op = graph.ops[number]
    source = op.inputs[operand]
    assert source is not None
    op.outputs[0].replace_uses(source)
    return tidied(case, graph, list(case.inputs))


# ---------------------------------------------------------------- findings


def save(case: Case, folder: Path, name: str, message: str) -> None:
    """Writes a failing case: its text, its inputs and results, and the model if it has one."""
    from graphc.frontend.onnx_export import export_onnx

    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(f"{message}\n\n{case.graph}\n")
    arrays = {p.name: x for p, x in zip(case.graph.params, case.inputs)}
    for n, y in enumerate(run_interpreter(case)):
        arrays[f"expected_{n}"] = y
    np.savez(folder / f"{name}.npz", **arrays)
    with suppress(UnsupportedError):  # then the text says it all
        (folder / f"{name}.onnx").write_bytes(export_onnx(case.graph).SerializeToString())


def examine(seed: int, runners: dict[str, Runner], folder: Path | None) -> list[str]:
    """Findings of one seed, a line each; failing cases are written to `folder`."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = generate(seed)
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


def examiner(target: str, judge: bool, folder: Path | None) -> Callable[[int], list[str]]:
    """Examines seeds on a target and, with `judge`, on ONNX Runtime."""
    runners: dict[str, Runner] = {target: target_runner(target)}
    if judge:
        runners["onnxruntime"] = run_onnxruntime
    return lambda seed: examine(seed, runners, folder)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1 << 62, help="number of cases")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--target", default="cpu", help="cpu, c, ...")
    parser.add_argument("--no-judge", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--output", type=Path, help="folder for failing cases, made smaller")
    parser.add_argument("--print", action="store_true", help="print each graph")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.count > 1 << 60 and args.minutes > 1e8:
        args.count = 100
    worker = Worker(examiner, args.target, not args.no_judge, args.output)
    until, done, findings = time.monotonic() + 60 * args.minutes, 0, 0
    while done < args.count and time.monotonic() < until:
        if args.print:
            print(generate(args.seed + done).graph)
        for line in worker.examine(args.seed + done):
            findings += 1
            print(line, flush=True)
        done += 1
    print(f"{done} cases, {findings} findings")
    worker.stop()
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
