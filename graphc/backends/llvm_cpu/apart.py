"""Programs that run in a process of their own: under an emulator if they are for another machine.

Code is compiled and linked when a program is called first, so that a model can be compiled for any
machine where none of this is installed. Linux's programs run under QEMU's user mode, modules of
WebAssembly in Node.js.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from graphc.backends.llvm_cpu.codegen import image_of, llvm_text, pipeline_of
from graphc.backends.llvm_cpu.counted import Cut
from graphc.backends.llvm_cpu.image import OpenShapes
from graphc.backends.llvm_cpu.linking import link_program, link_wasm
from graphc.backends.llvm_cpu.modules import Weights, object_of
from graphc.backends.llvm_cpu.runner_ir import EXPORTS, Layout, layout_of, runner_ir
from graphc.backends.llvm_cpu.target import CpuTarget, host_target
from graphc.backends.llvm_cpu.triples import Platform, platform_of
from graphc.errors import UnsupportedError
from graphc.files import write_bytes
from graphc.ir.checks import judged
from graphc.ir.program import Program

_NODE = """import { readFileSync, writeSync } from "node:fs";
const module = new WebAssembly.Module(readFileSync(process.argv[2]));
const { exports } = new WebAssembly.Instance(module, {});
const taken = readFileSync(0);
new Uint8Array(exports.memory.buffer).set(taken, exports.graphc_taken() >>> 0);
exports.graphc_run_apart();
const start = exports.graphc_given() >>> 0;
const given = new Uint8Array(exports.memory.buffer, start, Number(process.argv[3]));
for (let at = 0; at < given.length; ) at += writeSync(1, given, at);
"""
_QEMU = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7": "arm", "riscv64": "riscv64"}


class ApartModel(OpenShapes):
    """A program, for any machine, that can be called. `program` and `target` are what it is made
    of; `emulator` is the command that runs it, where that of the platform is not wanted."""

    def __init__(self, program: Program, target: CpuTarget, emulator: Sequence[str] = ()):
        self.program, self.target = program, target
        self.emulator = list(emulator)
        super().__init__(image_of(program, target))
        self.platform = platform_of(target.triple)
        self.nbytes = sum(c.nbytes for c in program.constants)
        self._cut = Cut(self.image)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        layout, image = layout_of(self.image), self.image
        sizes, shapes = self._at([array.shape for array in inputs])
        taken = bytearray(layout.taken)
        known = 8 * len(image.sizes)
        taken[:known] = bytes(sizes)[:known]
        for place, array in zip(layout.inputs, inputs):
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            taken[place : place + data.nbytes] = data.data
        given = self._given(bytes(taken), layout)
        outputs = []
        for place, (shape, dtype) in zip(layout.outputs, shapes):
            count = int(np.prod(shape, dtype=np.int64))
            outputs.append(np.frombuffer(given, dtype, count, place).reshape(shape).copy())
        results = judged(image.checks, outputs)
        told = np.frombuffer(given, "<i8", len(image.sizes) + len(image.counts)).tolist()
        return self._cut(results, told) if image.counts else results

    def _given(self, taken: bytes, layout: Layout) -> bytes:
        command = [*self._command, str(self._file)]
        if self._is_wasm:
            command.append(str(layout.given))
        done = subprocess.run(command, input=taken, capture_output=True)
        if done.returncode or len(done.stdout) != layout.given:
            said = done.stderr.decode(errors="replace").strip()[-2000:]
            raise UnsupportedError(
                f"{' '.join(command)} ended with {done.returncode} and {len(done.stdout)} bytes "
                f"of {layout.given}: {said or 'it said nothing'}"
            )
        return done.stdout

    # ---------------------------------------------------------------- what runs

    @property
    def _is_wasm(self) -> bool:
        return self.platform.format == "WebAssembly"

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory:
        return tempfile.TemporaryDirectory(prefix="graphc-apart-")

    @cached_property
    def _command(self) -> list[str]:
        """What runs the file; UnsupportedError says what to install."""
        if self.emulator:
            return self.emulator
        if self._is_wasm:
            return [*_node("relaxed-simd" in self.target.features), str(self._script)]
        if self.platform.system == "linux":
            if self.target.runs_here and self.platform == platform_of(host_target().triple):
                return []
            return _qemu(self.target, self.platform)
        raise UnsupportedError(f"nothing here runs code for {self.platform.name}; -o OUT writes it")

    @cached_property
    def _script(self) -> Path:
        path = Path(self._folder.name) / "run.mjs"
        path.write_text(_NODE)
        return path

    @cached_property
    def _file(self) -> Path:
        """The program, or the module."""
        folder = Path(self._folder.name)
        part, output = folder / "model.o", folder / "model"
        weights = Weights(self.image.constants)
        around = runner_ir(self.image, weights.offsets, self.platform)
        code = llvm_text(self.program, self.target)
        data = object_of(
            code, around, weights, EXPORTS, self.target, self.platform, pipeline_of(self.program)
        )
        write_bytes(part, memoryview(data))
        if self._is_wasm:
            link_wasm([part], output, EXPORTS[1:])
        else:
            link_program([part], output, self.platform)
        return output


def _node(relaxed: bool) -> list[str]:
    """Node.js, with relaxed vectors if they are asked for: they are an option before version 21."""
    node = _installed("node", "Node.js")
    said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    is_option = relaxed and said.startswith("v") and int(said[1:].split(".")[0]) < 21
    return [node, "--experimental-wasm-relaxed-simd"] if is_option else [node]


def _qemu(target: CpuTarget, platform: Platform) -> list[str]:
    """QEMU's user mode, as a processor with what the code needs."""
    name = f"qemu-{_QEMU[platform.architecture.name]}"
    command = [_installed(name, "QEMU's user mode (apt-get install qemu-user)")]
    if "v" in target.features:
        command += ["-cpu", f"rv64,v=true,vlen={max(target.vector_bits, 128)}"]
    elif platform.architecture.name != "riscv64":
        command += ["-cpu", "max"]
    return command


def _installed(name: str, what: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise UnsupportedError(f"a run on another processor needs {name}, of {what}")
    return path
