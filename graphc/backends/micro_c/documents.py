"""What lies beside the code: a test, a build file, a page to read, and a report."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from graphc.backends.cfamily.printer import comment
from graphc.backends.micro_c.cpus import Cpu
from graphc.backends.micro_c.model import ARENA_ALIGNMENT, Model, Tensor
from graphc.backends.micro_c.weights import array_lines

CMAKE = """\
# Adds the library {name}: target_link_libraries(firmware {name})
cmake_minimum_required(VERSION 3.13)
project({name} C)
add_library({name} STATIC {name}.c {name}_weights.c)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_LIST_DIR}})
set_target_properties({name} PROPERTIES C_STANDARD 99)
{test}"""

CMAKE_TEST = """\
add_executable({name}_test EXCLUDE_FROM_ALL {name}_test.c)
target_link_libraries({name}_test {name} m)
"""

README = """\
# {name}

A neural network as C99: no allocation, no state, no stdio. Add `{name}.c` and `{name}_weights.c`
to the build, include `{name}.h`, and call

```c
{call}
```

| | bytes |
|---|---|
| constants (flash) | {weights} |
| arena (RAM, from the caller) | {arena} |
{tensors}
`{name}.h` documents everything else; `report.json` says which layer became which function.
{cpu}{test}"""

README_CPU = """
Made for {cpu} (`{flags}`); it runs on other processors too, though not as fast.
"""

README_TEST = """
To check the outputs on sample inputs:

    cc -O2 {name}_test.c {name}.c {name}_weights.c -lm -o {name}_test && ./{name}_test
"""

TEST = """\
{title}
#include "{name}.h"

#include <math.h>
#include <stdio.h>

{arrays}
static double arena[{macro}_ARENA_SIZE / sizeof(double) + 3];

int main(void)
{{
    unsigned char *start = (unsigned char *)arena;
    {name}_inputs inputs;
    {name}_outputs outputs;
    double error = 0;
    unsigned long i;
    int status;
    while ((uintptr_t)start % {macro}_ARENA_ALIGN != 0) {{
        ++start;
    }}
{fields}
    status = (int){name}_run(&inputs, &outputs, start);
    if (status != 0) {{
        printf("status %d\\n", status);
        return 2;
    }}
{compare}
    printf("largest error %g\\n", error);
    return error <= {tolerance} ? 0 : 1;
}}
"""

COMPARE = """\
    for (i = 0; i < {count}; ++i) {{
        const double difference = fabs((double)output{n}[i] - (double)expected{n}[i]);
        if (!(difference <= error)) {{
            error = difference;
        }}
    }}"""


def cmake(model: Model, tested: bool) -> str:
    """CMakeLists.txt."""
    test = CMAKE_TEST.format(name=model.name) if tested else ""
    return CMAKE.format(name=model.name, test=test)


def readme(model: Model, tested: bool, cpu: Cpu) -> str:
    """README.md."""
    aligned = f"__attribute__((aligned({ARENA_ALIGNMENT})))"
    lines = [
        f"static uint8_t arena[{model.macro}_ARENA_SIZE + 1] {aligned};",
        f"{model.name}_inputs in = {{{', '.join(t.field for t in model.inputs)}}};",
        f"{model.name}_outputs out = {{{', '.join(t.field for t in model.outputs)}}};",
        f"{model.name}_status status = {model.name}_run(&in, &out, arena);",
    ]
    sides = (("input", model.inputs), ("output", model.outputs))
    tensors = "".join(
        f"| {side} `{t.field}`, {t.shape_text} | {t.nbytes} |\n" for side, ts in sides for t in ts
    )
    return README.format(
        name=model.name, call="\n".join(lines), weights=model.weight_bytes,
        arena=model.program.arena_bytes, tensors=tensors,
        test=README_TEST.format(name=model.name) if tested else "",
        cpu=README_CPU.format(cpu=cpu.name, flags=" ".join(cpu.flags)) if cpu.flags else "",
    )  # fmt: skip


def report(model: Model, cpu: str) -> str:
    """report.json: sizes in bytes; per layer its function, ONNX nodes and operations."""
    program = model.program
    layers = [
        {
            "function": model.functions[step.kernel],
            "nodes": list(step.loc),
            "operations": step.flops,
            "weights": sum(s.elements * s.dtype.size for s in step.slots if s.space == "const"),
        }
        for step in program.steps
    ]
    content = {
        "name": model.name,
        "cpu": cpu,
        "weights_bytes": model.weight_bytes,
        "arena_bytes": program.arena_bytes,
        "arena_lower_bound": program.arena_lower_bound,
        "inputs": [_described(t) for t in model.inputs],
        "outputs": [_described(t) for t in model.outputs],
        "layers": layers,
    }
    return json.dumps(content, indent=2) + "\n"


def _described(tensor: Tensor) -> dict[str, str]:
    return {"name": tensor.name, "field": tensor.field, "type": tensor.shape_text}


def test(
    model: Model,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    tolerance: float,
) -> str:
    """NAME_test.c."""
    arrays, fields, compare = [], [], []
    for n, (tensor, array) in enumerate(zip(model.inputs, inputs)):
        size, lines = max(tensor.elements, 1), array_lines(array)
        arrays.append(f"static const {tensor.c_type} input{n}[{size}] = {{\n{lines}\n}};")
        fields.append(f"    inputs.{tensor.field} = input{n};")
    for n, (tensor, array) in enumerate(zip(model.outputs, outputs)):
        size, lines = max(tensor.elements, 1), array_lines(array)
        arrays.append(f"static const {tensor.c_type} expected{n}[{size}] = {{\n{lines}\n}};")
        arrays.append(f"static {tensor.c_type} output{n}[{size}];")
        fields.append(f"    outputs.{tensor.field} = output{n};")
        compare.append(COMPARE.format(n=n, count=tensor.elements))
    return TEST.format(
        title=comment(f"{model.name}: a test. Made by graphc; do not edit."),
        name=model.name, macro=model.macro, arrays="\n".join(arrays),
        fields="\n".join(fields), compare="\n".join(compare), tolerance=tolerance,
    )  # fmt: skip
