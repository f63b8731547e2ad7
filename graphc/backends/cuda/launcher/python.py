"""The Python launcher, and what a person reads first."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("run_model.py")

README = """\
# {name}

{launches} kernel launches per inference; on the device, weights of {weights} bytes and an arena of
{arena} bytes.

| | |
|---|---|
| inputs | {inputs} |
| outputs | {outputs} |

* `kernels.cu` is the CUDA C, one function per launch, each with the ONNX nodes it computes;
  `kernels.ARCH.cubin` and `.ptx` are its machine code. To make more:
  `nvcc -cubin -arch=sm_90 -o kernels.sm_90.cubin kernels.cu`
* `plan.json` says what is launched, in which order, on what; `weights.bin` holds the weights.

## From Python

Needs numpy, and PyCUDA (`pip install pycuda`) or NVIDIA's bindings (`pip install cuda-python`).

```
python run_{name}.py --input {first} -o outputs.npz
```

or `import run_{name}; model = run_{name}.load(); outputs = model.run([...])`.

## From C++

Needs CUDA's toolkit, and nothing else of CUDA than its runtime library.

```
cmake -S . -B build && cmake --build build
build/{name}_example weights.bin
```

`graphc::Model model({name}_plan, "weights.bin"); model.run(inputs, outputs);`: see `{name}.h` and
`{name}_example.cpp`.
"""


def python_files(name: str, plan: Mapping[str, Any]) -> dict[str, str]:
    """Texts by file name."""
    first = plan["inputs"][0]["name"] if plan["inputs"] else "x"
    readme = README.format(
        name=name,
        launches=len(plan["launches"]),
        weights=plan["weights_bytes"],
        arena=plan["arena_bytes"],
        inputs="; ".join(map(_cell, plan["inputs"])) or "none",
        outputs="; ".join(map(_cell, plan["outputs"])) or "none",
        first=shlex.quote(f"{first}=x.npy"),
    )
    script = SCRIPT.read_text().replace("run_NAME", f"run_{name}")
    return {f"run_{name}.py": script, "README.md": readme}


def interface(entry: Mapping[str, Any]) -> str:
    """An input or output: `x: f32[1,784]`, on one line whatever its name."""
    name = entry["name"]
    name = name if name.isprintable() else json.dumps(name, ensure_ascii=False)
    return f"{name}: {entry['dtype']}[{','.join(map(str, entry['shape']))}]"


def _cell(entry: Mapping[str, Any]) -> str:
    """The same in a table."""
    return interface(entry).replace("|", "\\|")
