"""The Python launcher, and what a person reads first."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("run_model.py")

README = """\
# {name}

{launches} kernel launches {when}; on the device, weights of {weights} bytes and an arena of
{arena} bytes.

| | |
|---|---|
| inputs | {inputs} |
| outputs | {outputs} |
{sizes}
* `kernels.cu` is the CUDA C, one function per launch, each with the ONNX nodes it computes;
  `kernels.ARCH.cubin` and `.ptx` are its machine code. To make more:
  `nvcc -cubin -arch=sm_90 -o kernels.sm_90.cubin kernels.cu`
* `plan.json` says what is launched, in which order, on what; `weights.bin` holds the weights.

## From Python

Needs numpy, and PyCUDA (`pip install pycuda`) or NVIDIA's bindings (`pip install cuda-python`).

```
python run_{name}.py{given} -o outputs.npz
```

or `import run_{name}; model = run_{name}.load(); outputs = model.run([...])`.

## From C++

Needs CUDA's toolkit, and nothing else of CUDA than its runtime library.

```
cmake -S . -B build && cmake --build build
build/{name}_example weights.bin
```

`graphc::Model model({name}_plan, "weights.bin"); model.run(inputs, outputs);`: see `{name}.h` and
`{name}_example.cpp`.{open}
"""

OPEN = """ `model.set_sizes(sizes)` sets the sizes of the runs to come, at first the largest;
`model.output_shape(0)` tells what an output then is."""
COUNTED = """ Data decides sizes: outputs take room for the largest, and after a run
`model.output_shape(0)` tells what an output is."""


def python_files(name: str, plan: Mapping) -> dict[str, str]:
    """Texts by file name."""
    printable = (x["name"] for x in plan["inputs"] if x["name"].isprintable())
    file = shlex.quote(f"{next(printable, 'NAME')}=x.npy")
    readme = README.format(
        name=name,
        launches=len(plan["launches"]),
        when="in loops and branches" if "steps" in plan else "per inference",
        weights=plan["weights_bytes"],
        arena=plan["arena_bytes"],
        inputs=_cell(inputs(plan)),
        outputs=_cell(outputs(plan)),
        sizes=f"| sizes | {_cell(sizes(plan))} |\n" if all_sizes(plan) else "",
        open=(OPEN if plan["sizes"] else "") + (COUNTED if plan.get("counts") else ""),
        given=f" --input {file}" if plan["inputs"] else "",
    )
    script = SCRIPT.read_text().replace("run_NAME", f"run_{name}")
    return {f"run_{name}.py": script, "README.md": readme}


def inputs(plan: Mapping) -> list[str]:
    """Each input: `x: f32[1,784]`, on one line whatever its name."""
    return [_interface(entry) for entry in plan["inputs"]]


def own_outputs(plan: Mapping) -> Sequence[Mapping]:
    """The outputs but what tells of checks."""
    return plan["outputs"][:-1] if plan["checks"] else plan["outputs"]


def outputs(plan: Mapping) -> list[str]:
    """Each output; of one whose shape depends on data, also which part is the result."""
    texts = []
    for entry in own_outputs(plan):
        text = _interface(entry)
        if "true_shape" in entry:
            sizes, first = (entry["true_shape"][key] for key in ("output", "first"))
            where = _name(plan["outputs"][sizes])
            extents = (f"{where}[{first + n}]" for n in range(len(entry["shape"])))
            text += f" at most, of it the leading corner [{', '.join(extents)}]"
        texts.append(text)
    return texts


def _interface(entry: Mapping) -> str:
    return f"{_name(entry)}: {entry['dtype']}[{','.join(map(_shown, entry['shape']))}]"


def all_sizes(plan: Mapping) -> list[Mapping]:
    """The sizes that inputs have, then those that data decides."""
    return [*plan["sizes"], *plan.get("counts", ())]


def sizes(plan: Mapping) -> list[str]:
    """Each size: `batch: 1..32`."""
    given = len(plan["sizes"])
    return [
        f"{_name(size)}: {size['low']}..{size['high']}{', which data decides' * (n >= given)}"
        for n, size in enumerate(all_sizes(plan))
    ]


SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%"}


def _shown(number: Any) -> str:
    """A number of the plan as people write it."""
    if isinstance(number, str):
        return _printable(number)
    if not isinstance(number, list):
        return str(number)
    operation, *operands = number
    texts = [f"({_shown(x)})" if isinstance(x, list) else _shown(x) for x in operands]
    sign = SIGNS.get(operation)
    return sign.join(texts) if sign else f"{operation}({', '.join(texts)})"


def _name(entry: Mapping) -> str:
    return _printable(entry["name"])


def _printable(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)


def _cell(texts: Sequence[str]) -> str:
    """Inputs or outputs in a table."""
    return "; ".join(texts).replace("|", "\\|") or "none"
