"""NVIDIA's GPUs, through CUDA C; a simulator runs the kernels where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphc.errors import UnsupportedError
from graphc.targets.base import Target, option, register_target

if TYPE_CHECKING:
    from graphc.backends.cuda.runtime import Driver
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.plans import Executable

PRECISIONS = ("f32", "tf32", "f16", "bf16")


@register_target
@dataclass(frozen=True)
class Cuda(Target):
    """A GPU of NVIDIA."""

    device: int = option(0, "which GPU", type=int, what="the number of a GPU")
    simulate: bool = option(
        False, "run a GPU's kernels on this machine's CPU (slow)", type=bool, what="true or false"
    )
    precision: str = option(
        "f32", "in which a GPU's kernels multiply; they add up in f32", choices=PRECISIONS
    )
    tune: bool = option(
        False, "choose the tiles of a GPU's kernels by measuring them on it; choices are kept in "
        "the disk cache", type=bool, what="true or false",
    )  # fmt: skip
    arch: str = option(
        "", "plan kernels for these GPUs, the first above all (default: the GPU at hand, or sm_80, "
        "and code for sm_90 too in a folder; sm_90a: Hopper alone, with its own instructions)",
        what="like 'sm_80' or 'sm_80,sm_90'",
    )  # fmt: skip

    name = "cuda"
    keeps_integers = True

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.cuda.machines import machine

        return machine(self._planned)

    @cached_property
    def _planned(self) -> str:
        """The architectures that kernels are planned for."""
        from graphc.backends.cuda.gpu import with_own_features
        from graphc.backends.cuda.machines import DEFAULT_ARCH

        if self.arch or not self.tune:
            return self.arch or DEFAULT_ARCH
        return with_own_features(self._tuned.arch)

    @cached_property
    def _tuned(self) -> Driver:
        """The GPU that tiles are measured on."""
        from graphc.backends.cuda.tuning import tuned_device

        return tuned_device(self.device, self.arch)

    @cached_property
    def gpu(self) -> Driver:
        """The GPU that models run on."""
        from graphc.backends.cuda.gpu import open_gpu

        return open_gpu(self.device)

    def attached(self) -> Target:
        from graphc.backends.cuda.gpu import with_own_features

        if self.simulate:
            return self
        made = replace(self, arch=self.arch or with_own_features(self.gpu.arch))
        vars(made)["gpu"] = self.gpu  # opened once
        return made

    def pipeline(self) -> str:
        return (
            "checks, integers, rewrite{group=axes}, canonicalise, rewrite{group=lowering},"
            " decompose, fold, canonicalise, cse, rewrite{group=products},"
            " rewrite{group=parts}, merge-products,"
            f" precision{{type={self.precision}}}, dce, layout,"
            " fuse, fuse-attention, fuse-gates, fuse-siblings"
        )

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.cuda.strategies import strategies
        from graphc.backends.cuda.tuning import Tuner

        if self.tune:
            return strategies(self._planned, Tuner(self._tuned).best)
        return strategies(self._planned)

    def conventions(self) -> Conventions:
        from graphc.backends.cuda.operators import GridBuilder
        from graphc.passes.lower.program import Conventions

        return Conventions(alignment=self.machine.vector_bytes, joined=True, builder=GridBuilder)

    def program(self, graph: Graph, lower: Callable[[Graph], Program]) -> Program:
        for op in graph.ops:
            for value in op.outputs:
                if value.type is None:
                    raise UnsupportedError(
                        f"{op.where()}: {value.name!r} has no type that is known when it is "
                        "compiled; a program without a host needs it"
                    )
        return lower(graph)

    def load(self, program: Program) -> Executable:
        from graphc.backends.cuda import emit
        from graphc.backends.cuda.gpu import GpuModel
        from graphc.backends.cuda.simulator import simulate

        return simulate(emit(program)) if self.simulate else GpuModel(program, self.gpu)

    def adopter(self) -> Callable[[Any], Any] | None:
        if self.simulate:
            return None
        from graphc.backends.cuda.gpu import adopted

        return adopted
