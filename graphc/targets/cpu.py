"""The CPU of this machine, through LLVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from graphc.errors import ModelError, UnsupportedError
from graphc.records import dataclass
from graphc.targets.base import PREPARING, Build, Job, Rounding, option, register_target
from graphc.targets.training import Trains
from graphc.targets.tuned import Tuned

if TYPE_CHECKING:
    from graphc.backends.tuning import Measure
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.runtime.plans import CompileStatic, Executable


@register_target
@dataclass(frozen=True)
class Cpu(Rounding, Tuned, Trains):
    """The CPU of this machine."""

    name = "cpu"
    forms = {"llvm": ".ll", "asm": ".s"}  # noqa: RUF012 (a table)
    files = (".so", ".o", ".gcm", ".onnx")
    keeps_integers = True
    open_sizes = True
    counts = True
    control_flow = True
    records = True

    exact: bool = option(
        False, "convolve by direct products alone, not by Winograd's algorithm, whose rounding "
        "errors are larger", type=bool, what="true or false",
    )  # fmt: skip

    def tuned_machine(self) -> str:
        from graphc.backends.llvm_cpu.tuning import machine_name

        return machine_name()

    def measured(self) -> Measure:
        from graphc.backends.llvm_cpu.tuning import seconds

        return seconds

    def variant(self) -> str:
        return ", ".join(["exact" if self.exact else "", super().variant()])

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.llvm_cpu.machine import host_machine

        return host_machine()

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

    def emit(self, program: Program, form: str) -> str:
        from graphc.backends.llvm_cpu.codegen import PIPELINE, llvm_text
        from graphc.backends.llvm_cpu.jit import assembly

        text = llvm_text(program)
        return text if form == "llvm" else assembly(text, pipeline=PIPELINE)

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
        from graphc.backends.llvm_cpu.runtime import NativeModel
        from graphc.passes import maps

        compiled = job.compiled()
        if path.suffix == ".gcm" and not job.closed:
            compiled.save(path)
            return
        made = [info for info in compiled.executables() if info.run is not None]
        if not job.closed and not any(info.is_general for info in made):
            why = compiled.why_exact or "it is made by --specialise any"
            raise UnsupportedError(
                f"-o {path}: dimensions are open, and there is no program for all sizes ({why}); "
                "fix them with --dim or --shape"
            )
        parts = [info.run for info in made]
        if len(parts) != 1 or not isinstance(parts[0], NativeModel):
            job.program()  # its refusal names the node that needs the host
            raise UnsupportedError(f"-o {path}: parts of this model run on the host, in Python")
        if path.suffix == ".gcm":
            compiled.save(path)
        else:
            maps.tell(compiled.graph, maps.presented(compiled.graph))
            aot.build(parts[0].image, path, job.provenance)

    def write_program(self, program: Program, path: Path) -> None:
        from graphc.backends.llvm_cpu import aot
        from graphc.backends.llvm_cpu.codegen import compile_program

        if path.suffix not in (".so", ".o"):
            raise ModelError(f"-o {path}: a planned program becomes a .so or .o (or see --emit)")
        aot.build(compile_program(program), path)
