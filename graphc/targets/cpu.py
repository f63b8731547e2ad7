"""CPUs, through LLVM: that of this machine, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from graphc.errors import ModelError, UnsupportedError
from graphc.files import NATIVE
from graphc.records import dataclass
from graphc.targets.base import PREPARING, Build, Job, Rounding, option, register_target
from graphc.targets.training import Trains
from graphc.targets.tuned import Tuned

if TYPE_CHECKING:
    from graphc.backends.llvm_cpu.target import CpuTarget
    from graphc.backends.tuning import Measure
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.compiled import CompiledModel
    from graphc.runtime.plans import CompileStatic, Executable


HOST = "host"  # the triple of this machine, for code that is not loaded into the process


@register_target
@dataclass(frozen=True)
class Cpu(Rounding, Tuned, Trains):
    """The CPU of this machine, or one of another platform."""

    name = "cpu"
    forms = {"llvm": ".ll", "asm": ".s"}  # noqa: RUF012 (a table)
    files = (*NATIVE, ".gcm", ".onnx")
    keeps_integers = True
    open_sizes = True
    counts = True
    control_flow = True
    records = True

    exact: bool = option(
        False, "convolve by direct products alone, not by Winograd's algorithm, whose rounding "
        "errors are larger", type=bool, what="true or false",
    )  # fmt: skip

    triple: str = option(
        "", "the platform that files are for, as aarch64-linux-gnu, riscv64-linux-gnu or "
        "wasm32-unknown-unknown (docs/cross.md has all); what is run goes through an emulator "
        "(default: this machine)", metavar="TRIPLE",
    )  # fmt: skip
    mcpu: str = option(
        "", "the processor, or its level of instructions, as cortex-a76, x86-64-v3, rv64gcv or "
        "simd128 (default: this machine's; with --triple, what is usual there); of several, as "
        "x86-64-v2,x86-64-v3,x86-64-v4, a library takes the best that it meets", metavar="CPU",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.triple or self.mcpu:
            _ = self.cpu, self.levels  # complain now
        if self.tune and not self.is_here:
            raise ModelError(f"tune: kernels are measured on this machine, not on {self.processor}")

    @cached_property
    def cpu(self) -> CpuTarget:
        """The processor that code is made for."""
        from graphc.backends.llvm_cpu.target import cross_target, host_target

        if self.is_here:
            return host_target()
        return cross_target(self._platform, self.mcpu.split(",")[0])

    @property
    def _platform(self) -> str:
        """The triple that code is for."""
        from graphc.backends.llvm_cpu.target import host_target

        return host_target().triple if self.triple in ("", HOST) else self.triple

    @cached_property
    def levels(self) -> list[str]:
        """The processors that code is made for, from least to most, if there are several."""
        from graphc.backends.llvm_cpu.dispatch_ir import detection_of
        from graphc.backends.llvm_cpu.triples import platform_of

        names = self.mcpu.split(",")
        if len(names) == 1:
            return []
        platform = platform_of(self._platform)
        detection_of(platform)  # complains now
        architecture = platform.architecture
        known = list(architecture.levels.values())
        levels = {name: known.index(architecture.level(name)[1]) for name in names if name}
        if len(set(levels.values())) < len(names):
            raise ModelError(
                f"mcpu {self.mcpu!r}: required processors of different levels, found two of one "
                f"level, or an empty name; levels: {', '.join(architecture.levels)}"
            )
        return sorted(names, key=levels.__getitem__)

    @property
    def is_here(self) -> bool:
        """Whether code is for the processor of this machine."""
        return self.triple in ("", HOST) and not self.mcpu

    @property
    def is_apart(self) -> bool:
        """Whether models run in processes of their own."""
        return bool(self.triple or self.mcpu)

    @property
    def processor(self) -> str:
        return ", ".join(filter(None, (self.triple, self.mcpu)))

    @property
    def title(self) -> str:
        own = " ".join(filter(None, (self.triple, self.mcpu)))
        return f"{super().title} of {own}" if own else super().title

    def tuned_machine(self) -> str:
        from graphc.backends.llvm_cpu.tuning import machine_name

        return machine_name() if self.is_here else self.processor

    def measured(self) -> Measure:
        from graphc.backends.llvm_cpu.tuning import seconds

        return seconds

    def variant(self) -> str:
        return ", ".join(["exact" if self.exact else "", super().variant()])

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.llvm_cpu.machine import host_machine, machine_of

        return machine_of(self.cpu) if self.is_apart else host_machine()

    def pipeline(self) -> str:
        narrow = "" if self.precision == "f32" else f" precision{{type={self.precision}}}, dce,"
        return (
            "checks, integers, rewrite{group=axes}, rewrite{group=windows},"
            f" {PREPARING},{narrow} samples, layout, fuse, fuse-attention, fuse-reductions"
        )

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.llvm_cpu.strategies import strategies

        return strategies(self.machine, self.exact)

    def conventions(self) -> Conventions:
        from graphc.backends.llvm_cpu.strategies import conventions

        return conventions(self.machine, self.choose())

    def compiler(self, build: Build) -> CompileStatic:
        from graphc.backends.llvm_cpu.artifact import cached_image
        from graphc.backends.llvm_cpu.codegen import compile_program
        from graphc.backends.llvm_cpu.memory import Scratch
        from graphc.backends.llvm_cpu.runtime import NativeModel

        if self.is_apart:
            return self._apart(build)
        scratch = Scratch()
        if build.recorder is not None:
            from graphc.backends.llvm_cpu.timed import TimedModel

            recorder = build.recorder
            return lambda graph: TimedModel(build.program(graph), build.threads, scratch, recorder)

        def compile_static(graph: Graph) -> Executable:
            key = build.key(graph)
            if key is None:
                image = compile_program(build.program(graph))
            else:
                image = cached_image(graph, key, lambda: build.program(graph))
            return NativeModel(image, build.threads, scratch)

        return compile_static

    def _apart(self, build: Build) -> CompileStatic:
        from graphc.backends.llvm_cpu.apart import ApartModel

        if self.levels:
            raise UnsupportedError(
                f"mcpu {self.mcpu!r}: one processor is needed to run a model; "
                "several make a library"
            )
        if build.recorder is not None:
            raise UnsupportedError(f"steps are timed on this machine, not with {self.processor}")
        return lambda graph: ApartModel(build.program(graph), self.cpu)

    def emit(self, program: Program, form: str) -> str:
        from graphc.backends.llvm_cpu.codegen import llvm_text, pipeline_of
        from graphc.backends.llvm_cpu.jit import assembly

        text = llvm_text(program, self.cpu)
        return text if form == "llvm" else assembly(text, self.cpu, pipeline_of(program))

    def kernel_code(self, program: Program) -> Mapping[str, Mapping[str, str]]:
        from graphc.targets.functions import by_braces, by_labels

        texts = {form: self.emit(program, form) for form in self.forms}
        return {
            "llvm": by_braces(texts["llvm"], program.kernels),
            "asm": by_labels(texts["asm"], program.kernels),
        }

    def any_shape(self, path: Path) -> bool:
        return True

    def write(self, job: Job, path: Path) -> None:
        if self.train is not None:
            self._write_step(job, path)
        elif path.suffix == ".onnx":
            raise UnsupportedError(f"-o {path}: an .onnx file holds a training step: give --train")
        else:
            self._write(job, path)

    def _write_step(self, job: Job, path: Path) -> None:
        """Writes a training step, and the state that it starts from, as arrays by the names of its
        inputs."""
        from graphc.files import save_npz
        from graphc.frontend.onnx_export import export_onnx

        step, state = job.step()
        if path.suffix == ".onnx":
            export_onnx(step.graph, path)
        else:
            self._write(step, path)
        save_npz(path.with_suffix(".npz"), state)

    def _write(self, job: Job, path: Path) -> None:
        from graphc.backends.llvm_cpu import aot

        if path.suffix == ".gcm":
            self._save(job, path)
            return
        if self.levels:
            programs = [
                (level, self._program(job.on(replace(self, mcpu=level)), path))
                for level in self.levels
            ]
            aot.build_levels(programs, path, self._platform, job.provenance)
            return
        if not self.is_apart:  # the program is wanted, not code in this process
            job = job.on(replace(self, triple=HOST))
        aot.build(self._program(job, path), path, self.cpu, job.provenance)

    def _program(self, job: Job, path: Path) -> Program:
        """The model as one program for another process."""
        from graphc.backends.llvm_cpu.apart import ApartModel
        from graphc.passes import maps

        compiled = job.compiled()
        made = self._made(job, compiled, path)
        if len(made) != 1 or not isinstance(made[0], ApartModel):
            self._refuse_parts(job, path)
        maps.tell(compiled.graph, maps.presented(compiled.graph))
        return made[0].program

    def _save(self, job: Job, path: Path) -> None:
        """Writes what graphc.load reads."""
        if self.is_apart:
            raise UnsupportedError(
                f"-o {path}: a .gcm file is for this machine; for {self.processor} write an object"
            )
        compiled = job.compiled()
        if job.closed:
            from graphc.backends.llvm_cpu.runtime import NativeModel

            made = self._made(job, compiled, path)
            if len(made) != 1 or not isinstance(made[0], NativeModel):
                self._refuse_parts(job, path)
        compiled.save(path)

    def _made(self, job: Job, compiled: CompiledModel, path: Path) -> list[Executable]:
        """What has been compiled of a model that is to be one program."""
        made = [info for info in compiled.executables() if info.run is not None]
        if not job.closed and not any(info.is_general for info in made):
            names = list(job.graph.symbols)
            fixed = " ".join(f"--dim {name}=1" for name in names)
            bounded = " ".join(f"--dim {name}=1..8" for name in names)
            if compiled.why_exact:
                otherwise = f"there is no program for all sizes ({compiled.why_exact})"
            else:
                otherwise = f"for all sizes within bounds: --specialise any {bounded}"
            raise UnsupportedError(
                f"-o {path}: dimension {' and '.join(names)} is open: pin it with {fixed}, or with "
                f"--shape; {otherwise}"
            )
        return [info.run for info in made if info.run is not None]

    def _refuse_parts(self, job: Job, path: Path) -> NoReturn:
        job.program()  # its refusal names the node that needs the host
        raise UnsupportedError(f"-o {path}: parts of this model run on the host, in Python")

    def write_program(self, program: Program, path: Path) -> None:
        from graphc.backends.llvm_cpu import aot

        if path.suffix not in aot.SUFFIXES:
            made = ", ".join(aot.SUFFIXES)
            raise ModelError(f"-o {path}: a planned program becomes one of {made} (or see --emit)")
        aot.build(program, path, self.cpu)
