"""A graph compiled for the shapes it is run with: what `graphc.compile` gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graphc.ir.types import TensorType
from graphc.runtime.runnable import Runnable, Spec, check_type, checked

if TYPE_CHECKING:
    from graphc.ir.graph import Graph, Op
    from graphc.passes.fold import FoldPolicy
    from graphc.passes.manager.context import Context
    from graphc.runtime.execution import Made
    from graphc.runtime.listing import ExecutableInfo
    from graphc.runtime.plans import CompileStatic


class CompiledModel(Runnable):
    """A graph compiled for the shapes it meets. Safe to use from several threads.

    Outputs that are maps are compiled as tensors, of which `run` makes maps (passes/maps.py).

    `adopt` takes values in the memory of the target's device: it gives an array with dtype and
    shape that executables take as it is, or None for a value that is elsewhere. `made` is called
    with an `ExecutableInfo` of everything that is compiled. `mode` is one of targets.base.MODES;
    with a `reason` there is no program for all shapes. `counts`: programs may have sizes that data
    decides.
    """

    def __init__(
        self,
        graph: Graph,
        compile_static: CompileStatic,
        native: Callable[[Op], bool],
        adopt: Callable[[Any], Any] | None = None,
        policy: FoldPolicy | None = None,
        max_iterations: int | None = None,
        ctx: Context | None = None,
        made: Made | None = None,
        mode: str = "exact",
        reason: str = "",
        counts: bool = False,
    ):
        from graphc.ir.ops.in_range import own_results  # a model from the cache has no graph
        from graphc.passes import maps
        from graphc.runtime.execution import SpecialisedGraph
        from graphc.runtime.plans import MAX_ITERATIONS, Target
        from graphc.runtime.tiers import TieredGraph

        self.graph, self.mode = graph, mode
        self._present(
            [Spec(p.name, p.type) for p in graph.params],
            [Spec(n, v.type) for n, v in own_results(graph)],
            adopt,
        )
        target = Target(
            compile_static, native, policy, max_iterations or MAX_ITERATIONS, ctx, counts
        )
        tensors, self._maps = maps.apart(graph)
        self._specialised: SpecialisedGraph = (
            SpecialisedGraph(tensors, target, inner=False, made=made)
            if mode == "exact" or not tensors.symbols
            else TieredGraph(tensors, target, mode, reason, made)
        )
        if not self._maps:
            self.execute = self._specialised.run  # type: ignore[method-assign]  # saves a call

    def _present(
        self,
        inputs: list[Spec],
        outputs: list[Spec],
        adopt: Callable[[Any], Any] | None = None,
    ) -> None:
        """Sets what the user sees."""
        super().__init__(inputs, outputs)
        self.adopt = adopt

    @property
    def is_plain(self) -> bool:
        """Whether outputs are what compiled code gives."""
        return not self._maps

    def execute(self, values: Sequence[Any]) -> list[Any]:
        """Outputs for inputs in order, which `run` has checked against their types."""
        from graphc.ir.interp import run_op
        from graphc.runtime.plans import on_host

        results = list(self._specialised.run(values))
        for number, op in self._maps.items():
            (results[number],) = run_op(op, on_host([results[number]]))
        return results

    def _checked(self, value: Any, spec: Spec) -> Any:
        array = None if self.adopt is None or value is None else self.adopt(value)
        if array is None or not isinstance(spec.type, TensorType):
            return checked(value, spec)
        check_type(array, spec.type, spec.name)
        return array

    def prepare(self) -> bool:
        """Compiles now if the shapes of the inputs are fixed; whether the model is ready to run.

        False: something depends on what the inputs hold, and is compiled at the first run.
        """
        return self._specialised.prepare()

    def executables(self) -> list[ExecutableInfo]:
        """What has been compiled: the program for all shapes, if there may be one, then exact ones;
        each with what it serves and why it exists, or why there is none."""
        return self._specialised.executables()

    @property
    def why_exact(self) -> str:
        """Why shapes are compiled for that the program for all shapes might have taken: what it
        lacks, or the last shape that it did not take. Empty if there were none."""
        return self._specialised.why

    def save(self, path: str | os.PathLike) -> None:
        """Writes what has been compiled to a file that `graphc.load` runs without compiling: the
        program for all shapes, if there is one, and exact ones. If there is none, exact ones for
        every shape within the bounds of open dimensions; if one has no bounds, for the shapes that
        the model was run with. Outputs that are maps are tensors in the file; a warning says so.

        ModelError if there are too many shapes, or none. UnsupportedError if parts of the model run
        on the host, or depend on what inputs hold.
        """
        self.save_with(path, ())

    def save_with(self, path: str | os.PathLike, loaded: Sequence[ExecutableInfo]) -> None:
        """As `save`, with what has been loaded of the same model; where that is known here too,
        what was compiled here."""
        from graphc.ir.ops.in_range import own_results
        from graphc.passes import maps
        from graphc.passes.specialise import choices
        from graphc.runtime.saved import save

        self.prepare()
        made = [info for info in (*loaded, *self.executables()) if info.run is not None]
        is_bounded = all(s.hi is not None for s in self.graph.symbols.values())
        if not any(info.is_general for info in made) and (is_bounded or not made):
            for dims in choices(self.graph):
                self._specialised.prepare(dims)
        maps.tell(self.graph, self._maps)
        tensors = self._specialised.graph
        outputs = [Spec(n, v.type) for n, v in own_results(tensors)]
        save(path, tensors, self.inputs, outputs, [*loaded, *self.executables()])
