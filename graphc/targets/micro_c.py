"""C99 for microcontrollers, which this machine can compile and run too."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.errors import ModelError, UnsupportedError
from graphc.records import dataclass
from graphc.targets.base import PREPARING, Job, Target, nonnegative, option, register_target
from graphc.targets.training import Trains
from graphc.targets.tuned import Tuned

if TYPE_CHECKING:
    from graphc.backends.micro_c import BundleOptions
    from graphc.backends.micro_c.timing.measure import Timing
    from graphc.backends.micro_c.tokenizer_file import Tokenizer
    from graphc.backends.tuning import Measure
    from graphc.ir.graph import Graph
    from graphc.ir.machine import Machine
    from graphc.ir.program import Program
    from graphc.passes.lower.program import Conventions, Strategy
    from graphc.passes.lower.rows.segments import RowPlan
    from graphc.report.profile import Logged
    from graphc.runtime.plans import Executable

CPUS = (
    "generic", "cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "cortex-m52",
    "cortex-m85", "rv32",
)  # fmt: skip
GOALS = ("speed", "fastest", "size")
PACKAGES = ("zephyr", "arduino", "platformio", "esp-idf", "cmsis")
CHIPS = ("stm32l4r5", "nrf52840", "nrf5340", "stm32u575", "stm32h7a3")
BOARDS = ("mps2-an386", "mps2-an500", "mps2-an505", "mps3-an547", "riscv32-virt")
UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20}
TRACE_RTOL = 1e-3  # of the range of a layer's result, between processors that round otherwise


def size(text: str) -> int:
    """Bytes from `64K`, `1M`, `256KB`, `4096`."""
    parsed = re.fullmatch(r"(\d+)([KM]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not parsed:
        raise ModelError(f"expected a size such as 64K or 1M, found {text!r}")
    return int(parsed[1]) * UNITS[parsed[2].upper()]


def frequency(text: str) -> float:
    """A number above zero."""
    number = nonnegative(text)
    if not number:
        raise ModelError(f"expected a number above 0, found {text!r}")
    return number


@register_target
@dataclass(frozen=True)
class MicroC(Tuned, Trains):
    """C99 for a microcontroller, run on the host."""

    cpu: str = option(CPUS[0], f"the processor it is for: {', '.join(CPUS)}", choices=CPUS)
    opt: str = option(
        GOALS[0], "optimise code for this; `fastest` takes more flash and stack, for "
        "convolutions in fewer products", choices=GOALS,
    )  # fmt: skip
    io: str = option(
        "caller", "whether inputs and outputs are the caller's, or live in the arena and take no "
        "memory of their own", choices=("caller", "arena"),
    )  # fmt: skip
    libm: bool | None = option(
        None, "call libm for exp, log, tanh and erf; with --no-libm for nothing (default: "
        "polynomials for those, libm for other functions)", type=bool, what="true or false",
    )  # fmt: skip
    weights: str = option(
        "f32", "store float weights as they are, or as float16 that is converted when it is read, "
        "by instructions with gcc's -mfp16-format=ieee", choices=("f32", "f16"),
    )  # fmt: skip
    sanitize: bool = option(
        False, "end the process on undefined behaviour of the C code", type=bool,
        what="true or false",
    )  # fmt: skip
    with_test: bool = option(
        False, "add a test on random inputs, with the outputs of ONNX Runtime", type=bool,
        what="true or false", commands=("compile",),
    )  # fmt: skip
    tolerance: float | None = option(
        None, "the largest error the test accepts, in units of an output (default: 1 for integers "
        "of 8 bits; of floats 1e-3 of the range, 1e-2 with --weights f16)", type=float,
        what="a number", metavar="T", read=nonnegative, commands=("compile",),
    )  # fmt: skip
    weights_as: str = option(
        "c", "constants as C text, as a binary file that an assembler file includes, or as a "
        "binary file that the firmware places", choices=("c", "incbin", "bin"),
        commands=("compile",),
    )  # fmt: skip
    board: str | None = option(
        None, "this machine of QEMU: add start-up code and a Makefile, which make the test an "
        "image for it (implies --with-test, and the board's --cpu); to verify, run on it",
        choices=BOARDS, commands=("compile", "verify"),
    )  # fmt: skip
    package: str | None = option(
        None, "lay the files out for this ecosystem, and add its own", choices=PACKAGES,
        commands=("compile",),
    )  # fmt: skip
    ram: int | None = option(
        None, "the RAM there is for arena, stack, inputs and outputs: layers are executed by rows "
        "as far as it takes; a model that needs more is refused", type=int,
        what="a number of bytes", metavar="64K", read=size, commands=("compile", "inspect"),
    )  # fmt: skip
    push_rows: bool = option(
        False, "add NAME_push_rows, to which an image comes a few rows at a time and need not be "
        "held: the first layers are executed by rows", type=bool, what="true or false",
        commands=("compile", "inspect"),
    )  # fmt: skip
    trades: bool = option(
        False, "show the RAM and the estimated instructions of ways to execute layers by rows",
        type=bool, what="true or false", commands=("inspect",),
    )  # fmt: skip
    flash: int | None = option(
        None, "refuse a model that needs more flash: constants, and code, compiled if there "
        "is a cross compiler for --cpu, and estimated if not", type=int, what="a number of bytes",
        metavar="256K", read=size, commands=("compile",),
    )  # fmt: skip
    state: str | None = option(
        None, "keep these inputs in a structure NAME_state; each run replaces them by outputs, "
        "and NAME_reset starts again: for recurrent and streaming models",
        metavar="H_IN=H_OUT,...", commands=("compile",),
    )  # fmt: skip
    tokenizer: str | None = option(
        None, "a tokenizer.json (byte pairs, as Llama's), for a model with --state that takes a "
        "token and its position: add NAME_text.c, which encodes, samples and generates text, and "
        "a main that prints one; with --board, an image of it in place of the test",
        metavar="FILE.json", commands=("compile",),
    )  # fmt: skip
    trace: str | None = option(
        None, "compare the CRCs in a device's log with the host's", metavar="LOG",
        commands=("verify",),
    )  # fmt: skip

    log: str | None = option(
        None, "show the times in a device's log, of a build with -DNAME_PROFILE", metavar="LOG",
        commands=("profile", "report"),
    )  # fmt: skip
    mhz: float | None = option(
        None, "the clock of the processor: show the time of every layer, by its instructions; with "
        "--log, counts of the device's timer in a microsecond", type=float, what="a number above 0",
        metavar="F", read=frequency, commands=("profile", "inspect", "report"),
    )  # fmt: skip
    chip: str | None = option(
        None, "show times on this chip, with what reads of its flash take (implies its --cpu and "
        "--mhz)", choices=CHIPS, commands=("profile", "inspect", "report"),
    )  # fmt: skip

    name = "c"
    forms = {"c": ".c"}  # noqa: RUF012 (a table)
    folder = True
    alone = True
    keeps_integers = True
    control_flow = True
    open_sizes = True
    counts = True

    @cached_property
    def machine(self) -> Machine:
        from graphc.backends.micro_c.cpus import cpu_of

        return cpu_of(self.processor)

    @property
    def processor(self) -> str:
        """By name, or that of a board or a chip."""
        if self.cpu == CPUS[0] and self.board:
            from graphc.backends.micro_c.boards import BOARDS

            return BOARDS[self.board].cpu
        if self.cpu == CPUS[0] and self.chip:
            from graphc.backends.micro_c.timing.chips import CHIPS

            return CHIPS[self.chip].cpu
        return self.cpu

    @property
    def title(self) -> str:
        return f"{self.name} on {self.board}" if self.board else self.name

    def watched(self) -> Target:
        return replace(self, sanitize=True)

    def shown(self, form: str) -> Target:
        """A whole program in one file is in plain loops."""
        from graphc.targets.plain import Plain

        return Plain()

    def pipeline(self) -> str:
        return f"checks, integers, {PREPARING}, layout, fuse, fuse-attention"

    def strategies(self) -> Sequence[Strategy]:
        from graphc.backends.micro_c.strategies import strategies

        return strategies(self.processor, self.opt)

    def tuned_machine(self) -> str:
        return f"{self.processor}, --opt {self.opt}"

    def measured(self) -> Measure:
        from graphc.backends.micro_c.tuning import cycles

        return cycles(self.code(), self.finished)

    def conventions(self) -> Conventions:
        from graphc.backends.micro_c.kept_state import pairs
        from graphc.passes.lower.program import Conventions

        state = {} if self.state is None else pairs(self.state)
        return Conventions(
            resident=self.io == "arena", in_order=True, state=state, choose=self.choose()
        )

    def program(self, graph: Graph, lower: Callable[..., Program]) -> Program:
        return self.finished(self.draft(graph, lower))

    def draft(self, graph: Graph, lower: Callable[..., Program]) -> Program:
        """The program of a graph before what is done to whole bundles."""
        from graphc.backends.micro_c.kept_state import moved, paired
        from graphc.backends.micro_c.quantisation import quantisation
        from graphc.passes.lower.placeable import check_typed

        check_typed(graph)
        kept = {} if self.state is None else paired(graph, self.state)
        parameters = moved(quantisation(graph), kept)
        return self._by_rows(graph, replace(lower(graph), quantisation=parameters), lower)

    def _by_rows(
        self, graph: Graph, plain: Program, lower: Callable[..., Program]
    ) -> Program:  # fmt: skip
        """The program, or the fastest that fits the RAM with layers by rows."""
        from graphc.backends.micro_c.cpus import cpu_of
        from graphc.backends.micro_c.pushed_rows import check_pushed, is_pushed
        from graphc.backends.micro_c.row_trades import Worker, fastest, trades
        from graphc.passes.lower.program import composed
        from graphc.passes.lower.rows.candidates import candidates

        limit, pushed = self.ram, self.push_rows
        if pushed and self.train is not None:
            raise UnsupportedError("--push-rows: goes without --train")
        if not pushed:
            if plain.sizes or self.train is not None or not (self.trades or limit is not None):
                return plain
            if not self.trades and limit is not None and self._ram_of(plain) <= limit:
                return plain

        def made(plan: RowPlan) -> Program:
            return replace(lower(graph, rows=plan), quantisation=plain.quantisation)

        cpu = cpu_of(self.processor)
        work = Worker(graph, self.strategies(), cpu)
        room = None if limit is None else limit - self._ram_of(plain) + plain.arena_bytes
        resident = self.io == "arena"
        plans = candidates(graph, composed(graph), resident, work, pushed, room)
        suits = is_pushed if pushed else (lambda _: True)
        known = trades(plain, plans, made, self._ram_of, cpu, suits)
        if not known:
            check_pushed(plain)
        chosen = known[0] if limit is None else fastest(known, limit)
        return replace(chosen.program, trades=tuple(known))

    def _ram_of(self, program: Program) -> int:
        """The bytes of RAM that a program before it is finished needs."""
        from graphc.backends.micro_c import model_of
        from graphc.backends.micro_c.budget import Budget

        return Budget.of(model_of(self.finished(program), self.code())).ram

    def finished(self, program: Program) -> Program:
        """A program with kernels made for the processor, and shared."""
        from graphc.backends.micro_c.cpus import cpu_of
        from graphc.backends.micro_c.float16_weights import half_weights
        from graphc.backends.micro_c.goals import finished, goal_of

        program = finished(program, cpu_of(self.processor), goal_of(self.opt))
        return half_weights(program) if self.weights == "f16" else program

    def load(self, program: Program) -> Executable:
        from graphc.backends.micro_c.host import HostModel

        self._check_sizes(program)
        if self.board:
            return lambda inputs: self._on_board(program, inputs)
        return HostModel(program, self.code(), sanitize=self.sanitize)

    def _on_board(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a run in QEMU; tells its use of memory."""
        from graphc.analysis.text import nbytes
        from graphc.backends.micro_c.boards import BOARDS
        from graphc.backends.micro_c.emulator import run_on_board

        assert self.board is not None
        done = run_on_board(program, inputs, BOARDS[self.board], self.code())
        constants = sum(c.nbytes for c in program.constants)
        print(f"{self.board}: arena {nbytes(program.arena_bytes)}, stack {nbytes(done.stack)}, "
              f"constants {nbytes(constants)}")  # fmt: skip
        return done.outputs

    def code(self, **more: object) -> BundleOptions:
        """What the options ask of the text."""
        from graphc.backends.micro_c import BundleOptions

        own = {"libm": self.libm, "cpu": self.processor, "opt": self.opt}
        return BundleOptions(**own, pushed=self.push_rows, **more)  # type: ignore[arg-type]

    def kernel_code(self, program: Program) -> Mapping[str, Mapping[str, str]]:
        from graphc.backends.micro_c import model_of

        return {"c": model_of(program, self.code()).texts}

    def write(self, job: Job, path: Path) -> None:
        """Writes a folder of sources; ModelError if it exceeds a budget."""
        from graphc.backends.micro_c import write_bundle
        from graphc.files import atomic_folder

        if self.board and self.package:
            raise ModelError("--board: goes without --package")
        if self.board and self.weights_as == "bin":
            raise ModelError("--board: goes with --weights-as c or incbin")
        self._check_state(job)
        program, training = (job.program(), None) if self.train is None else job.trained()
        self._check_sizes(program)
        tests = self.with_test or self.board and self.tokenizer is None
        samples = self._samples(job) if tests else None
        chosen = self.code(
            name=job.name, weights_as=self.weights_as, samples=samples, tolerance=self.tolerance,
            package=self.package, board=self.board, training=training,
            provenance=job.provenance, tokenizer=self._tokenizer(),
        )  # fmt: skip
        self._check_budgets(program, chosen)
        with atomic_folder(path) as temporary:
            write_bundle(program, temporary, chosen)

    def _tokenizer(self) -> Tokenizer | None:
        from graphc.backends.micro_c.tokenizer_file import read_tokenizer

        return None if self.tokenizer is None else read_tokenizer(self.tokenizer)

    def _check_state(self, job: Job) -> None:
        """ModelError if options do not go with state."""
        others = {"--train": self.train is not None, "--io arena": self.io == "arena",
                  "open dimensions": not job.closed}  # fmt: skip
        wrong = [name for name, is_given in others.items() if is_given]
        if self.state is not None and wrong:
            raise ModelError(f"--state: goes without {' and '.join(wrong)}")

    def _samples(self, job: Job) -> tuple[list[Any], list[Any]]:
        """Inputs for the test, and the outputs that are expected; of state, which starts as zeros,
        neither."""
        from graphc.backends.micro_c.kept_state import paired, zeroed

        feeds = job.feeds()
        if self.state is None:
            return list(feeds.values()), job.expected(feeds)
        kept = paired(job.graph, self.state, typed=False)
        feeds = zeroed(job.graph, feeds, kept)
        outputs = job.expected(feeds)
        inputs = [array for n, array in enumerate(feeds.values()) if n not in kept]
        return inputs, [array for n, array in enumerate(outputs) if n not in kept.values()]

    def _check_sizes(self, program: Program) -> None:
        """ModelError if a program of open shape is for a board or a package, which give none."""
        if program.sizes and (self.board or self.package):
            named = "--board" if self.board else "--package"
            raise ModelError(f"{named}: takes a model of fixed shapes; pin them, or leave it out")

    def _check_budgets(self, program: Program, chosen: BundleOptions) -> None:
        """ModelError if the program needs more; a table of the layers goes to stderr before."""
        from graphc.analysis.text import nbytes
        from graphc.backends.micro_c import model_of
        from graphc.backends.micro_c.budget import Budget
        from graphc.backends.micro_c.timing.compiled import code_bytes

        if self.ram is None and self.flash is None:
            return
        model = model_of(program, chosen)
        budget = Budget.of(model, None if self.flash is None else code_bytes(model))
        over = [
            (name, needed, limit, table)
            for name, needed, limit, table in (
                ("--ram", budget.ram, self.ram, budget.ram_table),
                ("--flash", budget.flash, self.flash, budget.flash_table),
            )
            if limit is not None and needed > limit
        ]  # fmt: skip
        for _, _, _, table in over:
            print(table(), file=sys.stderr)
        if over:
            raise ModelError("; ".join(f"{name} {nbytes(limit)}: {nbytes(needed)} are needed"
                                       for name, needed, limit, _ in over))  # fmt: skip

    def inspected(self, job: Job, program: Program, rows: int | None) -> str:
        from graphc.backends.micro_c import row_trades
        from graphc.backends.micro_c.timing.report import text

        timing = self._timing(job, program)
        parts = [row_trades.text(program.trades)] if program.trades else []
        return "\n\n".join([*parts, *([text(timing, rows)] if timing else [])])

    def inspected_data(self, job: Job, program: Program) -> dict[str, Any]:
        from graphc.backends.micro_c import row_trades
        from graphc.backends.micro_c.timing.report import data

        timing = self._timing(job, program)
        told = {"timing": data(timing)} if timing else {}
        return told | ({"trades": row_trades.data(program.trades)} if program.trades else {})

    def _timing(self, job: Job, program: Program) -> Timing | None:
        """The times that --mhz and --chip ask for."""
        from graphc.backends.micro_c.timing.chips import CHIPS
        from graphc.backends.micro_c.timing.measure import timing_of

        if self.mhz is None and self.chip is None:
            return None
        chip = CHIPS[self.chip] if self.chip else None
        if chip and chip.cpu != self.processor:
            raise ModelError(f"--chip {chip.name}: is a {chip.cpu}, and --cpu is {self.processor}")
        mhz = self.mhz or (chip.mhz if chip else 0.0)
        feeds = job.feeds()
        with job.busy("counting instructions"):
            given = [feeds[name] for name, _ in program.inputs]
            return timing_of(program, given, self.code(), mhz, chip)

    untimed = (
        "is timed by counting its instructions, with --chip CHIP or --cpu CPU --mhz F; or on a "
        "device: build with -DNAME_PROFILE, and give what it prints and the speed of its counter "
        "with --log LOG.txt --mhz F (the header says which lines)"
    )

    def logged(self, job: Job) -> Logged | None:
        from graphc.report.profile import Logged

        if self.log is not None:
            return self._read_log(job)
        if self.mhz is None and self.chip is None:
            return None
        program = job.program()
        timing = self._timing(job, program)
        assert timing is not None
        taken = [timing.seconds(layer.cycles.total) for layer in timing.layers]
        how = f"{timing.how}, within {100 * timing.error:.0f}%"
        return Logged(program, [[seconds] for seconds in taken[: len(program.calls)]], how)

    def _read_log(self, job: Job) -> Logged:
        from graphc.backends.micro_c.profile_log import read_profile
        from graphc.report.profile import Logged

        assert self.log is not None
        if self.mhz is None:
            raise ModelError("--log: give the speed of the counter too, as --mhz F")
        try:
            text = Path(self.log).read_text(errors="replace")
        except OSError as error:
            raise ModelError(f"--log {self.log}: {error.strerror}") from error
        program = job.program()
        try:
            counts = read_profile(text, program)
        except ModelError as error:
            raise ModelError(f"--log {self.log}: {error}") from error
        return Logged(program, [[n / self.mhz * 1e-6 for n in taken] for taken in counts])

    def compared(self, job: Job, feeds: Mapping[str, Any], rtol: float | None) -> int | None:
        """Names the first layer that a device's log has otherwise than the host."""
        from graphc.backends.micro_c.host import HostModel
        from graphc.backends.micro_c.traces import compared, read_traces

        if self.trace is None:
            return None
        try:
            device = read_traces(Path(self.trace).read_text(errors="replace"))
        except OSError as error:
            raise ModelError(f"--trace {self.trace}: {error.strerror}") from error
        if not device:
            raise ModelError(f"--trace {self.trace}: no line has the form `trace LAYER CRC NAME`")
        host = HostModel(job.program(), self.code(), traced=True).trace(list(feeds.values()))
        rtol = TRACE_RTOL if rtol is None else rtol
        try:
            comparison = compared(host, device, rtol)
        except ModelError as error:
            raise ModelError(f"--trace {self.trace}: {error}") from error
        if comparison.problem:
            print(f"FAILED: {comparison.problem}")
            return 1
        print(f"passed: {comparison.equal} of {len(host)} results are those of the host" + (
            f"; {comparison.rounded} differ in rounding, by {comparison.error:.2g} of their range "
            f"(rtol {rtol:g})" if comparison.rounded else ""))  # fmt: skip
        return 0
