"""The CPU of this machine, through LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from graphc.targets.base import PREPARING, Build, Target, register_target

if TYPE_CHECKING:
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.plans import CompileStatic, Executable


@register_target
@dataclass(frozen=True)
class Cpu(Target):
    """The CPU of this machine."""

    name = "cpu"
    keeps_integers = True

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.llvm_cpu.target import host_target

        return host_target().machine

    def pipeline(self) -> str:
        return (
            "checks, integers, rewrite{group=axes}, rewrite{group=windows},"
            f" {PREPARING}, layout, fuse, fuse-reductions"
        )

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.llvm_cpu.strategies import strategies

        return strategies()

    def conventions(self) -> Conventions:
        from graphc.backends.llvm_cpu.strategies import conventions

        return conventions()

    def compiler(self, build: Build) -> CompileStatic:
        from graphc.backends.llvm_cpu.artifact import cached_image
        from graphc.backends.llvm_cpu.memory import Scratch
        from graphc.backends.llvm_cpu.runtime import NativeModel, compile_program

        scratch = Scratch()

        def compile_static(graph: Graph) -> Executable:
            key = build.key(graph)
            if key is None:
                image = compile_program(build.program(graph))
            else:
                image = cached_image(graph, key, lambda: build.program(graph))
            return NativeModel(image, build.threads, scratch)

        return compile_static
