"""NVIDIA's GPUs, through CUDA C; a simulator runs the kernels where there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.errors import ModelError, UnsupportedError
from graphc.records import dataclass
from graphc.targets.base import Job, Rounding, Target, option, register_target
from graphc.targets.tuned import Tuned

if TYPE_CHECKING:
    from graphc.backends.cuda.prediction.report import Inspected
    from graphc.backends.cuda.runtime import Driver
    from graphc.backends.cuda.tuning import Timing
    from graphc.backends.tuning import Measure
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.plans import Executable


def archs(text: str) -> str:
    """`sm_80,sm_90`, without those that are named twice."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in names if not re.fullmatch(r"sm_\d+[af]?", part)]
    if wrong or not names:
        raise ModelError(f"expected sm_80,sm_90 or the like, found {text!r}")
    return ",".join(dict.fromkeys(names))


PTX = "ptx"


def simulators(text: str) -> bool | str:
    """`true` or `ptx`: what runs kernels in the place of a GPU."""
    if text not in ("true", PTX):
        raise ModelError(f"expected {PTX}, or nothing, found {text!r}")
    return text == "true" or text


@register_target
@dataclass(frozen=True)
class Cuda(Rounding, Tuned):
    """A GPU of NVIDIA."""

    device: int = option(0, "which GPU", type=int, what="the number of a GPU", metavar="N")
    simulate: bool | str = option(
        False, "run a GPU's kernels on this machine's CPU (slow): their text, or with =ptx what "
        "nvcc or NVRTC makes of it for the first --arch", type=(bool, str),
        what="true, false or 'ptx'", metavar="ptx", read=simulators, given=True,
    )  # fmt: skip
    arch: str = option(
        "", "plan kernels for these GPUs, the first above all (default: the GPU at hand, or sm_80, "
        "and code for sm_90 too in a folder; sm_90a: Hopper alone, with its own instructions)",
        what="like 'sm_80' or 'sm_80,sm_90'", metavar="SM,SM", read=archs,
    )  # fmt: skip

    accesses: int | None = option(
        None, "what the memory accesses of a GPU's kernels cost, from so many blocks of each "
        "(default: 4)", type=int, what="a number of blocks", metavar="BLOCKS", given=4,
        commands=("inspect",),
    )  # fmt: skip

    machine_code: bool = option(
        False, "what nvcc or NVRTC makes of a GPU's kernels for the first --arch: registers, "
        "spills, shared memory, instructions, and the time that is predicted of them", type=bool,
        what="true or false", commands=("inspect",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.simulate, str):
            simulators(self.simulate)
        if self.machine_code:
            from graphc.backends.cuda.prediction.sass import required_nvdisasm

            required_nvdisasm()  # before anything is compiled

    name = "cuda"
    forms = {"cuda": ".cu"}  # noqa: RUF012 (a table)
    folder = True
    keeps_integers = True
    open_sizes = True
    counts = True
    control_flow = True

    @classmethod
    def devices(cls) -> dict[str, dict[str, Any]]:
        return {"CUDA": {}, "SIMULATOR": {"simulate": True}, "PTX": {"simulate": PTX}}

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.cuda.machines import machine

        return machine(self._planned)

    @cached_property
    def _planned(self) -> str:
        """The architectures that kernels are planned for."""
        from graphc.backends.cuda.machines import DEFAULT_ARCH

        if self.arch or not self.tune:
            return self.arch or DEFAULT_ARCH
        return self._timing.arch

    def tuned_machine(self) -> str:
        return self._timing.machine

    def measured(self) -> Measure:
        return self._timing.measure

    @cached_property
    def _timing(self) -> Timing:
        """What tells times of kernels with several tiles."""
        from graphc.backends.cuda.tuning import timing_for

        return timing_for(self.device, self.arch)

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

    def detached(self) -> Target:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return self if self.simulate else Text(**given)

    def inspected(self, job: Job, program: Program, rows: int | None) -> str:
        from graphc.backends.cuda.prediction.report import text

        told = [self._accesses(job, program, rows)]
        if self.machine_code:
            told.append(text(self._machine_code(job, program), self._first_arch, rows))
        return "\n\n".join(part for part in told if part)

    def inspected_data(self, job: Job, program: Program) -> dict[str, Any]:
        from graphc.backends.cuda.prediction.report import data

        if not self.machine_code:
            return {}
        return {"machine_code": data(self._machine_code(job, program))}

    @property
    def _first_arch(self) -> str:
        return self._planned.split(",")[0]

    def _machine_code(self, job: Job, program: Program) -> list[Inspected]:
        from graphc.backends.cuda import emit
        from graphc.backends.cuda.prediction.report import inspected

        with job.busy("predicting times"):
            return inspected(emit(program), self._first_arch)

    def _accesses(self, job: Job, program: Program, rows: int | None) -> str:
        """What accesses cost, counted in the simulator on random inputs."""
        from graphc.backends.cuda import emit
        from graphc.backends.cuda.simulator.accesses import accesses
        from graphc.backends.cuda.simulator.profile import profile

        if not self.accesses:
            return ""
        feeds = job.feeds()
        with job.busy("counting accesses"):
            given = [feeds[name] for name, _ in program.inputs]
            return accesses(profile(emit(program), given, self.accesses), rows)

    def pipeline(self) -> str:
        return (
            "checks, integers, rewrite{group=axes}, canonicalise, rewrite{group=lowering},"
            " decompose, fold, canonicalise, cse, dead-channels, rewrite{group=products},"
            " rewrite{group=parts}, merge-products,"
            f" precision{{type={self.precision}}}, dce, layout,"
            " fuse, fuse-attention, fuse-gates, fuse-siblings"
        )

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.cuda.strategies import strategies

        return strategies(self._planned, self.choose())

    def conventions(self) -> Conventions:
        from graphc.backends.cuda.operators import GridBuilder
        from graphc.passes.lower.program import Conventions

        return Conventions(alignment=self.machine.vector_bytes, joined=True, builder=GridBuilder)

    def program(self, graph: Graph, lower: Callable[..., Program]) -> Program:
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

        if self.simulate == PTX:
            from graphc.backends.cuda.ptx import run_ptx

            return run_ptx(emit(program), self._first_arch)
        if self.simulate:
            from graphc.backends.cuda.simulator import simulate

            return simulate(emit(program))
        return GpuModel(program, self.gpu)

    def adopter(self) -> Callable[[Any], Any] | None:
        if self.simulate:
            return None
        from graphc.backends.cuda.gpu import adopted

        return adopted

    def emit(self, program: Program, form: str) -> str:
        from graphc.backends.cuda import emit

        return emit(program).text

    def kernel_code(self, program: Program) -> Mapping[str, Mapping[str, str]]:
        from graphc.targets.functions import by_braces

        return {"cuda": by_braces(self.emit(program, "cuda"), program.kernels)}

    def write(self, job: Job, path: Path) -> None:
        """Writes a folder; where there is no compiler, without machine code, which is noted."""
        from graphc.backends.cuda import emit
        from graphc.backends.cuda.bundle import CODE, bundle_files
        from graphc.backends.cuda.machine_code import architectures, missing
        from graphc.backends.cuda.machines import DEFAULT_ARCHS
        from graphc.files import atomic_folder

        known = architectures()
        wanted = self.arch.split(",") if self.arch else [a for a in DEFAULT_ARCHS if a in known]
        if not known:
            job.note(f"no machine code is made: {missing()}")
            wanted = []
        files = bundle_files(emit(job.program()), wanted, job.name, job.provenance)
        with atomic_folder(path, stale=f"{CODE}*") as temporary:
            for name, contents in files.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(contents)


@dataclass(frozen=True)
class Text(Cuda):
    """The same target where no GPU is needed: kernels are emitted, and never run."""

    def attached(self) -> Target:
        return self

    def load(self, program: Program) -> Executable:
        self.emit(program, "cuda")  # so that what cannot be printed is refused now

        def run(values: Sequence[Any]) -> list[Any]:
            raise UnsupportedError(
                "the outputs of a GPU are needed to go on, and this command runs none: add "
                "--simulate, or fix the shapes and values that depend on them (--dim, --set)"
            )

        return run
