"""An op for some frames of its result, made of some frames of its operands.

What has to change beside the operands, if anything does, is a number that speaks of time: padding,
an extent in the target of a Reshape, a position that is picked. Candidates are tried in turn. One
is taken if its body is the old one with time shifted, padding included. So nothing here asks which
operator it is, and an operator that needs more is refused instead of computed wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphc.errors import GraphcError, UnsupportedError
from graphc.ir.dtypes import i64
from graphc.ir.expr import Call, Const, Expr, Index, Load, call, transform
from graphc.ir.graph import Op, Region, Value, constant_op
from graphc.ir.infer import infer_op, op_body
from graphc.ir.simplify import from_poly, simplify, to_poly
from graphc.ir.window import WINDOW, make_window
from graphc.passes.analysis.structure import has_body, own_index
from graphc.records import dataclass

LARGE = 1 << 30


@dataclass
class Part:
    """Frames `low` to before `high` along `axis` of an op's results (axis None: all of results that
    have no frames). `dims` are those of the moving operands along which frames run, `shifts` the
    first frames that these have, and `beyond` how many it takes before the first and after the last
    frame."""

    op: Op
    axis: int | None
    low: int
    high: int
    dims: Mapping[int, int]
    shifts: Mapping[int, int]
    beyond: tuple[int, int]

    def made(self, region: Region, operands: list[Value | None]) -> list[Value]:
        """The results, in a region."""
        moved = self._moved(operands)
        if moved is not None:
            return [moved]
        for attrs, constants in self._candidates():
            inputs = list(operands)
            added = {n: constant_op(array, loc=self.op.loc) for n, array in constants.items()}
            for number, constant in added.items():
                inputs[number] = constant.output
            op = Op(self.op.defn, inputs, attrs, len(self.op.outputs), (), self.op.loc)
            if self._is_right(op):
                for constant in added.values():
                    region.append(constant)
                region.append(op)
                for new, old in zip(op.outputs, self.op.outputs):
                    new.name = old.name
                return op.outputs
            op.drop_inputs()
        span = "its results" if self.axis is None else f"frames {self.low} to {self.high - 1}"
        raise UnsupportedError(
            f"{self.op.where()}: streaming cannot make an op that computes {span} alone"
        )

    def _moved(self, operands: list[Value | None]) -> Value | None:
        """The operand that is the result, if along time the op does no more than pick frames."""
        if self.axis is None or len(self.op.outputs) != 1 or not has_body(self.op):
            return None
        body = self._expected(0)
        if not isinstance(body, Load):
            return None
        value = operands[int(body.source)]
        own = self._own(0)
        if value is None or value.tensor.dims != tuple(x.extent for x in own):
            return None
        same = [a is b or b.extent == 1 for a, b in zip(body.index, own)]
        return value if len(body.index) == len(own) and all(same) else None

    def _own(self, output: int) -> list[Index]:
        own = list(own_index(self.op.outputs[output]))
        if self.axis is not None:
            own[self.axis] = Index(own[self.axis].name, self.high - self.low)
        return own

    def _expected(self, output: int) -> Expr:
        """The body that the new op should have."""
        body = op_body(self.op, output)
        if self.axis is not None:
            index = own_index(self.op.outputs[output])[self.axis]
            body = simplify(body, {index: self._own(output)[self.axis] + self.low})

        def shift(node: Expr) -> Expr | None:
            dim = self.dims.get(int(node.source)) if isinstance(node, Load) else None
            if dim is None:
                return None
            assert isinstance(node, Load)
            places = list(node.index)
            places[dim] = places[dim] - self.shifts[int(node.source)]
            return Load(node.source, places, node.dtype)

        return simplify(transform(body, shift))

    def _is_right(self, op: Op) -> bool:
        try:
            infer_op(op)
        except GraphcError:
            return False
        for output, (new, old) in enumerate(zip(op.outputs, self.op.outputs)):
            if not old.uses:
                continue
            dims = list(old.tensor.dims)
            if self.axis is not None:
                dims[self.axis] = self.high - self.low
            if new.tensor.dims != tuple(dims) or new.tensor.dtype is not old.tensor.dtype:
                return False
            if not has_body(self.op):
                continue
            wanted = _normal(self._expected(output))
            if not has_body(op) or _normal(simplify(op_body(op, output))) is not wanted:
                return False
        return True

    # ------------------------------------------------------------ what may have to change

    def _candidates(self) -> Iterator[tuple[dict[str, Any], dict[int, np.ndarray]]]:
        """Attributes, and constants in place of operands."""
        yield self.op.attrs, {}
        padded = self._padded()
        if padded is not None:
            yield padded, {}
        for number, value in enumerate(self.op.inputs):
            array = None if value is None else value.constant
            if array is not None and array.dtype.kind == "i" and array.ndim < 2:
                for changed in self._changed(array):
                    yield self.op.attrs, {number: changed.astype(array.dtype)}
        yield from self._cut()

    def _padded(self) -> dict[str, Any] | None:
        """Attributes of a window with other padding along time."""
        if "pads" not in self.op.defn.attrs or self.axis is None or self.axis < 2:
            return None
        attrs, names = self.op.attrs, [param.name for param in self.op.defn.params]
        kernel = attrs.get("kernel_shape")
        if not kernel and "w" in names:
            kernel = self.op.operand(names.index("w")).tensor.dims[2:]
        extents = self.op.operand(0).tensor.dims[2:]
        if not kernel or self.axis - 2 >= len(extents):
            return None
        given = {name: attrs[name] for name in WINDOW if name in attrs}
        window = make_window(extents, kernel, **given, ceil_mode=attrs.get("ceil_mode", 0))
        pads = [axis.begin for axis in window] + [axis.end for axis in window]
        rank = len(extents)
        pads[self.axis - 2], pads[self.axis - 2 + rank] = self.beyond
        return {**self.op.attrs, "pads": tuple(pads), "auto_pad": "NOTSET"}

    def _changed(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """A constant with another extent, other padding, or other positions."""
        axis, (before, after) = self.axis, self.beyond
        if axis is not None:
            rank = len(self.op.outputs[0].tensor.dims)
            for size, values in ((rank, [self.high - self.low]), (2 * rank, [before, after])):
                if array.ndim and len(array) == size:
                    changed = array.copy()
                    changed[axis::rank] = values
                    yield changed
            return
        for shift in set(self.shifts.values()):
            yield np.where(array >= 0, array - shift, array)

    def _cut(self) -> Iterator[tuple[dict[str, Any], dict[int, np.ndarray]]]:
        """The constants of an op that takes elements from `starts` to `ends` along `axes`."""
        names = [param.name for param in self.op.defn.params]
        if not {"starts", "ends"} <= set(names):
            return
        numbers = {n: names.index(n) for n in ("starts", "ends", "axes") if n in names}
        given = {
            name: None if n >= len(self.op.inputs) else self.op.inputs[n]
            for name, n in numbers.items()
        }
        arrays = {name: value.constant for name, value in given.items() if value is not None}
        if any(array is None for array in arrays.values()):
            return
        starts, ends = (arrays[n].copy() for n in ("starts", "ends"))  # type: ignore[union-attr]
        axes = arrays.get("axes")
        rank = len(self.op.operand(0).tensor.dims)
        along = [int(a) % rank for a in (range(len(starts)) if axes is None else axes)]
        dim = self.dims.get(0)
        if dim not in along:
            return
        place = along.index(dim)
        if self.axis is not None:
            starts[place], ends[place] = 0, LARGE
        else:
            shift = self.shifts[0]
            for ends_of in (starts, ends):
                ends_of[place] -= shift if 0 <= ends_of[place] < LARGE else 0
        yield self.op.attrs, {numbers["starts"]: starts, numbers["ends"]: ends}


def _normal(body: Expr) -> Expr:
    """A body with the numbers in comparisons of indices on the right."""

    def order(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and node.op.rule == "compare"):
            return None
        if any(arg.dtype is not i64 for arg in node.args):
            return None
        difference = to_poly(simplify(node.args[0] - node.args[1]))
        number = difference.pop((), 0)
        return call(node.op.name, from_poly(difference), Const(-number, i64))

    return transform(body, order)
