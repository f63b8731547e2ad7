"""A picture of a program's arena over time: steps from left to right, offsets from the bottom up.

Every tensor in the arena is a rectangle, as wide as it is live and as high as it is large, with the
name of the layer that made it; names that do not fit, sizes, offsets and steps are in tooltips. The
dashed line is the lower bound of the plan.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from graphc.analysis.memory import ArenaTensor, arena_use
from graphc.analysis.text import nbytes
from graphc.ir.program import Program

WIDTH, HEIGHT = 960, 480  # of the plot, in pixels
LEFT, TOP, RIGHT, BOTTOM = 84, 44, 24, 48  # margins
LETTER, LINE = 6.2, 11  # width and height of a letter in labels
TICKS = 8
GOLDEN_ANGLE = 137.508  # degrees: hues of successive tensors are far apart

SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}"
     font-family="sans-serif" font-size="{line}">
<rect width="{w}" height="{h}" fill="white"/>
<text x="{left}" y="18" font-size="14">{title}</text>
<text x="{left}" y="34" fill="#555">{subtitle}</text>
{body}
</svg>
"""


def arena_svg(program: Program) -> str:
    """The picture as SVG; deterministic, all text escaped."""
    plot = _Plot(program)
    parts = [*plot.axes(), *plot.tensors(), *plot.bound(), *plot.columns()]
    subtitle = (
        f"arena {nbytes(program.arena_bytes)}, at least {nbytes(program.arena_lower_bound)}; "
        f"{len(program.calls)} steps, {len(plot.use.tensors)} tensors"
    )
    return SVG.format(
        w=LEFT + WIDTH + RIGHT, h=TOP + HEIGHT + BOTTOM, left=LEFT, line=LINE,
        title=_text(f"{program.name}: memory over time"), subtitle=_text(subtitle),
        body="\n".join(parts),
    )  # fmt: skip


class _Plot:
    """The scales of a picture, and what is drawn with them."""

    def __init__(self, program: Program):
        self.program, self.use = program, arena_use(program)
        self.steps = max(len(program.calls), 1)
        self.bytes = max(program.arena_bytes, 1)

    def x(self, step: float) -> float:
        return LEFT + WIDTH * step / self.steps

    def y(self, offset: float) -> float:
        return TOP + HEIGHT * (1 - offset / self.bytes)

    def axes(self) -> list[str]:
        """The frame, and ticks of offsets and steps."""
        parts = [_box(LEFT, TOP, WIDTH, HEIGHT, "#f6f6f6", "#999")]
        for tick in range(TICKS + 1):
            offset = self.bytes * tick // TICKS
            label = f'x="{LEFT - 6}" y="{self.y(offset) + 4:.1f}" text-anchor="end"'
            parts.append(f"<text {label}>{nbytes(offset)}</text>")
        every = max(1, -(-self.steps // 24))
        for step in range(0, self.steps, every):
            place = f'x="{self.x(step + 0.5):.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle"'
            parts.append(f"<text {place}>{step}</text>")
        middle = f'x="{LEFT + WIDTH / 2:.1f}" y="{TOP + HEIGHT + 36}" text-anchor="middle"'
        return [*parts, f"<text {middle}>step</text>"]

    def tensors(self) -> list[str]:
        """The rectangles, in the order in which tensors are made."""
        ordered = sorted(self.use.tensors, key=lambda t: (t.first, t.offset, t.nbytes))
        return [line for n, tensor in enumerate(ordered) for line in self._tensor(n, tensor)]

    def _tensor(self, number: int, tensor: ArenaTensor) -> list[str]:
        left, right = self.x(tensor.first), self.x(tensor.last + 1)
        bottom, top = self.y(tensor.offset), self.y(tensor.offset + tensor.nbytes)
        name = tensor.loc[0] if tensor.loc else f"step {tensor.first}"
        hue = round(number * GOLDEN_ANGLE) % 360
        told = (f"{', '.join(tensor.loc) or name}: {nbytes(tensor.nbytes)} at {tensor.offset}, "
                f"steps {tensor.first} to {tensor.last}")  # fmt: skip
        box = _box(left, top, right - left, bottom - top, f"hsl({hue},60%,80%)",
                   f"hsl({hue},50%,45%)", f"<title>{_text(told)}</title>")  # fmt: skip
        label = f"{name} {nbytes(tensor.nbytes)}"
        letters = int((right - left - 6) / LETTER)
        if bottom - top < LINE + 2 or letters < 4:
            return [box]
        shown = label if len(label) <= letters else label[: letters - 1] + "…"
        place = f'x="{left + 3:.1f}" y="{(top + bottom) / 2 + 4:.1f}" pointer-events="none"'
        return [box, f"<text {place}>{_text(shown)}</text>"]

    def bound(self) -> list[str]:
        """The least memory that any plan needs."""
        y = self.y(self.program.arena_lower_bound)
        ends = f'x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"'
        return [f'<line {ends} stroke="#c00" stroke-dasharray="6 4"/>']

    def columns(self) -> list[str]:
        """Below the plot, a cell for each step that tells its layer and its live bytes."""
        cells = []
        for number, step in enumerate(self.program.calls):
            told = f"step {number}: {', '.join(step.loc) or step.kernel}, "
            told += f"{nbytes(self.use.live[number])} live"
            cells.append(_box(self.x(number), TOP + HEIGHT, WIDTH / self.steps, 22, "transparent",
                              "none", f"<title>{_text(told)}</title>"))  # fmt: skip
        return cells


def _box(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, inside: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}">{inside}</rect>'


def _text(text: str) -> str:
    """Text for XML: escaped, without the characters that it forbids."""
    allowed = (c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "_" for c in text)
    return escape("".join(allowed))
