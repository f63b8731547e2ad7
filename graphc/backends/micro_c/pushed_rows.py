"""NAME_push_rows (--push-rows): the image arrives in pieces, so that it need not be held.

The steps are those of NAME_run. Where they copy rows of the image into a line buffer, the function
takes what the caller has, and returns until there is more; the next call goes on from there (a
switch whose cases lie in front of these copies, also inside of a loop; T. Duff, 1983). So all
memory between calls is the arena, and a structure of four numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphc.backends.cfamily.steps import INDENT
from graphc.backends.micro_c.model import Model
from graphc.backends.micro_c.steps import StepLines
from graphc.errors import UnsupportedError
from graphc.ir.program import AnyStep, Copy, Program, Slot, Step, While, bodies, walk

STATUSES = (
    ("MORE_ROWS", "not all rows of the image have come"),
    ("WRONG_ROWS", "rows are not the next ones, or more than there are"),
)
HEADER = """
/* The image in pieces: rows of {row} bytes, {count} in all, from the first to the last, as many at
 * once as there are. The image need not be held; what is kept lies in the arena and in this. */
#define {macro}_ROWS {count}
#define {macro}_ROW_BYTES {row}
typedef struct {{
    uint32_t row;   /* how many have come */
    uint32_t taken; /* bytes, of what is taken next */
    int32_t place;  /* where the steps go on */
    int32_t trip;
}} {name}_rows;

/* Begins a new image. */
void {name}_start_rows({name}_rows *image);

/* Takes `count` rows, of which `first` is the number of the first, and computes what they suffice
 * for. Returns {macro}_MORE_ROWS until the last row has come, then {macro}_OK: the outputs are
 * those of {name}_run. {macro}_WRONG_ROWS changes nothing. Between the calls for an image its
 * arena must stay as it is, and the outputs the same. Aligned as for {name}_run. */
{name}_status {name}_push_rows({name}_rows *image, uint32_t first, uint32_t count,
    const {type} *rows, const {name}_outputs *outputs, void *arena);
"""
SOURCE = """
void {name}_start_rows({name}_rows *image)
{{
    memset(image, 0, sizeof *image);
}}

/* Copies what there is of the bytes that are taken next; whether that was all of them. */
static int {name}_take({name}_rows *image, uint8_t *to, uint32_t bytes, const uint8_t **rows,
    uint32_t *left)
{{
    const uint32_t wanted = bytes - image->taken;
    const uint32_t part = wanted < *left ? wanted : *left;
    if (part != 0) {{
        memcpy(to + image->taken, *rows, part);
        *rows += part;
        *left -= part;
    }}
    image->taken = part < wanted ? image->taken + part : 0;
    return part == wanted;
}}

{name}_status {name}_push_rows({name}_rows *image, uint32_t first, uint32_t count,
    const {type} *rows, const {name}_outputs *outputs, void *arena)
{{
    uint8_t *const memory = (uint8_t *)arena;
    const uint8_t *next = (const uint8_t *)rows;
    uint32_t left = 0;
    if (image == 0 || (rows == 0 && count != 0) || {missing}) {{
        return {macro}_NULL_POINTER;
    }}
    if ({misaligned}) {{
        return {macro}_MISALIGNED;
    }}
    if (image->row > {macro}_ROWS || first != image->row || count > {macro}_ROWS - first) {{
        return {macro}_WRONG_ROWS;
    }}
    left = count * {macro}_ROW_BYTES;
{overlaps}    image->row += count;
    switch (image->place) {{
    case 0:
{steps}
        image->place = {last};
        /* fall through */
    default:
        break;
    }}
    return image->row < {macro}_ROWS ? {macro}_MORE_ROWS : {macro}_OK;
}}
"""


def check_pushed(program: Program) -> None:
    """UnsupportedError if the image of a program cannot come in pieces."""
    why = _refusal(program)
    if why:
        raise UnsupportedError(f"--push-rows: {why}")


def is_pushed(program: Program) -> bool:
    """Whether the image of a program can come in pieces."""
    return not _refusal(program)


def _refusal(program: Program) -> str:
    """Why the image of a program cannot come in pieces; empty if it can."""
    if len(program.inputs) != 1 or program.state or program.all_sizes:
        return (
            f"a model must have one input of a fixed shape, and no state; found inputs "
            f"{[f'{name}: {type}' for name, type in program.inputs]}, "
            f"{len(program.state)} parts of state"
        )
    if program.resident:
        return "it goes without --io arena, where the image is held"
    if program.checks:
        return "it goes without checks of what inputs hold; --checks off leaves them out"
    reads = [s for s in walk(program.steps) if isinstance(s, Step) and any(map(_is_image, s.slots))]
    name, type = program.inputs[0]
    if reads:
        return (
            f"{name!r} must be read by rows, from first to last, by one layer whose rows lie "
            f"together in memory (NHWC); {reads[0].loc[0] if reads[0].loc else 'a layer'} reads "
            f"all of it"
        )
    end = 0
    for start, nbytes in _pieces(program.steps):
        if start != end:
            return f"{name!r} is not read from its first row to its last"
        end += nbytes
    rows, row = _shape(program)
    if not end or end > rows * row:
        return f"{name!r} is not read by rows"
    return ""


def _is_image(slot: Slot) -> bool:
    return slot.space == "input"


def _pieces(steps: Sequence[AnyStep], trip: int = 0) -> Iterator[tuple[int, int]]:
    """The first bytes and the lengths of what is copied of the image, in order."""
    for step in steps:
        if isinstance(step, Copy) and _is_image(step.source):
            nbytes = int(step.source.elements) * step.source.dtype.size
            yield step.source.offset + trip * step.source_stride, nbytes
        elif isinstance(step, While) and isinstance(step.trips, int):
            for number in range(step.trips if _has_copies(step) else 0):
                yield from _pieces(step.body, number)
        else:
            yield from (piece for body in bodies(step) for piece in _pieces(body))


def _has_copies(step: AnyStep) -> bool:
    """Whether a loop copies rows of the image."""
    inside = [s for body in bodies(step) for s in walk(body)]
    return any(isinstance(s, Copy) and _is_image(s.source) for s in inside)


def _shape(program: Program) -> tuple[int, int]:
    """The rows of the image, and the bytes of one."""
    type = program.inputs[0][1]
    rows = next((int(x) for x in type.static_shape if x != 1), 1)
    return rows, type.most * type.dtype.size // rows


# ---------------------------------------------------------------- text


def declarations(model: Model) -> str:
    """What the header says."""
    if not model.pushed:
        return ""
    rows, row = _shape(model.program)
    return HEADER.format(name=model.name, macro=model.macro, count=rows, row=row,
                         type=model.inputs[0].c_type)  # fmt: skip


def functions(model: Model, overlaps: Sequence[str]) -> str:
    """NAME_start_rows and NAME_push_rows, in NAME.c; `overlaps` are the lines that check that
    tensors lie apart, with the rows as the input."""
    check_pushed(model.program)
    printer = _Pushed(model)
    printer.depth = 2
    printer.steps(model.program.steps)
    needed = ["outputs", *(["arena"] if model.program.arena_bytes else [])]
    fields = [f"outputs->{t.field}" for t in model.outputs if t.elements]
    aligned = [
        ("arena", f"{model.macro}_ARENA_ALIGN"),
        ("rows", f"sizeof({model.inputs[0].c_type})"),
    ]
    aligned += [(f"outputs->{t.field}", f"sizeof({t.c_type})") for t in model.outputs]
    return SOURCE.format(
        name=model.name, macro=model.macro, type=model.inputs[0].c_type,
        missing=" || ".join(f"{p} == 0" for p in (*needed, *fields)),
        misaligned=" ||\n        ".join(f"(uintptr_t){p} % {size} != 0" for p, size in aligned),
        overlaps="".join(f"{line}\n" for line in overlaps),
        steps="\n".join(printer.lines), last=printer.place + 1,
    )  # fmt: skip


class _Pushed(StepLines):
    """Prints steps that wait where rows of the image are copied."""

    place = 0  # of the last wait
    is_kept = False  # whether the trips of a loop are counted in the structure

    def copy(self, step: Copy) -> None:
        if not _is_image(step.source):
            super().copy(step)
            return
        self.place += 1
        name, target = self.model.name, self.moved(step.target, step.target_stride, False)
        nbytes = self.nbytes(step.source.elements, step.source.dtype.size)
        self.line(f"image->place = {self.place};")
        self.line("/* fall through */")
        self.lines.append(f"{INDENT * (self.depth - 1)}case {self.place}:")
        self.line(f"if (!{name}_take(image, {target}, {nbytes}, &next, &left)) {{")
        self.line(f"    return {self.model.macro}_MORE_ROWS;")
        self.line("}")

    def trip(self, number: int) -> str:
        return "image->trip" if self.is_kept and number == 0 else super().trip(number)

    def loop(self, step: While) -> None:
        if self.around or not _has_copies(step):
            super().loop(step)
            return
        self.around, self.is_kept = 1, True
        head = f"for (image->trip = 0; image->trip < {self.number(step.trips)}; ++image->trip)"
        self.block(head, step.body)
        self.around, self.is_kept = 0, False
