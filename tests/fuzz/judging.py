"""Runs a case in the interpreter, on a target and in ONNX Runtime, and says whether they agree.

The tolerance of an element grows with how much it moves when the operands and results of every
operator move by a few roundings of their type, so that cancellation and growth inside a graph are
not taken for errors (stochastic arithmetic: Vignes, "A stochastic arithmetic for reliable
scientific computation", 1993). Operators that hand on bits of their operands are left alone: every
runner must do the same there, and those that jump (Round, comparisons) are only given such bits.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from generator import FOREIGN, Case

from graphc.errors import InternalError, UnsupportedError
from graphc.ir.graph import Graph, Op, Value, clone_graph
from graphc.ir.interp import interpret, run_op
from graphc.passes.dce import remove_dead

SLOW_SECONDS = 15.0  # of processor time: a finding, although the results are right
ROUNDING = {"float64": 2.0**-50, "float32": 2.0**-21, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SAMPLES = 4  # runs with noise, every second the opposite of the one before: a tie goes both ways
SPREAD = 20.0  # roundings allowed per rounding of noise
# A fast Fourier transform's error is relative to its largest result, not to each (Higham, "Accuracy
# and Stability of Numerical Algorithms", chapter 24); by the definition it may be zero.
TRANSFORMS = {"DFT": 0.0, "STFT": 0.0}
EXACT = (
    "Abs", "Neg", "Relu", "Identity", "Floor", "Ceil", "Round", "Sign", "IsNaN", "IsInf",
    "Shrink", "ThresholdedRelu", "Max", "Min", "Where", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "Clip", "Mod", "Cast", "CastLike", "Transpose", "Reshape", "Squeeze",
    "Unsqueeze", "Flatten", "Slice", "Pad", "Concat", "Split", "Tile", "Expand", "Gather",
    "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth", "Trilu", "ReverseSequence",
    "OneHot", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK", "NonZero", "Compress",
    "Unique", "MaxPool", "GlobalMaxPool", "QuantizeLinear", "DynamicQuantizeLinear",
    "NonMaxSuppression", "Hardmax", "CenterCropPad", "Shape", "Size", "Binarizer", "BitCast",
    "DequantizeLinear", "Constant",
)  # fmt: skip
MULTIPLYING = (
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN",
    "LinearAttention", "CausalConvWithState", "DeformConv", "DFT", "STFT", "AffineGrid",
)  # fmt: skip
REPEATED = ("Attention", "LSTM", "GRU", "RNN", "LinearAttention")  # multiply what they computed
ARCHITECTURES = {
    "cuda": ("sm_75", "sm_80", "sm_90", "sm_90a"),
    "cpu": ("scalar", "sse", "avx2", "avx512", "host"),
}
# How many bits the factors of contractions have, the largest, and the step between the smallest.
FACTORS = {"tf32": (11, 1e38, 0.0), "f16": (11, 65504.0, 2.0**-24), "bf16": (8, 1e38, 0.0)}
# Of 1e-4 of the largest element of a result: where an activation bends, noise may not show.
SHARES = {"f32": 0.04, "tf32": 5.0, "f16": 5.0, "bf16": 40.0}


@dataclass(frozen=True)
class Tolerance:
    """What is allowed beside noise: of an element, by dtype; `share` of that of the largest
    element; and `floor` (for float32; a millionth of that for float64). The noise of the operators
    in `together` is that of their largest result, or of the number there. The float32 factors of
    contractions are of this `precision`; those that it holds exactly are not moved."""

    relative: dict[str, float]
    share: float
    floor: float
    together: dict[str, float] = field(default_factory=lambda: TRANSFORMS)
    precision: str = "f32"


OURS = Tolerance(
    {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}, share=0.04, floor=5e-6
)
# ONNX Runtime's sigmoid is as exact as 1 is, not as a small result is, and it computes some
# operators on float64 (Shrink) in float32; attributes of exported operators are float32.
JUDGES = Tolerance(
    OURS.relative | {"float64": 1e-6}, share=1.0, floor=1e-5,
    together=TRANSFORMS | {"Sigmoid": 1.0, "Swish": 1.0},
)  # fmt: skip


@dataclass(frozen=True)
class Runner:
    """What runs a case, how close it has to be to the interpreter, and the processor time that it
    may take."""

    run: Callable[[Case], list[Any]]
    limits: Tolerance = OURS
    seconds: float = SLOW_SECONDS


# ---------------------------------------------------------------- running


def run_interpreter(case: Case) -> list[Any]:
    return interpret(case.graph, case.inputs)


def target_runner(target: str, precision: str = "f32", arch: str = "") -> Runner:
    """Runs cases compiled for a target: "cpu", "c", "micro", "cuda" (simulated, for a precision);
    for an architecture, if one is named, where "any" draws one by the seed; "onnx" runs what the
    graph is when it has been exported and imported again; "open" what it is with open dims, at
    many sizes, and "tiers" with dims that grow, and exact programs behind (opening.py)."""

    if target in ("open", "tiers"):
        from opening import SLOW_SECONDS as OPEN_SECONDS
        from opening import run_open, run_tiers

        return Runner(run_open if target == "open" else run_tiers, seconds=OPEN_SECONDS)

    if target in OTHERS:
        return OTHERS[target]

    def run(case: Case) -> list[Any]:
        from graphc.driver import compile

        options: dict[str, Any] = {}
        named = drawn(ARCHITECTURES[target], case.seed) if arch == "any" else arch
        if target == "cuda":
            options = {"simulate": True, "precision": precision, "arch": named}
        with held_down(named if target == "cpu" else ""):
            return compile(clone_graph(case.graph), target, **options).run(list(case.inputs))

    return Runner(run, replace(OURS, precision=precision, share=SHARES[precision]))


@contextmanager
def held_down(name: str) -> Iterator[None]:
    """This CPU as an older one (named_target), if one is named."""
    from graphc.backends.llvm_cpu import target

    older = target.named_target(name or "host")
    if not older.runs_here:
        raise UnsupportedError(f"this CPU has no {name}")
    with mock.patch.object(target, "_host_target", lambda: older):
        yield


def drawn(items: Sequence[str], seed: int) -> str:
    return items[int(np.random.default_rng([seed, len(items)]).integers(len(items)))]


def run_micro(case: Case) -> list[Any]:
    """Runs the program for microcontrollers, printed as plain C."""
    from graphc.backends.c99 import build
    from graphc.driver import program_for, typed

    graph = typed(clone_graph(case.graph))
    if any("bounded" in op.defn.traits for op in graph.walk()):
        raise UnsupportedError("results whose extent depends on data are not cut off here")
    return list(build(program_for(graph, "c"))(case.inputs))


def exported(graph: Graph) -> Any:
    """The graph as a model; UnsupportedError if ONNX lacks an operator on one of its types."""
    from graphc.frontend.onnx_export import export_onnx

    try:
        return export_onnx(graph)
    except InternalError as error:
        if "has unsupported type" in str(error):
            raise UnsupportedError(str(error)) from error
        raise


def run_exported(case: Case) -> list[Any]:
    """Interprets the graph that is imported from the exported model."""
    from graphc.frontend.onnx_import import import_onnx

    model = exported(clone_graph(case.graph))
    return interpret(import_onnx(model.SerializeToString()), case.inputs)


OTHERS = {"micro": Runner(run_micro), "onnx": Runner(run_exported, JUDGES)}


def run_onnxruntime(case: Case) -> list[Any]:
    """Runs a case in ONNX Runtime: the results that it can judge, None for the others.

    UnsupportedError if there are none, or it lacks an operator.
    """
    import onnxruntime

    judged = [] if case.special else judgeable(case.graph)
    if not judged:
        raise UnsupportedError("special values, or operators that ONNX Runtime takes otherwise")
    graph = clone_graph(case.graph)
    graph.set_results([graph.results[n] for n in judged])
    graph.output_names = [graph.output_names[n] for n in judged]
    graph.output_types = [v.type for v in graph.results]
    remove_dead(graph)
    model = exported(graph)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        names = [i.name for i in session.get_inputs()]
        feeds = dict(zip([p.name for p in case.graph.params], case.inputs))
        found = dict(zip(judged, session.run(None, {n: feeds[n] for n in names})))
        return [found.get(n) for n in range(len(case.graph.results))]
    except Exception as error:  # the runtime raises types of its own for what it lacks
        raise UnsupportedError(str(error)) from error


ONNXRUNTIME = Runner(run_onnxruntime, JUDGES)


def judgeable(graph: Graph) -> list[int]:
    """The numbers of the results that ONNX Runtime can judge: it is wrong on empty tensors, rounds
    float16 anyhow, and takes some operators otherwise."""
    good = {p for p in graph.params if is_common(p)}
    for op in graph.ops:
        known = all(v is None or v in good for v in op.inputs)
        foreign = FOREIGN in op.loc or has_gaps(op)
        if known and not foreign and all(map(is_common, op.outputs)):
            good.update(op.outputs)
    return [n for n, value in enumerate(graph.results) if value in good]


def has_gaps(op: Op) -> bool:
    """Whether padding is to be found for windows smaller than their strides: ONNX Runtime takes a
    negative number, and starts in the middle, or refuses."""
    padded = str(op.attrs.get("auto_pad", "")).startswith("SAME")
    pairs = zip(op.attrs.get("kernel_shape", ()), op.attrs.get("strides", ()))
    return padded and any(extent < stride for extent, stride in pairs)


def is_common(value: Value) -> bool:
    dtype = value.tensor.dtype
    return value.tensor.size != 0 and not (dtype.bits == 16 and dtype.is_float)


# ---------------------------------------------------------------- noise


class Directions:
    """Random numbers of 1/2..1 (of equal size, they would cancel too often) with random signs;
    those of an odd `number` are the opposite of those of the even one before."""

    def __init__(self, number: int):
        self.rng = np.random.default_rng(number // 2)
        self.first = -1.0 if number % 2 else 1.0

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        signs = self.rng.choice([-1.0, 1.0], shape)
        return self.first * signs * self.rng.uniform(0.5, 1.0, shape)


def noisy(case: Case, number: int, limits: Tolerance = OURS) -> list[Any]:
    """What the interpreter makes of a case if all but constants moves by a few roundings."""
    directions = Directions(number)
    values: dict[Value, Any] = dict(zip(case.graph.params, case.inputs))
    for op in case.graph.ops:
        operands = [None if v is None else values[v] for v in op.inputs]
        if op.name in EXACT:
            results = run_op(op, operands)
        else:
            fixed = [v is None or v.constant is not None for v in op.inputs]
            moved = [x if still else jiggled(x, directions) for x, still in zip(operands, fixed)]
            if multiplies(op) and limits.precision in FACTORS:
                moved = [shortened(x, directions, *FACTORS[limits.precision]) for x in moved]
            together = limits.together.get(op.name)
            results = [jiggled(y, directions, together) for y in run_op(op, moved)]
            if (op.name in REPEATED or op.regions) and limits.precision in FACTORS:
                rounding = 2.0 ** -FACTORS[limits.precision][0]
                results = [jiggled(y, directions, 0.0, rounding) for y in results]
        values.update(zip(op.outputs, results))
    return [values[v] for v in case.graph.results]


def multiplies(op: Op) -> bool:
    """Whether an op, or one in its regions, is a contraction."""
    inner = (member for region in op.regions for member in region.ops)
    return op.name in MULTIPLYING or any(map(multiplies, inner))


def jiggled(
    x: Any, directions: Directions, together: float | None = None, rounding: float | None = None
) -> Any:
    """`x` with every element a rounding off (by default that of its type): its own, or one of the
    largest and of `together`."""
    usual = ROUNDING.get(x.dtype.name) if isinstance(x, np.ndarray) else None
    if usual is None:
        return x
    rounding = rounding or usual
    with np.errstate(all="ignore"):
        exact, step = x.astype(np.float64), rounding * directions(x.shape)
        finite = np.abs(exact[np.isfinite(exact)])
        sizes = exact if together is None else finite.max(initial=together)
        moved = np.where(np.isfinite(exact), exact + step * sizes, exact)
        return np.asarray(moved).astype(x.dtype)


def shortened(x: Any, directions: Directions, bits: int, largest: float, least: float) -> Any:
    """`x`, if it is of float32, with what does not fit so many bits a rounding to them off."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        return x
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64)
        step = np.maximum(np.exp2(np.floor(np.log2(np.abs(exact))) + 1 - bits), least)
        moves = np.isfinite(x) & (exact != 0) & (exact / step % 1 != 0)
        moved = np.where(moves, exact + 0.5 * step * directions(x.shape), exact)
        return np.where(np.abs(moved) > largest, moved * np.inf, moved).astype(np.float32)


# ---------------------------------------------------------------- comparing


def difference(found: Any, wanted: Any, noise: Sequence[Any], limits: Tolerance) -> str | None:
    """What differs between two results, or None. `noise`: results of runs with noise."""
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return f"shape {np.shape(found)}, expected {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"dtype {found.dtype}, expected {wanted.dtype}"
    if wanted.dtype.kind in "biuO":
        bad = found != wanted
        for c in noise:  # rounded the other way, at a tie
            bad &= found != c if np.shape(c) == wanted.shape else True
        return report(bad, found, wanted) if bad.any() else None
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        others = [c.astype(np.float64) for c in noise if np.shape(c) == wanted.shape]
        tolerance = allowed(b, others, wanted.dtype, limits)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance)
        top = 0.99 * float(np.finfo(wanted.dtype).max) if wanted.dtype.kind == "f" else 1e38
        same |= (np.abs(a) > top) & (np.abs(b) > top) & (np.sign(a) == np.sign(b))
        for c in others:
            same |= ~np.isfinite(b) != ~np.isfinite(c)  # at the brink of overflow
    return None if same.all() else report(~same, found, wanted)


def allowed(
    wanted: np.ndarray, noise: Iterable[np.ndarray], dtype: np.dtype, limits: Tolerance
) -> np.ndarray:
    """The tolerance of each element."""
    relative = limits.relative.get(dtype.name, 0.0)
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = float(finite.max()) if finite.size else 0.0
    jitter = np.zeros(wanted.shape)
    for other in noise:
        jitter = np.maximum(jitter, np.nan_to_num(np.abs(wanted - other), nan=0.0, posinf=0.0))
    usual = np.nan_to_num(jitter / np.abs(wanted), nan=0.0, posinf=0.0)
    if usual.size:  # the noise of an element may cancel by chance
        jitter = np.maximum(jitter, np.nan_to_num(np.median(usual) * np.abs(wanted), posinf=0.0))
    if dtype == np.float64:
        scale = 1e-6 * limits.floor
    else:
        scale = 1e-38 if largest < 1e-30 else limits.floor
    floor = relative * limits.share * min(largest, 1e30)
    if largest < 1e30:
        floor = max(floor, scale)
    return relative * np.abs(wanted) + floor + SPREAD * jitter


def report(bad: np.ndarray, found: np.ndarray, wanted: np.ndarray) -> str:
    where = tuple(int(n) for n in np.argwhere(bad)[0])
    return (f"{int(bad.sum())} of {bad.size} differ, first at {where}: "
            f"{found[where]!r}, expected {wanted[where]!r}")  # fmt: skip


def failure(case: Case, runner: Runner) -> str | None:
    """What is wrong with a runner's results, or None. UnsupportedError goes through."""
    limits = runner.limits
    wanted = run_interpreter(case)
    started = time.process_time()
    try:
        found = runner.run(case)
    except UnsupportedError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    seconds = time.process_time() - started
    if seconds > runner.seconds:
        return f"takes {seconds:.1f} s"
    problem = disagreement(found, wanted, [], limits)
    if problem is None:
        return None
    return disagreement(found, wanted, [noisy(case, n, limits) for n in range(SAMPLES)], limits)


def disagreement(
    found: Sequence[Any], wanted: Sequence[Any], noise: Sequence[Sequence[Any]], limits: Tolerance
) -> str | None:
    """The first output that differs by more than noise explains, or None."""
    for n, values in enumerate(zip(found, wanted)):
        if values[0] is None:
            continue
        problem = difference(*values, [other[n] for other in noise], limits)
        if problem:
            return f"output {n}: {problem}"
    return None
