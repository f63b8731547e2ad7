"""The C++ launcher: tables of a launch plan for graphc_model.h, and how to build them.

Kernels are linked, not loaded: NAME_kernels.cu is kernels.cu with NAME before every function, so
that one program may hold several models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphc.backends.cfamily.names import text_literal
from graphc.backends.cuda.launcher.cpp_steps import StepPrinter
from graphc.backends.cuda.launcher.python import all_sizes, inputs, outputs, own_outputs, sizes
from graphc.backends.cuda.machines import DEFAULT_ARCHS
from graphc.backends.cuda.runtime.plan import value
from graphc.backends.digests import folded
from graphc.ir import dtypes
from graphc.ir.checks import VALUE, WHOLE

RUNTIME = Path(__file__).with_name("graphc_model.h")
SPACES = {"input": "input", "output": "output", "const": "weights", "arena": "arena"}

HEADER = """\
// {name}, to be run on a GPU: graphc::Model model({name}_plan, "weights.bin");
//
{interface}
#pragma once

#include "graphc_model.h"

extern const graphc::Plan {name}_plan;
"""

KERNELS = """\
// The kernels, under names that no other model has.
#include <math.h>
#include <stdint.h>

{defines}

#include "kernels.cu"
"""

SOURCE = """\
// The launch plan of {name}: what is launched, in which order, on what.
#include "{name}.h"

#include <algorithm>

// Kernels, as nvcc names them to the host: only their addresses are used here.
{declarations}

namespace {{

using graphc::Argument;
using graphc::Check;
using graphc::Launch;
using graphc::Map;
using graphc::Size;
using graphc::Space;
using graphc::Tensor;

{tables}
}}  // namespace

const graphc::Plan {name}_plan = {{
    {title}, {inputs}, {input_count}, {outputs}, {output_count},
    {launches}, {launch_count}, {streams}, {arena}, {weights}, {weights_sum}ull, {checks},
    {check_count}, {sizes}, {size_count}, {numbers}, {number_count},
    {count_count}, {steps}, {captured},
}};
"""

EXAMPLE = """\
// Runs {name} on zeros three times, and prints the first elements of each output as bytes.
#include <cstdio>

#include "{name}.h"

int main(int argc, char **argv)
{{
    const graphc::Plan &plan = {name}_plan;
    std::vector<std::vector<unsigned char>> inputs, outputs;
    std::vector<const void *> values;
    std::vector<void *> results;
    for (int n = 0; n < plan.input_count; ++n) {{
        inputs.emplace_back(plan.inputs[n].bytes + 1);
    }}
    for (int n = 0; n < plan.output_count; ++n) {{
        outputs.emplace_back(plan.outputs[n].bytes + 1);
    }}
    for (auto &each : inputs) {{
        values.push_back(each.data());
    }}
    for (auto &each : outputs) {{
        results.push_back(each.data());
    }}
    try {{
        graphc::Model model(plan, argc > 1 ? argv[1] : "weights.bin");
        for (int round = 0; round < 3; ++round) {{
            model.run(values.data(), results.data());
        }}
    }} catch (const graphc::Error &error) {{
        std::fprintf(stderr, "%s\\n", error.what());
        return 1;
    }}
    for (int n = 0; n < plan.output_count; ++n) {{
        std::printf("%s: %s", plan.outputs[n].name, plan.outputs[n].type);
        for (size_t k = 0; k < 8 && k < plan.outputs[n].bytes; ++k) {{
            std::printf(" %02x", outputs[n][k]);
        }}
        std::printf("\\n");
    }}
    return 0;
}}
"""

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES {archs})
endif()
project({name} LANGUAGES CXX CUDA)

find_package(CUDAToolkit REQUIRED)
add_library({name} STATIC {name}.cpp {name}_kernels.cu)
target_compile_features({name} PUBLIC cxx_std_11 PRIVATE cuda_std_17)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC CUDA::cudart)

add_executable({name}_example {name}_example.cpp)
target_link_libraries({name}_example PRIVATE {name})
"""


def cpp_files(name: str, plan: Mapping, archs: Sequence[str], weights: bytes) -> dict[str, str]:
    """Texts by file name; the build makes code for those architectures by default, and what it
    makes takes no other weights."""
    functions = sorted({launch["function"] for launch in plan["launches"]})
    listed = [
        f"//     {side}  {text}"
        for side, texts in (("in", inputs(plan)), ("out", outputs(plan)), ("size", sizes(plan)))
        for text in texts
    ]
    defines = "\n".join(f"#define {function} {name}_{function}" for function in functions)
    return {
        f"{name}.h": HEADER.format(name=name, interface="\n".join(listed)),
        f"{name}.cpp": _source(name, plan, functions, folded(weights)),
        f"{name}_kernels.cu": KERNELS.format(defines=defines),
        f"{name}_example.cpp": EXAMPLE.format(name=name),
        "CMakeLists.txt": CMAKE.format(name=name, archs=_numbers(archs or DEFAULT_ARCHS)),
        RUNTIME.name: RUNTIME.read_text(),
    }


def _numbers(archs: Sequence[str]) -> str:
    """As CMake has them."""
    return " ".join(arch.removeprefix("sm_") for arch in archs)


def _source(name: str, plan: Mapping, functions: Iterable[str], weights_sum: int) -> str:
    most = {size["name"]: size["high"] for size in all_sizes(plan)}
    tables = [*_tensors("input", plan["inputs"], most), *_tensors("output", plan["outputs"], most)]
    numbers = _numbers_of_sizes(plan)
    tables += [*_launches(name, plan), *_checks(plan["checks"]), *_sizes(plan, numbers)]
    tables += _steps(plan)
    counts = {
        "input_count": len(plan["inputs"]), "output_count": len(own_outputs(plan)),
        "check_count": len(plan["checks"]), "size_count": len(plan["sizes"]),
        "number_count": len(numbers), "count_count": len(plan.get("counts", ())),
    }  # fmt: skip
    return SOURCE.format(
        name=name,
        declarations="\n".join(f'extern "C" void {name}_{function}();' for function in functions),
        tables="\n".join(tables),
        title=text_literal(plan["name"]),
        inputs="inputs" if plan["inputs"] else "nullptr",
        outputs="outputs" if plan["outputs"] else "nullptr",
        launches="launches" if plan["launches"] else "nullptr",
        launch_count=len(plan["launches"]),
        streams=plan["streams"],
        arena=plan["arena_bytes"],
        weights=plan["weights_bytes"],
        weights_sum=weights_sum,
        checks="checks" if plan["checks"] else "nullptr",
        sizes="sizes" if numbers else "nullptr",
        numbers="numbers" if numbers else "nullptr",
        steps="steps" if "steps" in plan else "nullptr",
        captured=_flag(plan.get("captured", True)),
        **counts,
    )


def _table(type: str, name: str, rows: list[str]) -> list[str]:
    """An array; none if it has no rows."""
    if not rows:
        return []
    return [f"const {type} {name}[] = {{", *(f"    {row}," for row in rows), "};"]


def _tensors(kind: str, entries: list[Mapping], most: Mapping[str, int]) -> list[str]:
    lines, rows = [], []
    for number, entry in enumerate(entries):
        shape = [value(dim, most) for dim in entry["shape"]]
        size = math.prod(shape) * dtypes.of(entry["dtype"]).size
        lines += _table("int64_t", f"{kind}_{number}_shape", [str(extent) for extent in shape])
        place = f"{kind}_{number}_shape" if shape else "nullptr"
        rows.append(
            f'{{{text_literal(entry["name"])}, "{entry["dtype"]}", {len(shape)}, {place}, {size}}}'
        )
    return [*lines, *_table("Tensor", f"{kind}s", rows)]


def _numbers_of_sizes(plan: Mapping) -> list[str]:
    """What depends on sizes, in the order that graphc_model.h has; none without sizes."""
    names, numbers = _size_numbers(plan), []
    if not names:
        return []
    for entry in (*plan["inputs"], *plan["outputs"]):
        shape = [_in_cpp(dim, names) for dim in entry["shape"]]
        numbers += [*shape, " * ".join([*shape, str(dtypes.of(entry["dtype"]).size)])]
    for launch in plan["launches"]:
        numbers += [_in_cpp(number, names) for number in (launch["grid"], *launch["sizes"])]
    return numbers


def _size_numbers(plan: Mapping) -> dict[str, int]:
    """The places of sizes in the array of them."""
    return {size["name"]: n for n, size in enumerate(all_sizes(plan))}


OPERATORS = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "neg": "(-{})",
    "floordiv": "graphc::floor_divided({}, {})", "mod": "graphc::floor_left({}, {})",
    "min": "std::min<int64_t>({}, {})", "max": "std::max<int64_t>({}, {})",
    "lt": "({} < {})", "le": "({} <= {})", "eq": "({} == {})", "ne": "({} != {})",
    "and": "({} && {})", "or": "({} || {})", "select": "({} ? {} : {})",
}  # fmt: skip


def _in_cpp(number: Any, names: Mapping[str, int]) -> str:
    """A number of the plan as an expression over the array of sizes."""
    if isinstance(number, str):
        return f"size[{names[number]}]"
    if isinstance(number, list):
        operation, *operands = number
        return OPERATORS[operation].format(*(_in_cpp(x, names) for x in operands))
    return f"int64_t{{{number}}}"


def _sizes(plan: Mapping, numbers: list[str]) -> list[str]:
    """The table of sizes, and the function that computes what depends on them."""
    rows = [f"{{{text_literal(s['name'])}, {s['low']}, {s['high']}}}" for s in all_sizes(plan)]
    if not rows:
        return []
    lines = [f"    number[{n}] = {text};" for n, text in enumerate(numbers)]
    head = "void numbers(const int64_t *size, int64_t *number)"
    return [*_table("Size", "sizes", rows), head, "{", *lines, "}"]


def _steps(plan: Mapping) -> list[str]:
    """The function that does the steps of a plan with control flow."""
    if "steps" not in plan:
        return []
    starts = [constant["offset"] for constant in plan["constants"]]
    names = _size_numbers(plan)
    counts = {count["name"]: n for n, count in enumerate(plan["counts"])}
    printer = StepPrinter(
        lambda place: _argument(place, starts), lambda number: _in_cpp(number, names), counts
    )
    return printer.function(plan["steps"])


def _checks(checks: list[Mapping]) -> list[str]:
    rows = []
    for check in checks:
        before, _, after = check["message"].partition(VALUE)
        low, most = (f"{check[key] % WHOLE}ull" for key in ("low", "most"))
        texts = f"{text_literal(before)}, {text_literal(after)}"
        rows.append(f"{{{low}, {most}, {texts}, {_flag(VALUE in check['message'])}}}")
    return _table("Check", "checks", rows)


def _flag(holds: bool) -> str:
    return "true" if holds else "false"


def _launches(name: str, plan: Mapping) -> list[str]:
    starts = [constant["offset"] for constant in plan["constants"]]
    lines, rows = [], []
    for number, launch in enumerate(plan["launches"]):
        arguments = [_argument(a, starts) for a in launch["arguments"]]
        lines += _table("Argument", f"arguments_{number}", arguments)
        lines += _table("int", f"waits_{number}", [str(n) for n in launch["waits"]])
        lines += _table("Map", f"maps_{number}", [_map(m) for m in launch["maps"]])
        rows.append(_row(name, number, launch))
    return [*lines, *_table("Launch", "launches", rows)]


def _argument(argument: Mapping, starts: list[int]) -> str:
    space, index, offset = (argument[key] for key in ("space", "index", "offset"))
    if space == "const":
        index, offset = 0, offset + starts[index]
    return f"{{Space::{SPACES[space]}, {index}, {offset}}}"


def _map(map: Mapping) -> str:
    dims, strides, box = (
        ", ".join(f"{n}u" for n in map[key]) for key in ("dims", "strides", "box")
    )
    return (
        f"{{{map['argument']}, {map['offset']}, {map['element']}, {len(map['dims'])}, "
        f"{{{dims}}}, {{{strides}}}, {{{box}}}}}"
    )


def _row(name: str, number: int, launch: Mapping) -> str:
    """One launch."""
    function, waits = launch["function"], launch["waits"]
    blocks = launch["grid"] if isinstance(launch["grid"], int) else 0  # known with the sizes
    grid, block = (f"{{{count}, 1, 1}}" for count in (blocks, launch["block"]))
    awaited = _flag(launch["awaited"])
    arguments = f"arguments_{number}" if launch["arguments"] else "nullptr"
    return (
        f'{{reinterpret_cast<const void *>({name}_{function}), "{function}", {grid}, {block}, '
        f"{launch['shared']}, {arguments}, {len(launch['arguments'])}, {len(launch['sizes'])}, "
        f"{launch['stream']}, "
        f"{f'waits_{number}' if waits else 'nullptr'}, {len(waits)}, {awaited}, "
        f"{f'maps_{number}' if launch['maps'] else 'nullptr'}, {len(launch['maps'])}}}"
    )
