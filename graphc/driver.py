"""The way through: from a model to something that runs, for a target of graphc/targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

from graphc import targets
from graphc.collector import collecting_rarely
from graphc.errors import ModelError, NeedsValue, UnsupportedError, within_limits
from graphc.files import noted_files
from graphc.ir.graph import Graph, Op, Region
from graphc.ir.ops.control import MAX_ITERATIONS
from graphc.ir.program import Program
from graphc.passes import Context, Hook, PassManager, parse_pipeline
from graphc.passes.fold import FoldPolicy
from graphc.passes.general import check_open
from graphc.passes.integers import KEEP_INTEGERS
from graphc.passes.iterations import count_iterations
from graphc.passes.layout import row_major_operands
from graphc.passes.lower import lower
from graphc.passes.lower.placeable import check_placeable
from graphc.passes.manager.base import Pass, made_here
from graphc.passes.manager.hooks import usual_hooks
from graphc.passes.manager.pipeline import steps_of
from graphc.passes.maps import in_tensors
from graphc.passes.native import as_flow, natively
from graphc.passes.partition import part_graph
from graphc.passes.rewriter import RULES
from graphc.passes.scans import walk_rows
from graphc.passes.specialise import pin, specialise
from graphc.plugins import load_installed
from graphc.progress import counted
from graphc.records import dataclass
from graphc.runtime.compiled import CompiledModel
from graphc.runtime.exchange import as_numpy
from graphc.runtime.plans import CompileStatic
from graphc.runtime.readings import Recorder
from graphc.targets.base import CHECKS, MODES, PREPARING, Build, Target

if TYPE_CHECKING:
    from graphc.passes.lower.rows.segments import RowPlan
    from graphc.runtime.model_cache import Entry

Pipeline = str | Sequence[Pass]
OPTIMISING = f"checks, {PREPARING}, layout, fuse"


def _default_threads() -> int:
    from graphc.backends.llvm_cpu.target import default_threads

    return default_threads()


@dataclass
class Settings:
    """How graphs are compiled, whatever the target: `threads` to run on; `passes` a pipeline in
    place of the target's own; hooks around passes; the context (fuel, diagnostics); `observe`,
    which is called with every program made; `max_iterations`, after which a loop that the host runs
    ends in an error, those of loops inside it counted; `checks`, "off" for compiled code that takes
    indices and lengths to be in range: what is not is clamped; and `specialise`, which tells how a
    model of open shape runs: "any", by one program for all shapes within bounds; "exact", by one
    compiled for each shape; "auto", by the first, and by exact ones for shapes that keep coming
    (runtime/tiers.py). With a `recorder` programs can time their steps (runtime/readings.py)."""

    threads: int = field(default_factory=_default_threads)
    passes: Pipeline | None = None
    hooks: Sequence[Hook] = ()
    context: Context = field(default_factory=Context)
    observe: Callable[[Program], object] | None = None
    max_iterations: int = MAX_ITERATIONS
    checks: str = "on"
    specialise: str = "auto"
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.threads, int) or self.threads < 1:
            raise ModelError(f"threads must be a positive integer, found {self.threads!r}")
        if self.checks not in CHECKS:
            raise ModelError(f"checks must be one of {', '.join(CHECKS)}, found {self.checks!r}")
        if self.specialise not in MODES:
            one = f"one of {', '.join(MODES)}"
            raise ModelError(f"specialise must be {one}, found {self.specialise!r}")
        if not isinstance(self.max_iterations, int) or self.max_iterations < 1:
            raise ModelError(
                f"max_iterations must be a positive integer, found {self.max_iterations!r}"
            )
        if isinstance(self.passes, str):
            parse_pipeline(self.passes)  # complains now, not at the first run

    @property
    def is_plain(self) -> bool:
        """Whether a program depends on the graph and `passes` alone, and nobody watches: then it
        may come from the cache."""
        watched = (
            self.hooks
            or self.observe
            or self.recorder
            or self.context.debug
            or self.context.fuel is not None
        )
        ours = all(made_here(r.function) for r in RULES.values())
        return ours and not watched and (self.passes is None or isinstance(self.passes, str))

    def pipeline(self, usual: Pipeline) -> list[Pass]:
        """The passes: the settings' own, if they have any, else the usual ones. Checks of data are
        no matter of optimisation: those of the usual pipeline come first where the own has none."""
        steps = steps_of(usual)
        if self.passes is not None:
            checks = [step for step in steps if step.name == "checks"]
            steps = steps_of(self.passes)
            if all(step.name != "checks" for step in steps):
                steps = checks + steps
        return [step for step in steps if self.checks == "on" or step.name != "checks"]


def _is_ours(graph: Graph) -> bool:
    """Whether all operators of a graph are defined by graphc itself."""
    return all(op.defn.function is None or made_here(op.defn.function) for op in graph.walk())


def load_graph(source: Any) -> Graph:
    """A Graph from a path, bytes, a ModelProto, or a Graph itself."""
    if isinstance(source, Graph):
        return source
    from graphc.frontend.models import import_model  # loads onnx

    return import_model(source)


@collecting_rarely()
def compile(
    source: Any,
    target: str | Target = targets.DEFAULT,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    values: Mapping[str, Any] | None = None,
    threads: int | None = None,
    entry: Entry | None = None,
    **options: Any,
) -> CompiledModel:
    """As `graphc.compile`, and keeps the model in the cache's `entry`."""
    aim, chosen = configured(target, threads, options)
    with within_limits(), noted_files() as external:
        values = {n: as_numpy(v, f"the value of {n!r}") for n, v in (values or {}).items()}
        graph = pin(load_graph(source), shapes, values, dims)
        if not (chosen.is_plain and _is_ours(graph)):
            entry = None
        model = CompiledModel(
            graph, compiler(aim, chosen), native_on(aim, chosen), aim.adopter(), policy(aim),
            chosen.max_iterations, chosen.context.noting(),
            None if entry is None else entry.add_part, chosen.specialise,
            _why_exact(aim, entry),
            aim.counts,
        )  # fmt: skip
        model.prepare()
    if entry is not None:
        entry.add(model, external)
    return model


def _why_exact(target: Target, entry: Entry | None) -> str:
    """Why there is no program for all shapes, if that is known before it is tried."""
    if not target.open_sizes:
        return f"target {target.name} has no programs for all shapes"
    return "" if entry is None else entry.declined()


def configured(
    target: str | Target, threads: int | None, options: Mapping[str, Any]
) -> tuple[Target, Settings]:
    """A target with its options, and settings, from the keyword arguments of `compile`."""
    load_installed()
    known = [f.name for f in fields(Settings) if f.name != "threads"]
    own = {name: value for name, value in options.items() if name not in known}
    others = [*known, "threads", "shapes", "dims", "values"]
    aim = targets.configured(target, own, others) if isinstance(target, str) or own else target
    given = {name: value for name, value in options.items() if name in known}
    return aim, Settings(**given if threads is None else {**given, "threads": threads})


def compiler(target: Target, settings: Settings) -> CompileStatic:
    """What compiles static graphs for a target."""
    target = target.attached()
    if settings.recorder is not None and not target.records:
        raise UnsupportedError(f"target {target.name!r} does not time its steps")

    def key(graph: Graph) -> str | None:
        if not (settings.is_plain and _is_ours(graph)):
            return None
        limits = []
        if any(op.defn.form == "region" for op in graph.ops):
            limits.append(f"at most {settings.max_iterations} iterations")
        variant = target.variant()
        steps = [*map(str, settings.pipeline(target.pipeline())), *limits]
        return ", ".join([*steps, variant] if variant else steps)

    build = Build(
        lambda g: to_program(g, target, settings), settings.threads, key, settings.recorder
    )
    return collecting_rarely()(target.compiler(build))


def native_on(target: Target, settings: Settings) -> Callable[[Op], bool]:
    """Tells which typed ops are compiled for a target."""

    def is_compiled(op: Op) -> bool:
        if target.control_flow and op.defn.form == "region":
            return not as_flow(op, settings.max_iterations)
        return natively(op)

    return is_compiled


def policy(target: Target) -> FoldPolicy | None:
    """Of folding while graphs are typed for a target."""
    return KEEP_INTEGERS if target.keeps_integers else None


def optimise(
    graph: Graph,
    settings: Settings | None = None,
    passes: Pipeline | None = None,
    until: str = "",
    target: Target | None = None,
) -> Graph:
    """Runs a pipeline on a typed graph, in place, for the machine of a target: the settings' own,
    if they have one, else `passes`, else the target's.

    A graph of a later phase goes on from there. With `until` it ends once the graph has reached
    that phase.
    """
    settings = settings or Settings()
    context = settings.context if target is None else settings.context.on(target)
    if passes is None:
        passes = OPTIMISING if target is None else target.pipeline()
    hooks = usual_hooks(settings.context, settings.hooks)
    manager = PassManager(settings.pipeline(passes), hooks)
    for step in counted("optimising", manager.remaining(graph)):
        if until and graph.reached(until):
            break
        manager.step(step, graph, context)
    return graph


def program_for(graph: Graph, target: str | Target = targets.DEFAULT, **options: Any) -> Program:
    """A typed static graph as a target runs it, optimised and lowered; `options` as for `compile`.
    UnsupportedError names what cannot run without a host."""
    return to_program(graph, *configured(target, None, options))


@collecting_rarely()
def to_program(graph: Graph, target: Target, settings: Settings) -> Program:
    """As `program_for`, of a target with its options."""

    def lowered(graph: Graph, rows: RowPlan | None = None) -> Program:
        if target.control_flow and not graph.is_optimised:
            _bound_loops(graph, settings.max_iterations)
        _check_schedules(graph)
        bodies = _optimised(graph, target, settings)
        for part in (graph, *bodies.values()) if graph.symbols else ():
            check_open(part)
        return lower(
            graph, target.strategies(), graph.name, replace(target.conventions(), rows=rows),
            settings.context.journal, bodies,
        )  # fmt: skip

    with within_limits():
        made = target.program(graph, lowered)
    if settings.observe is not None:
        settings.observe(made)
    return made


def _check_schedules(graph: Graph) -> None:
    """ModelError if passes would take apart an op that is given a schedule."""
    for op in graph.walk():
        if op.schedule and not graph.reached("fused"):
            raise ModelError(
                f"{op.where()}: a schedule is for an op of a graph of phase fused, found phase "
                f"{graph.phase}; `graphc compile --stop-after fused` writes one"
            )


def _bound_loops(graph: Graph, most: int) -> None:
    """Has the loops of a typed graph end, and walk rows; UnsupportedError if control flow needs a
    host."""
    for op in graph.ops:
        why = as_flow(op, most) if op.defn.form == "region" else ""
        if why:
            raise UnsupportedError(f"{op.where()}: it runs on a host only, as {why}")
    walk_rows(graph)
    count_iterations(graph, most)


def _optimised(graph: Graph, target: Target, settings: Settings) -> dict[Region, Graph]:
    """Optimises a graph, in place, for lowering; the graphs of the bodies of its control flow,
    optimised alike, by their regions."""
    optimise(graph, settings, target=target)
    check_placeable(graph, target.control_flow)
    row_major_operands(graph, settings.context)
    bodies: dict[Region, Graph] = {}
    for op in graph.ops:
        for region in op.regions if op.defn.form == "region" else ():
            whole = Graph("body")
            whole.symbols = graph.symbols
            body = part_graph(whole, region.ops, region.params, region.results)
            body.phase, body.owner = "typed", op
            inside = replace(settings, checks="off")  # those of bodies stand beside the op
            bodies.update(_optimised(body, target, inside))
            bodies[region] = body
    return bodies


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
