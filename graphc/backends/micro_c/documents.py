"""The files beside the code: a build file, a page to read, and a report."""

from __future__ import annotations

import json

from graphc.analysis.memory import arena_use
from graphc.backends.cfamily.float_rules import FLAGS, has_floats
from graphc.backends.micro_c.boards import BOARDS, Board
from graphc.backends.micro_c.budget import Budget, weights_of
from graphc.backends.micro_c.cpus import Cpu
from graphc.backends.micro_c.model import Model, Tensor
from graphc.backends.micro_c.packages import HOW, IN_SOURCE_FOLDER
from graphc.backends.micro_c.training import run_layers
from graphc.ir.program import repetitions

CMAKE = """\
# Adds the library {name}: target_link_libraries(firmware {name})
cmake_minimum_required(VERSION 3.13)
project({name} {languages})
add_library({name} STATIC {sources})
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99)
{flags}{incbin}{test}"""

CMAKE_FLAGS = """\
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options({name} PRIVATE $<$<COMPILE_LANGUAGE:C>:{flags}>)
endif()
"""

CMAKE_INCBIN = """\
set_source_files_properties({name}_weights.S PROPERTIES
    COMPILE_OPTIONS "-I${{CMAKE_CURRENT_LIST_DIR}}"
    OBJECT_DEPENDS ${{CMAKE_CURRENT_LIST_DIR}}/{name}_weights.bin)
"""

CMAKE_TEST = """\
add_executable({name}_test EXCLUDE_FROM_ALL {name}_test.c)
target_link_libraries({name}_test {name} m)
"""

README = """\
# {name}

A neural network as C99: no allocation, no {state}stdio. Add {sources} to the build, include
`{name}.h`, and call

```c
{call}
```

| | bytes |
|---|---|
| constants (flash) | {weights} |
| code (flash, estimated for -O2) | {code} |
| arena (RAM{owner}) | {arena} |
{kept}| stack (bound) | {stack} |
{tensors}
{training}
`{name}.h` documents everything else; `report.json` says which layer became which function.
{package}{cpu}{bin}{test}{board}
## Compilers and flags

C99 or later, or C++17; 8-bit bytes, 32-bit `int` or wider. {flags}

## Looking inside

* `-D{macro}_PROFILE`: write `void {name}_profile(int layer, const char *name, int done)`; it is
  called before and after every layer. If it prints `profile LAYER COUNT NAME` after each, the
  counts that a timer or a cycle counter made in between, then `graphc profile MODEL.onnx --target c
  --log LOG.txt --mhz F` shows the times, F being the counts in a microsecond.
* `-D{macro}_TRACE`: write `void {name}_trace(int layer, const char *name, uint32_t crc)`; it gets
  a CRC-32 of every result. If it prints `trace LAYER CRC NAME`, then `graphc verify MODEL.onnx
  --target c --trace LOG.txt` names the first layer that differs from the host's.
* `-D{macro}_SUMMARY`: write `void {name}_summary(int layer, const char *name, float least, float
  most, float mean)`. Processors that fuse multiplications with additions round floats otherwise
  than the host does, and have other CRCs. If it prints `summary LAYER LEAST MOST MEAN NAME` too,
  layers are compared by these within `--rtol`.
* `-D{macro}_STATIC_ARENA`: `{name}_run_static` has an arena of its own.
"""

INTEGERS = "Any flags will do: this model computes with integers alone."
FLOATS = f"""\
With other flags results are the same but for the rounding of floats:

* `-O0` to `-O3`, `-Os`, `-flto`, `-march`, `-funsigned-char`, `-fshort-enums`, `-frounding-math`,
  `-fsanitize`: supported.
* `-ffp-contract=fast`, `-mfpmath=387`: supported. Floats are more precise than they are written;
  what is compared, or rounded to integers, may go the other way where it is a tie.
* `-funsafe-math-optimizations`, `-fassociative-math`, `-freciprocal-math`, `-fno-signed-zeros`,
  `-fsingle-precision-constant`: taken back by pragmas. Clang on Arm and RISC-V still lets zeros
  lose their sign and, before version 18, quotients be off by one unit in the last place.
* `-ffinite-math-only`, and with it `-ffast-math` and `-Ofast`: refused by `#error`, as NaN and
  infinity could not be told from numbers. Add `{FLAGS}` after them.
* Linking with `-ffast-math` has some processors take subnormal numbers (below 1.2e-38) for 0, in
  the whole program, which no file can prevent."""

README_CPU = """
Made for {cpu} (`{flags}`); it runs on other processors too, though not as fast.
"""

KEPT = "| state (RAM) | {} |\n"
README_TRAINING = """
## Training

`{name}_state` holds the parameters that are trained, with what the optimiser keeps for them. It
lies in RAM, and is filled once. Then `{name}_run` and `{name}_train_step` may be called in any
order, with the same arena:

```c
static {name}_state state;
{name}_train_init(&state);  /* the model's weights; or copy the bytes of a state kept before */
float loss;
{type} target[{elements}];  /* {shape} */
{name}_status status = {name}_train_step(&in, target, 0.01f, &loss, &state, arena);
```

| parameter | field of the state | bytes |
|---|---|---|
{rows}
A step runs the model forwards and backwards, as far as the first layer that is trained, and moves
the parameters by the rate (0.01 here) in place. `loss` is that before the move.
"""

README_TEST = """
To check the outputs on sample inputs:

    cc -O2 {sources} -lm -o {name}_test && ./{name}_test
"""

README_BOARD = """
`make` links the test as an image for {board}, and `make run` runs it in QEMU. On Debian they need
{packages}.
"""

README_BIN = """
`{name}_weights.bin` has the constants, little-endian. Place it at a multiple of 16 bytes, and
define `{macro}_WEIGHTS_ADDRESS` as a pointer to it, `((const uint8_t *)0x90000000)`, or link it
under the symbol `{name}_weights`.
"""


def cmake(model: Model, tested: bool) -> str:
    """CMakeLists.txt."""
    assembled = model.has_base and model.storage == "incbin"
    return CMAKE.format(
        name=model.name, sources=" ".join(model.sources),
        languages="C ASM" if assembled else "C", flags=_cmake_flags(model),
        incbin=CMAKE_INCBIN.format(name=model.name) if assembled else "",
        test=CMAKE_TEST.format(name=model.name) if tested else "",
    )  # fmt: skip


def _cmake_flags(model: Model) -> str:
    """What takes fast floats back for the code, if it has floats."""
    flags = ";".join(FLAGS.split())
    return CMAKE_FLAGS.format(name=model.name, flags=flags) if has_floats(model.code()) else ""


def readme(
    model: Model, tested: bool, cpu: Cpu, package: str | None = None, board: str | None = None
) -> str:
    """README.md; `package` is the ecosystem that the bundle is laid out for, `board` the emulated
    one that its test is made for."""
    budget, named = Budget.of(model), {"name": model.name, "macro": model.macro}
    sides = (("input", model.inputs), ("output", model.outputs))
    tensors = "".join(
        f"| {side} `{t.field}`, {t.shape_text} | {t.nbytes} |\n" for side, ts in sides for t in ts
    )
    apart = package in IN_SOURCE_FOLDER
    files = [("src/" if apart else "") + file for file in model.sources]
    test = f"{'-Isrc extras/' if apart else '-I. '}{model.name}_test.c"
    placed = model.has_base and model.storage == "bin"
    return README.format(
        **named, call=_example(model), weights=model.weight_bytes, tensors=tensors,
        arena=model.program.arena_bytes, code=budget.code, stack=budget.stack,
        training=_training(model), kept=KEPT.format(budget.state) if model.state else "",
        state="" if model.state else "state, no ",
        owner=", with inputs and outputs" if model.resident else "",
        sources=" and ".join(f"`{file}`" for file in files),
        board="" if board is None else _board(BOARDS[board]),
        package="" if package is None else "\n" + HOW[package].format(**named) + "\n",
        bin=README_BIN.format(**named) if placed else "",
        test=README_TEST.format(**named, sources=f"{test} {' '.join(files)}") if tested else "",
        cpu=README_CPU.format(cpu=cpu.name, flags=" ".join(cpu.flags)) if cpu.flags else "",
        flags=FLOATS if has_floats(model.code()) else INTEGERS,
    )  # fmt: skip


def _training(model: Model) -> str:
    """How a bundle trains."""
    target = model.target
    if target is None:
        return ""
    rows = "".join(f"| `{t.name}` | `{t.field}` | {t.nbytes} |\n" for t in model.state)
    return README_TRAINING.format(
        name=model.name, rows=rows, type=target.c_type, elements=max(target.elements, 1),
        shape=target.shape_text,
    )  # fmt: skip


def _board(board: Board) -> str:
    return README_BOARD.format(board=board.name, packages=board.tools.packages)


def _example(model: Model) -> str:
    """A call of the model."""
    aligned = f"__attribute__((aligned({model.macro}_ARENA_ALIGN)))"
    arena = f"static uint8_t arena[{model.macro}_ARENA_SIZE + 1] {aligned};"
    sized, sizes, kept = "", [], "&state, " if model.state else ""
    if model.sizes:
        fields = ", ".join(
            "0" if size in model.sizes.counts else field
            for size, field in model.sizes.fields.items()
        )
        sized, sizes = "&sizes, ", [f"{model.name}_sizes sizes = {{{fields}}};"]
    if model.resident:
        fills = [f"{t.c_type} *{t.field} = {model.name}_input_ptr_{t.field}(arena);  /* fill it */"
                 for t in model.inputs]  # fmt: skip
        reads = [f"const {t.c_type} *{t.field} = {model.name}_output_ptr_{t.field}(arena);"
                 for t in model.outputs]  # fmt: skip
        run = f"{model.name}_status status = {model.name}_run({sized}0, 0, arena);"
        return "\n".join([arena, *sizes, *fills, run, *reads])
    own = model.state and model.training is None
    started = [f"static {model.name}_state state;",
               f"{model.name}_reset(&state);  /* once, and where a stream begins */"]  # fmt: skip
    return "\n".join([
        arena,
        *(started if own else []),
        *sizes,
        f"{model.name}_inputs in = {{{', '.join(t.field for t in model.inputs) or 0}}};",
        f"{model.name}_outputs out = {{{', '.join(t.field for t in model.outputs) or 0}}};",
        f"{model.name}_status status = {model.name}_run({sized}&in, &out, {kept}arena);",
    ])  # fmt: skip


def report(model: Model, cpu: str) -> str:
    """report.json: sizes in bytes; per layer its function, ONNX nodes and operations, and with
    control flow how often it runs at most: null if that depends on data (`macs` count it once)."""
    program, budget = model.program, Budget.of(model)
    live, runs = arena_use(program).live, repetitions(program.steps)
    content = {
        "name": model.name,
        "cpu": cpu,
        "flash_bytes": budget.flash,
        "weights_bytes": model.weight_bytes,
        "code_bytes_estimated": budget.code,
        "ram_bytes": budget.ram,
        "arena_bytes": program.arena_bytes,
        "arena_lower_bound": program.arena_lower_bound,
        "stack_bytes_bound": budget.stack,
        "scratch_bytes": max((f.arrays for f in budget.functions.values()), default=0),
        "io_bytes": budget.io,
        **_trained(model),
        "macs": sum(s.macs * (1 if n is None else n) for s, n in zip(program.calls, runs)),
        **_sizes(model),
        "inputs": [_described(model, t) for t in model.inputs],
        "outputs": [_described(model, t) for t in model.outputs],
        "functions": _functions(model, budget),
        "layers": [
            {
                "layer": number,
                "function": model.functions[step.kernel],
                "nodes": list(step.loc),
                "macs": step.macs,
                "operations": step.flops,
                "weights": weights_of(step),
                "arena_live": live[number],
                **({"runs_at_most": runs[number]} if model.has_flow else {}),
            }
            for number, step in enumerate(program.calls)
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def _trained(model: Model) -> dict[str, object]:
    """The state, and the first layer of a training step."""
    if not model.state:
        return {}
    total = sum(t.nbytes for t in model.state)
    parts = [_described(model, t) for t in model.state]
    first = None if model.training is None else run_layers(model)
    return {"state_bytes": total, "state": parts, "first_layer_of_training": first}


def _sizes(model: Model) -> dict[str, object]:
    """The bounds of the sizes of a run; all bytes are those of the largest."""
    if not model.sizes:
        return {}
    return {"sizes": {size.name: list(pair) for size, pair in model.sizes.bounds.items()}}


def _functions(model: Model, budget: Budget) -> list[dict]:
    """What each function takes, and the ONNX nodes it computes."""
    nodes: dict[str, dict[str, None]] = {}
    for step in model.program.calls:
        nodes.setdefault(step.kernel, {}).update(dict.fromkeys(step.loc))
    entries = [
        {
            "function": f.name,
            "stack_bytes_bound": f.stack,
            "code_bytes_estimated": f.code,
            "nodes": list(nodes.get(kernel, ())),
        }
        for kernel, f in budget.functions.items()
    ]
    run = {"function": f"{model.name}_run", "stack_bytes_bound": budget.run_stack}
    return [*entries, run]


def _described(model: Model, tensor: Tensor) -> dict[str, object]:
    report: dict[str, object] = {
        "name": tensor.name, "field": tensor.field, "type": tensor.shape_text,
        "bytes": tensor.nbytes,
    }  # fmt: skip
    if tensor.quantisation is not None:
        report["scale"], report["zero_point"] = tensor.quantisation
    if tensor.key in model.resident:
        report["arena_offset"] = model.resident[tensor.key].offset
    return report
