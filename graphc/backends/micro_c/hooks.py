"""Hooks around every layer of NAME_run, which compile away: profiles, traces, and summaries.

A step is printed between NAME_BEGIN and NAME_END, which call `NAME_profile` with -DNAME_PROFILE.
Each of its results goes to NAME_RESULT. With -DNAME_TRACE that gives a CRC-32 of its bytes to
`NAME_trace`, and with -DNAME_SUMMARY its least, largest and mean element to `NAME_summary`, by
which floats can be compared that another processor rounds otherwise. The hooks are functions of
the user's. Without the macros nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphc.backends.cfamily.helpers import helper_text
from graphc.backends.cfamily.spell import UNARY, Speller, storage_type
from graphc.backends.micro_c.model import Model
from graphc.ir.dtypes import DType
from graphc.ir.program import Slot, Step
from graphc.ir.types import largest

HOOKS = """\
#if defined({macro}_PROFILE) || defined({macro}_TRACE) || defined({macro}_SUMMARY)
static const char *const {name}_layers[] = {{
{names}
}};
#endif

#ifdef {macro}_PROFILE
#define {macro}_BEGIN(layer) {name}_profile(layer, {name}_layers[layer], 0)
#define {macro}_END(layer) {name}_profile(layer, {name}_layers[layer], 1)
#else
#define {macro}_BEGIN(layer) ((void)0)
#define {macro}_END(layer) ((void)0)
#endif

#ifdef {macro}_TRACE
/* CRC-32 as in Ethernet and zlib (reflected polynomial 0xEDB88320). */
static uint32_t {name}_crc32(const void *data, uint32_t bytes)
{{
    const uint8_t *at = (const uint8_t *)data;
    uint32_t crc = 0xffffffffu;
    while (bytes-- != 0u) {{
        int bit;
        crc ^= *at++;
        for (bit = 0; bit < 8; ++bit) {{
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
        }}
    }}
    return ~crc;
}}
#define {macro}_CRC(layer, data, bytes) \\
    {name}_trace(layer, {name}_layers[layer], {name}_crc32(data, bytes))
#else
#define {macro}_CRC(layer, data, bytes) ((void)0)
#endif

#ifdef {macro}_SUMMARY
{summaries}#define {macro}_RANGE(layer, type, data, bytes) \\
    {name}_summary_##type(layer, data, (uint32_t)((bytes) / sizeof *(data)))
#else
#define {macro}_RANGE(layer, type, data, bytes) ((void)0)
#endif

#define {macro}_RESULT(layer, type, data, bytes) \\
    {macro}_CRC(layer, data, bytes); \\
    {macro}_RANGE(layer, type, data, bytes)
"""

SUMMARY = """\
static void {name}_summary_{dtype}(int layer, const {c_type} *data, uint32_t count)
{{
    double least = {first}, most = least, sum = 0;
    uint32_t i;
    for (i = 0; i < count; ++i) {{
        const double x = {element};
        least = x < least ? x : least;
        most = x > most ? x : most;
        sum += x;
    }}
    {name}_summary(layer, {name}_layers[layer], (float)least, (float)most, (float)(sum / count));
}}
"""


def hooks(model: Model) -> str:
    """The macros, and the functions that they call."""
    layers = [f'    "{literal(layer_title(step))}",' for step in model.program.calls]
    return HOOKS.format(
        name=model.name, macro=model.macro, names="\n".join(layers or ['    "",']),
        summaries=_summaries(model),
    )  # fmt: skip


def results(model: Model, step: Step) -> Iterator[tuple[int, Slot]]:
    """The parameters that a step writes, by number, and where they lie; empty ones are left out."""
    params = model.program.kernels[step.kernel].params
    for number, (buffer, slot) in enumerate(zip(params, step.slots, strict=True)):
        if buffer.access != "in" and largest(slot.elements) and not model.program.is_keys(slot):
            yield number, slot


def _summaries(model: Model) -> str:
    """A function for every type of element that a layer results in, and their helpers."""
    dtypes = {slot.dtype for step in model.program.calls for _, slot in results(model, step)}
    speller, parts = Speller(), []
    for dtype in sorted(dtypes, key=lambda dtype: dtype.name):
        parts.append(SUMMARY.format(
            name=model.name, dtype=dtype, c_type=storage_type(dtype),
            first=_element("data[0]", dtype, speller), element=_element("data[i]", dtype, speller),
        ))  # fmt: skip
    return helper_text(speller.needed - model.unit.speller.needed) + "".join(parts)


def _element(place: str, dtype: DType, speller: Speller) -> str:
    return f"(double){speller.load(place, dtype).at(UNARY)}"


def layer_title(step: Step) -> str:
    """What a step is called in traces and profiles: its first ONNX node."""
    return step.loc[0] if step.loc else step.kernel


def literal(text: str) -> str:
    """A name as the inside of a string literal, in ASCII without escapes."""
    return "".join(c if c.isprintable() and ord(c) < 128 and c not in '"\\?' else "_" for c in text)
