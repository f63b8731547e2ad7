"""From printed CUDA C to C++ that g++ compiles against the simulator.

The text stays as it is but for two kinds of declaration, which get types whose accesses are
checked: pointer parameters of `__global__` functions, and shared arrays (those that are parts of
what the launch gives must lie within it). For every kernel a function of C linkage is added that
ctypes can call.
"""

from __future__ import annotations

import re
from collections.abc import Callable

KERNEL = re.compile(
    r'extern "C" __global__ void __launch_bounds__\([\d, ]+\) '
    r"(?:__cluster_dims__\((?P<blocks>\d+)[\d, ]*\) )?(?P<name>\w+)\((?P<params>[^)]*)\)"
)
POINTER = re.compile(r"(?P<type>(?:const )?\w+) \*(?:__restrict__ )?(?P<name>\w+)")
MAP = re.compile(r"const __grid_constant__ TensorMap (?P<name>\w+)")
SIZE = re.compile(r"const int64_t (?P<name>\w+)(?=,|$)")
_SHARED = re.compile(
    r"__shared__ __align__\((?P<alignment>\d+)\) (?P<type>\w+) (?P<name>\w+)\[(?P<count>\d+)\];"
)
_PART = re.compile(
    r"(?P<type>\w+) \*const (?P<name>\w+) = \((?P=type) \*\)\(shared_memory \+ (?P<offset>\d+)\); "
    r"/\* (?P<count>\d+) elements \*/"
)
_DYNAMIC = re.compile(r"extern __shared__ .*\n")
_WAITS = re.compile(
    r"await_phase\(|meet_cluster<|make_uniform\(|__sync\w+\(|meet_warp\(|__\w+_sync\(|trade\(|mma_\w+[(<]|load_matrices\w*\("
)


def translate(text: str, mark: Callable[[str], str] = str) -> str:
    """The C++ of a CUDA file, and an entry point `launch_NAME` for every kernel. `mark` may change
    the translated kernels."""
    kernels = list(KERNEL.finditer(text))
    ends = [*(k.start() for k in kernels[1:]), len(text)]
    entries = [
        _entry(
            k["name"],
            k["params"],
            k["blocks"] or "1",
            _WAITS.search(text, k.end(), end) is not None,
        )
        for k, end in zip(kernels, ends)
    ]
    text = KERNEL.sub(_declaration, text)
    text = _SHARED.sub(_shared_array, text)
    text = _PART.sub(_shared_array, _DYNAMIC.sub("", text))
    return "\n".join(['#include "simulator.h"', mark(text), *entries])


def _declaration(kernel: re.Match) -> str:
    params = POINTER.sub(r"simulator::Global<\g<type>> \g<name>", kernel["params"])
    params = MAP.sub(r"const simulator::TensorMap \g<name>", params)
    return f"static void {kernel['name']}({params})"


def _shared_array(array: re.Match) -> str:
    type, name, count = array["type"], array["name"], array["count"]
    part = "offset" in array.re.groupindex
    given = f"{array['offset']}, 0" if part else f"-1, {array['alignment']}"
    return f'static simulator::Shared<{type}, {count}> {name}; {name}.enter("{name}", {given});'


def _entry(name: str, params: str, blocks: str, waits: bool) -> str:
    arguments = [
        f'simulator::Global<{p["type"]}>("{p["name"]}", data[{n}], counts[{n}], defined[{n}])'
        for n, p in enumerate(POINTER.finditer(params))
    ]
    arguments += [f"sizes[{n}]" for n, _ in enumerate(SIZE.finditer(params))]
    arguments += [f"maps[{n}]" for n, _ in enumerate(MAP.finditer(params))]
    call = f"{name}({', '.join(arguments)})"
    return (
        f'extern "C" const char *launch_{name}(void **data, const int64_t *counts,\n'
        "    uint8_t **defined, unsigned grid, unsigned threads, unsigned order,\n"
        "    unsigned shared, const int64_t *sizes, const simulator::TensorMap *maps)\n"
        f"{{\n    return simulator::launch([=] {{ {call}; }}, grid, threads, order, "
        f"{'true' if waits else 'false'}, shared, {blocks});\n}}\n"
    )
