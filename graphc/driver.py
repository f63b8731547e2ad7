"""The way through: from a model to something that runs, one readable pipeline per target.

What belongs to a target is imported when it is asked for: each loads libraries of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from graphc.errors import ModelError, NeedsValue, UnsupportedError, within_limits
from graphc.ir.graph import Graph
from graphc.ir.ops.control import MAX_ITERATIONS
from graphc.ir.program import Program
from graphc.passes import Context, Hook, PassManager, parse_pipeline
from graphc.passes.checks import Checks
from graphc.passes.integers import KEEP_INTEGERS
from graphc.passes.lower import Conventions, Strategy, lower
from graphc.passes.lower.placeable import check_placeable, check_typed
from graphc.passes.lower.strategies.plain import plain_loops
from graphc.passes.manager.base import Pass, made_here
from graphc.passes.manager.hooks import usual_hooks
from graphc.passes.maps import in_tensors
from graphc.passes.precision import PRECISIONS
from graphc.passes.rewriter import RULES
from graphc.passes.specialise import pin, specialise
from graphc.runtime.compiled import CompiledModel
from graphc.runtime.exchange import as_numpy
from graphc.runtime.plans import CompileStatic, Executable, natively
from graphc.runtime.runnable import Runnable

SIMPLE = "decompose, fold, cse, dce"
PREPARING = "canonicalise, rewrite{group=lowering}, decompose, fold, canonicalise, cse, dce"
OPTIMISING = f"{PREPARING}, layout, fuse"


def cuda_passes(precision: str = "f32") -> str:
    """The pipeline of GPUs, for contractions in this precision."""
    return (
        "integers{floats=true}, rewrite{group=axes}, canonicalise, rewrite{group=lowering},"
        " decompose{batched=true}, fold, canonicalise, cse, rewrite{group=products},"
        " rewrite{group=parts}, merge-products,"
        f" precision{{type={precision}}}, dce, layout{{rows=true}},"
        " fuse{widening=true, columns=true}, fuse-attention, fuse-gates, fuse-siblings"
    )


CHECKS = ("on", "off")
GPU_OPTIONS = ("device", "simulate", "precision", "arch", "tune")
PIPELINES = {
    "cpu": (
        "integers{floats=true}, rewrite{group=axes}, rewrite{group=windows},"
        f" {PREPARING}, layout{{rows=true}}, fuse, fuse-reductions"
    ),
    "c": f"integers, {OPTIMISING}",
    "plain": SIMPLE,
    "cuda": cuda_passes(),
}
POLICIES = {t: KEEP_INTEGERS for t in ("cpu", "c", "cuda", "onnx")}
"""Of folding while graphs are specialised; "onnx" is a graph that is written as a model again."""


def _default_threads() -> int:
    from graphc.backends.llvm_cpu.target import default_threads

    return default_threads()


@dataclass
class Settings:
    """How graphs are compiled, whatever the target: `threads` to run on; `passes` a pipeline in
    place of the target's own; hooks around passes; the context (fuel, diagnostics); `observe`,
    which is called with every program made; for GPUs `device`, the number of the one to run on,
    `simulate`, to run kernels on the host, `precision`, in which contractions multiply (f32, tf32,
    f16, bf16), `arch`, for which kernels are planned (default: the GPU's), and `tune`, to choose
    tiles by measuring them on it; `sanitize`, to end the process where C code for a
    microcontroller, which the host runs, does what C does not define; `max_iterations`, after
    which a loop that the host runs ends in an error, those of loops inside it counted; and
    `checks`, "off" for compiled code that takes indices and lengths to be in range: what is not is
    clamped."""

    threads: int = field(default_factory=_default_threads)
    passes: str | Sequence[Pass] | None = None
    hooks: Sequence[Hook] = ()
    context: Context = field(default_factory=Context)
    observe: Callable[[Program], object] | None = None
    device: int = 0
    simulate: bool = False
    precision: str = "f32"
    arch: str = ""
    tune: bool = False
    sanitize: bool = False
    max_iterations: int = MAX_ITERATIONS
    checks: str = "on"

    def __post_init__(self) -> None:
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ModelError(f"threads must be a positive integer, found {self.threads!r}")
        if self.precision not in PRECISIONS:
            raise ModelError(
                f"precision must be one of {', '.join(PRECISIONS)}, found {self.precision!r}"
            )
        if self.checks not in CHECKS:
            raise ModelError(f"checks must be one of {', '.join(CHECKS)}, found {self.checks!r}")
        if not isinstance(self.device, int) or self.device < 0:
            raise ModelError(f"device must be the number of a GPU, found {self.device!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise ModelError(
                f"max_iterations must be a positive integer, found {self.max_iterations!r}"
            )
        if not isinstance(self.arch, str):
            raise ModelError(f"arch must be like 'sm_80' or 'sm_80,sm_90', found {self.arch!r}")
        if isinstance(self.passes, str):
            parse_pipeline(self.passes)  # complains now, not at the first run

    @property
    def is_plain(self) -> bool:
        """Whether a program depends on the graph and `passes` alone, and nobody watches: then it
        may come from the cache."""
        watched = self.hooks or self.observe or self.context.debug or self.context.fuel is not None
        ours = all(made_here(r.function) for r in RULES.values())
        return ours and not watched and (self.passes is None or isinstance(self.passes, str))


def _is_ours(graph: Graph) -> bool:
    """Whether all operators of a graph are defined by graphc itself."""
    return all(op.defn.function is None or made_here(op.defn.function) for op in graph.walk())


def load_graph(source: Any) -> Graph:
    """A Graph from a path, bytes, a ModelProto, or a Graph itself."""
    if isinstance(source, Graph):
        return source
    from graphc.frontend.onnx_import import import_onnx  # loads onnx

    return import_onnx(source)


def compile(
    source: Any,
    target: str = "cpu",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    **options: Any,
) -> CompiledModel:
    """Compiles a model (path, bytes, ModelProto or Graph) for a target.

    `shapes` pins inputs, `dims` dimension symbols (a pair gives bounds), and `values` binds inputs
    to contents (they are inputs no more). If this fixes all shapes the model is compiled at once,
    otherwise when it is run. `threads` is the number of CPU threads (default: all). `options` are
    the other fields of `Settings`. Raises ModelError, UnsupportedError.
    """
    chosen = settings(threads, options)
    with within_limits():
        values = {n: as_numpy(v, f"the value of {n!r}") for n, v in (values or {}).items()}
        graph = pin(load_graph(source), shapes, values, dims)
        model = CompiledModel(
            graph, compiler(target, chosen), natively, adopter(target, chosen),
            POLICIES.get(target), chosen.max_iterations,
        )  # fmt: skip
        model.prepare()
    return model


def load(path: str | os.PathLike, threads: int | None = None) -> Runnable:
    """A model that `CompiledModel.save` wrote, ready to run without being compiled again.

    ModelError if the file is damaged, here or when weights are read for the first run, or was made
    for another CPU. It holds native code, which runs with all your rights: load only what comes
    from somebody you trust.
    """
    from graphc.runtime.saved import load as load_saved

    return load_saved(path, threads)


def settings(threads: int | None, options: Mapping[str, Any]) -> Settings:
    """Settings from the keyword arguments of `compile`."""
    known = [f.name for f in fields(Settings) if f.name != "threads"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ModelError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
    given = dict(options) if threads is None else {**options, "threads": threads}
    return Settings(**given)


def compiler(target: str, settings: Settings) -> CompileStatic:
    """What compiles static graphs for a target."""
    if target not in TARGETS:
        raise ModelError(f"target {target!r} is none of {', '.join(TARGETS)}")
    for name in GPU_OPTIONS if target != "cuda" else ():
        if (found := getattr(settings, name)) != getattr(Settings, name):
            raise UnsupportedError(f"target {target!r} has no {name}={found!r}; target 'cuda' has")
    return TARGETS[target](settings)


def adopter(target: str, settings: Settings) -> Callable[[Any], Any] | None:
    """What takes arrays in the memory of the target's device; None if it has no memory of its
    own."""
    if target != "cuda" or settings.simulate:
        return None
    from graphc.backends.cuda.gpu import adopted

    return adopted


def optimise(
    graph: Graph, settings: Settings | None = None, passes: str = OPTIMISING, until: str = ""
) -> Graph:
    """Runs a pipeline (the settings' own, if they have one) on a typed graph, in place.

    A graph of a later phase goes on from there. With `until` it ends once the graph has reached
    that phase.
    """
    settings = settings or Settings()
    hooks = [*usual_hooks(settings.context), *settings.hooks]
    manager = PassManager(settings.passes if settings.passes is not None else passes, hooks)
    if settings.checks == "on":
        manager.passes.insert(0, Checks())
    for step in manager.remaining(graph):
        if until and graph.reached(until):
            break
        manager.step(step, graph, settings.context)
    return graph


def to_program(
    graph: Graph,
    strategies: Sequence[Strategy],
    settings: Settings | None = None,
    passes: str = OPTIMISING,
    wanted: Conventions | None = None,
) -> Program:
    """A typed static graph, optimised and lowered as its target wants it. UnsupportedError names
    what cannot run without a host."""
    with within_limits():
        graph = optimise(graph, settings, passes)
        check_placeable(graph)
        program = lower(graph, strategies, graph.name, wanted)
    if settings is not None and settings.observe is not None:
        settings.observe(program)
    return program


def cpu_program(graph: Graph, settings: Settings | None = None) -> Program:
    """A typed static graph as the CPU runs it."""
    from graphc.backends.llvm_cpu.strategies import conventions, strategies

    return to_program(graph, strategies(), settings, PIPELINES["cpu"], conventions())


def c_program(graph: Graph, settings: Settings | None = None) -> Program:
    """A typed static graph in plain loops, one kernel per operator, as it is printed in C."""
    return to_program(graph, plain_loops(), settings, PIPELINES["plain"])


def micro_program(
    graph: Graph,
    settings: Settings | None = None,
    cpu: str = "generic",
    resident: bool = False,
    opt: str = "speed",
) -> Program:
    """A typed static graph as a microcontroller runs it; `cpu` is one of micro_c.cpus, `resident`
    as `Conventions` has it, `opt` one of micro_c.goals."""
    from graphc.backends.micro_c.cpus import cpu_of
    from graphc.backends.micro_c.goals import SIZE, finished, goal_of
    from graphc.backends.micro_c.quantisation import quantisation
    from graphc.backends.micro_c.strategies import strategies

    goal = goal_of(opt)
    check_typed(graph)
    parameters = quantisation(graph)
    program = to_program(
        graph, strategies(cpu, small=goal is SIZE), settings, PIPELINES["c"],
        Conventions(resident, in_order=True),
    )  # fmt: skip
    return replace(finished(program, cpu_of(cpu), goal), quantisation=parameters)


def cuda_program(graph: Graph, settings: Settings | None = None) -> Program:
    """A typed static graph as a GPU runs it."""
    from graphc.backends.cuda.machines import DEFAULT_ARCH, VECTOR_BYTES
    from graphc.backends.cuda.operators import GridBuilder
    from graphc.backends.cuda.strategies import strategies

    settings = settings or Settings()
    _check_types(graph)
    passes = cuda_passes(settings.precision)
    if settings.tune:
        from graphc.backends.cuda.gpu import with_own_features
        from graphc.backends.cuda.tuning import Tuner, tuned_device

        gpu = tuned_device(settings.device, settings.arch)
        kinds = strategies(settings.arch or with_own_features(gpu.arch), Tuner(gpu).best)
    else:
        kinds = strategies(settings.arch or DEFAULT_ARCH)
    wanted = Conventions(alignment=VECTOR_BYTES, joined=True, builder=GridBuilder)
    return to_program(graph, kinds, settings, passes, wanted)


def typed(source: Any, **pins: Any) -> Graph:
    """A model with static types; `pins` are the `shapes`, `dims` and `values` of `compile`.

    Weights stay quantised if they are; outputs that are maps are tensors. ModelError if a dimension
    is left open; UnsupportedError if a type depends on data.
    """
    shapes, values, dims = (pins.get(name) for name in ("shapes", "values", "dims"))
    try:
        with within_limits():
            graph = in_tensors(pin(load_graph(source), shapes, values, dims))
            return specialise(graph, policy=KEEP_INTEGERS)
    except NeedsValue as error:
        raise UnsupportedError(f"{error}; a program without a host needs static shapes") from error


def _check_types(graph: Graph) -> None:
    """UnsupportedError if what an op gives has no type before it has run."""
    for op in graph.ops:
        for value in op.outputs:
            if value.type is None:
                raise UnsupportedError(
                    f"{op.where()}: {value.name!r} has no type that is known when it is compiled; "
                    "a program without a host needs it"
                )


def _cpu(settings: Settings) -> CompileStatic:
    from graphc.backends.llvm_cpu.artifact import cached_image
    from graphc.backends.llvm_cpu.memory import Scratch
    from graphc.backends.llvm_cpu.runtime import NativeModel, compile_program

    scratch = Scratch()

    def compile_static(graph: Graph) -> Executable:
        def program() -> Program:
            return cpu_program(graph, settings)

        if settings.is_plain and _is_ours(graph):
            options = f"{settings.passes or PIPELINES['cpu']}; checks {settings.checks}"
            image = cached_image(graph, options, program)
        else:
            image = compile_program(program())
        return NativeModel(image, settings.threads, scratch)

    return compile_static


def _c(settings: Settings) -> CompileStatic:
    from graphc.backends.micro_c.host import build

    return lambda graph: build(micro_program(graph, settings), bool(settings.sanitize))


def _cuda(settings: Settings) -> CompileStatic:
    from graphc.backends.cuda import emit
    from graphc.backends.cuda.gpu import GpuModel, open_gpu, with_own_features
    from graphc.backends.cuda.simulator import simulate

    if settings.simulate:
        return lambda graph: simulate(emit(cuda_program(graph, settings)))
    gpu = open_gpu(settings.device)
    settings = replace(settings, arch=settings.arch or with_own_features(gpu.arch))
    return lambda graph: GpuModel(cuda_program(graph, settings), gpu)


TARGETS: dict[str, Callable[[Settings], CompileStatic]] = {"cpu": _cpu, "c": _c, "cuda": _cuda}
PROGRAMS: dict[str, Callable[[Graph, Settings | None], Program]] = {
    "cpu": cpu_program,
    "c": micro_program,
    "cuda": cuda_program,
}
