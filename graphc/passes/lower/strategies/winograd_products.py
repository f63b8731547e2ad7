"""Products of Winograd's algorithm: at each point, inputs times weights in tiles of registers."""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.addresses import flatten_index, flatten_loads, unflatten_index
from graphc.ir.dtypes import f32, f64, i64
from graphc.ir.expr import Const, Expr, Index, Load, Reduce, cast
from graphc.ir.extents import as_dim
from graphc.ir.kernel import Buffer, Kernel, KernelBuilder
from graphc.ir.simplify import simplify
from graphc.ir.types import elements_of
from graphc.passes.analysis.computation import Output, flat_buffer
from graphc.passes.analysis.contraction import Match
from graphc.passes.analysis.convolution import Convolution
from graphc.passes.lower.strategies.column_operand import Panels, packed_panels
from graphc.passes.lower.strategies.tile_emitter import NOTHING, TileEmitter
from graphc.passes.lower.strategies.tile_plan import RegisterTileOptions, tile_plan
from graphc.passes.lower.transforms.winograd import TAPS, Winograd, both_ways

_NUMBERS = [Const(number, i64) for number in range(TAPS)]


class PointTiles(TileEmitter):
    """Tiles of the products at a point. The weights of all points lie together, panel by panel, in
    the order in which a block reads them."""

    def _column_element(self, where: dict, panel: Expr, j: int, v: Expr, at: dict) -> Expr:
        return simplify(self.packed[0].element({**where, **at}, panel, v + j))

    def panel_element(self, at: dict, panel: Expr) -> Load:
        return self.packed[0].element(at, panel, NOTHING)


def point_products(
    planes: Convolution, form: Winograd, block: int, options: RegisterTileOptions
) -> PointTiles:
    """Emits the products of a block: for each point, tiles times channels by panels of output
    channels, from an array `inputs` into an array `products`. Panels of weights that change from
    run to run are a temporary, which `transformed_panels` fills."""
    n, given = form.points, planes.match.computation
    i, j, t = Index("row_point", n), Index("column_point", n), Index("tile", block)
    c, o = planes.channels, Index("output", planes.columns)
    inputs = Buffer("inputs", f32, (n, n, block, c.extent))
    weights = Buffer("weights", f32, (n, n, c.extent, o.extent))
    products = Buffer("products", f32, (n, n, block, o.extent), "out")
    hole = Reduce("sum", inputs[i, j, t, c] * weights[i, j, c, o], (c,))
    outputs = (Output(products, (i, j, t, o), hole),)
    match = Match(
        replace(given, inputs=(inputs, weights, *given.inputs), outputs=outputs),
        indices=[i, j, t, o],
        offset=flatten_index((i, j, t, o), products.shape),
        exprs=[hole],
        hole=hole,
        a=flatten_loads(inputs[i, j, t, c], {inputs.name: inputs.shape}),
        b=transformed(planes, form, i, j, o),
        outer=[i, j],
        rows=[t],
        cols=[o],
        depth=[c],
    )
    plan = tile_plan(match, options, None)
    if not planes.changes:
        panels = packed_panels(replace(match, outer=[]), plan, match.b, [i, j, c], "panels")
        return PointTiles(match, plan, options, [panels])
    whole = as_dim((plan.columns + plan.panel - 1) // plan.panel)
    buffer = Buffer("panels", f32, (whole, n, n, c.extent, plan.panel))
    match.temporaries.append(buffer)
    return PointTiles(match, plan, options, [Panels(match.b, buffer, [], [i, j, c])])


def transformed_panels(
    planes: Convolution, form: Winograd, products: PointTiles, taps: Panels
) -> Kernel:
    """The kernel that transforms panels of weights at run time: G w G', a vector at a time."""
    k, (packed,), (i, j) = KernelBuilder(), products.packed, products.match.outer
    result = flat_buffer(replace(packed.buffer, access="out"))
    lanes, panel, depth = products.plan.lanes, products.plan.panel, planes.channels.extent
    down, right = (s.axis for s in planes.slides)
    extents = (packed.buffer.shape[0], depth)
    with k.loop(elements_of(extents), "parallel", name="p") as p:
        number, channel = map(k.let, unflatten_index(p, extents))
        for start in range(0, panel, lanes):
            with k.loop(lanes, "vector", name="v", width=lanes) as v:
                at: dict = {planes.channels: channel}
                tile = [
                    [k.let(taps.element({**at, down: y, right: x}, number, start + v))
                     for x in _NUMBERS]
                    for y in _NUMBERS
                ]  # fmt: skip
                for y, row in enumerate(both_ways(form.weights, tile, k.let)):
                    for x, value in enumerate(row):
                        place = {**at, i: Const(y, i64), j: Const(x, i64)}
                        into = packed.element(place, number, start + v)
                        k.store(result, simplify(into.index[0]), value)
    label = f"weights of {planes.match.computation.label}"
    return Kernel("winograd_weights", (flat_buffer(taps.buffer), result), k.body(), label)


def transformed(planes: Convolution, form: Winograd, i: Index, j: Index, o: Index) -> Expr:
    """The weights at a point for an output channel: G w G', in float64, rounded once."""
    match, taps = planes.match, (Index("row_tap", TAPS), Index("column_tap", TAPS))
    columns = unflatten_index(o, tuple(x.extent for x in match.cols))
    at: dict[Expr, Expr] = dict(zip(match.cols, columns))
    at.update(zip((s.axis for s in planes.slides), taps))
    weight = cast(simplify(match.b, at), f64)
    product = form.weight(i, taps[0]) * form.weight(j, taps[1]) * weight
    return cast(Reduce("sum", product, taps), f32)
