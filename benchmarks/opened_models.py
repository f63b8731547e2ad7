"""ONNX models of one size, opened: a size of an input becomes a symbol.

An export for one size holds it in the targets of Reshape, Expand and Resize, and in constants such
as positions and masks. `opened` replaces them by what an export of open size would have: shapes
computed from shapes, and slices of the constants. It runs through the nodes with two sizes, that of
the file and another, and follows which dimensions differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from graphc.errors import ModelError

INDEXED = ("Gather", "GatherElements", "GatherND")

Axes = Mapping[int, tuple[str, int]]


@dataclass(frozen=True)
class Factor:
    """A size that was opened, where it appears first: the dimension of a tensor. `name` is the
    symbol's if the tensor is an input."""

    old: int
    new: int
    tensor: str
    axis: int


@dataclass(frozen=True)
class Dim:
    """A dimension: a number times open factors, in the order in which they run."""

    number: int
    factors: tuple[Factor, ...] = ()

    @property
    def old(self) -> int:
        return self.number * int(np.prod([f.old for f in self.factors], initial=1))

    @property
    def new(self) -> int:
        return self.number * int(np.prod([f.new for f in self.factors], initial=1))


def opened(model: onnx.ModelProto, axes: Mapping[str, Axes]) -> onnx.ModelProto:
    """A copy of a model whose inputs have symbols for some dimensions: by input and axis, the name
    of the symbol and another size, at which the model can run too. ModelError names a node that
    cannot be opened."""
    return _Opening(model).run(axes)


class _Opening:
    def __init__(self, model: onnx.ModelProto):
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        graph = self.model.graph
        self.constants = {t.name: t for t in graph.initializer}
        inferred = shape_inference.infer_shapes(_without_weights(self.model), data_prop=True).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        self.types = {v.name: v.type for v in values}
        self.dims: dict[str, tuple[Dim, ...]] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.shapes: dict[Factor, str] = {}
        self.slices: dict[tuple, str] = {}
        self.versions = {o.domain: o.version for o in self.model.opset_import}

    def run(self, axes: Mapping[str, Axes]) -> onnx.ModelProto:
        graph = self.model.graph
        for value in graph.input:
            self.dims[value.name] = self._opened_input(value, axes.get(value.name, {}))
        for tensor in graph.initializer:
            self.dims[tensor.name] = tuple(Dim(d) for d in tensor.dims)
        for node in graph.node:
            self._visit(node)
        for value in graph.output:
            for place, dim in enumerate(self.dims[value.name]):
                if dim.factors:
                    value.type.tensor_type.shape.dim[place].dim_param = f"{value.name}_{place}"
        del graph.node[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        read = {name for node in graph.node for name in node.input}
        for name in set(self.constants) - read:
            graph.initializer.remove(self.constants[name])
        return self.model

    def _opened_input(self, value: onnx.ValueInfoProto, axes: Axes) -> tuple[Dim, ...]:
        dims = []
        for place, dim in enumerate(value.type.tensor_type.shape.dim):
            if place in axes:
                name, new = axes[place]
                dims.append(Dim(1, (Factor(dim.dim_value, new, value.name, place),)))
                dim.dim_param = name
            else:
                dims.append(Dim(dim.dim_value))
        return tuple(dims)

    def _visit(self, node: onnx.NodeProto) -> None:
        target = self.constants.get(node.input[1]) if len(node.input) > 1 else None
        if node.op_type == "Reshape" and target is not None:
            self._reshape(node, numpy_helper.to_array(target))
        elif node.op_type == "Expand" and target is not None:
            kept = numpy_helper.to_array(target).copy()
            source = self.dims[node.input[0]]
            for back in range(1, len(source) + 1):
                if source[-back].factors:
                    kept[-back] = 1
            node.input[1] = self._constant(kept)
            self._infer(node)
        elif node.op_type == "Resize" and len(node.input) > 3 and node.input[3] in self.constants:
            self._resize(node)
        else:
            self._slice_constants(node)
            self._infer(node)
        self.nodes.append(node)

    # ------------------------------------------------------------ shapes

    def _reshape(self, node: onnx.NodeProto, target: np.ndarray) -> None:
        source = self.dims[node.input[0]]
        wanted = _reshaped([d.old for d in source], target)
        dims = _regrouped(source, wanted)
        if dims is None:
            raise ModelError(f"{node.name}: {source} does not reshape to {wanted}")
        self.dims[node.output[0]] = dims
        if any(d.factors for d in dims):
            node.input[1] = self._shape(dims)

    def _resize(self, node: onnx.NodeProto) -> None:
        sizes = numpy_helper.to_array(self.constants[node.input[3]])
        known = [d for dims in self.dims.values() for d in dims if d.factors]
        dims = []
        for place, (size, own) in enumerate(zip(sizes, self.dims[node.input[0]])):
            fitting = [d for d in known if d.old == size and d.factors[-1].axis == place]
            opens = own.factors and fitting
            dims.append(fitting[0] if opens else Dim(int(size)))
        node.input[3] = self._shape(dims)
        self.dims[node.output[0]] = tuple(dims)

    def _shape(self, dims: Sequence[Dim]) -> str:
        """A tensor of dims: a constant with one -1 if one is open, else computed from shapes."""
        opens = [d for d in dims if d.factors]
        if len(opens) == 1:
            return self._constant(np.array([-1 if d.factors else d.number for d in dims]))
        return self._shape_of(dims)

    def _shape_of(self, dims: Sequence[Dim]) -> str:
        return self._add("Concat", [self._size(d) for d in dims], axis=0)

    def _size(self, dim: Dim) -> str:
        """A dimension as a tensor of one element."""
        product = self._constant(np.array([dim.number])) if dim.number > 1 else ""
        for factor in dim.factors:
            size = self._extent(factor)
            product = self._add("Mul", [product, size]) if product else size
        return product or self._constant(np.array([1]))

    def _extent(self, factor: Factor) -> str:
        if factor not in self.shapes:
            shape = self._add("Shape", [factor.tensor])
            place = self._constant(np.array([factor.axis]))
            self.shapes[factor] = self._add("Gather", [shape, place], axis=0)
        return self.shapes[factor]

    # ------------------------------------------------------------ constants of the size

    def _slice_constants(self, node: onnx.NodeProto) -> None:
        """Cuts constants down to the sizes of what they meet. Constants of indices, and what meets
        them alone, are cut along every axis that has the size of an opened one."""
        computed = [self.dims[name] for name in node.input if name and name not in self.constants]
        for number, name in enumerate(node.input):
            tensor = self.constants.get(name)
            if tensor is None:
                continue
            if node.op_type in ("Add", "Mul", "Where", "Sub", "Div"):
                dims = _met(self.dims[name], computed)
            elif node.op_type == "Concat":
                dims = _repeated(self.dims[name], computed[0])
            elif node.op_type == "LSTM" and number in (5, 6):
                dims = (self.dims[name][0], computed[0][1], self.dims[name][2])
            elif node.op_type == "And" or number == 1 and node.op_type in INDEXED:
                dims = self._of_opened_sizes(self.dims[name])
            else:
                continue
            if dims != self.dims[name]:
                sliced = any(d.factors and d.old > 1 for d in dims)
                node.input[number] = self._sliced(name, dims) if sliced else self._wide(name, dims)

    def _wide(self, name: str, dims: tuple[Dim, ...]) -> str:
        """A constant of one row, repeated."""
        wide = self._add("Expand", [name, self._shape_of(dims)])
        self._know(wide, name, dims)
        return wide

    def _know(self, made: str, name: str, dims: tuple[Dim, ...]) -> None:
        """Notes the type of a value that is made of a constant."""
        elem = self.constants[name].data_type
        self.types[made] = helper.make_tensor_type_proto(elem, [d.old for d in dims])
        self.dims[made] = dims

    def _of_opened_sizes(self, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        sizes = {d.old: d for n in self.model.graph.input for d in self.dims[n.name] if d.factors}
        return tuple(sizes.get(d.old, d) if d.old > 1 else d for d in dims)

    def _sliced(self, name: str, dims: tuple[Dim, ...]) -> str:
        key = (name, dims)
        if key not in self.slices:
            axes = [n for n, d in enumerate(dims) if d.factors]
            ends = self._add("Concat", [self._size(dims[n]) for n in axes], axis=0)
            begins = self._constant(np.zeros(len(axes), np.int64))
            cut = self._add("Slice", [name, begins, ends, self._constant(np.array(axes))])
            self._know(cut, name, dims)
            self.slices[key] = cut
        return self.slices[key]

    # ------------------------------------------------------------ other nodes

    def _infer(self, node: onnx.NodeProto) -> None:
        """Dims of the results of a node: those of an operand where they are its, else their own."""
        types, data = {}, {}
        for name in filter(None, node.input):
            tensor = self.constants.get(name)
            elem = (
                tensor.data_type if tensor is not None else self.types[name].tensor_type.elem_type
            )
            shape = [d.new for d in self.dims[name]]
            types[name] = helper.make_tensor_type_proto(elem, shape)
            if tensor is not None and len(tensor.raw_data) <= 1024:
                data[name] = tensor
        schema = onnx.defs.get_schema(node.op_type, self.versions[node.domain], node.domain)
        results = shape_inference.infer_node_outputs(schema, node, types, data)
        operands = [self.dims[name] for name in node.input if name]
        for name, type in results.items():
            new = [d.dim_value for d in type.tensor_type.shape.dim]
            if name not in self.types:
                self.types[name] = type
            old = [d.dim_value for d in self.types[name].tensor_type.shape.dim]
            self.dims[name] = tuple(
                _known(place, sizes, operands) or Dim(1, (Factor(*sizes, name, place),))
                for place, sizes in enumerate(zip(old, new, strict=True))
            )

    def _constant(self, array: np.ndarray) -> str:
        name = f"opened_{len(self.constants)}"
        tensor = numpy_helper.from_array(np.asarray(array, np.int64), name)
        self.model.graph.initializer.append(tensor)
        self.constants[name] = tensor
        self.dims[name] = tuple(Dim(n) for n in tensor.dims)
        return name

    def _add(self, op: str, inputs: Sequence[str], **attributes: int) -> str:
        name = f"opened_{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name


def _known(place: int, sizes: tuple[int, int], operands: Sequence[tuple[Dim, ...]]) -> Dim | None:
    """The dimension of these sizes that an operand has, at the same place rather than another."""
    old, new = sizes
    if old == new:
        return Dim(old)
    same = [d[place] for d in operands if place < len(d)]
    every = [dim for dims in operands for dim in dims]
    return next((d for d in (*same, *every) if (d.old, d.new) == sizes), None)


def _met(dims: tuple[Dim, ...], others: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """Dims of a constant, opened where the operand that it meets is open."""
    cut = list(dims)
    for back in range(1, len(dims) + 1):
        met = next((o[-back] for o in others if len(o) >= back and o[-back].factors), None)
        if met is not None and dims[-back].old > 1:
            cut[-back] = met
    return tuple(cut)


def _repeated(dims: tuple[Dim, ...], other: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dims of a constant of one row, those of an operand where that has opened rows."""
    return tuple(o if o.factors and o.old == 1 else d for d, o in zip(dims, other))


def _reshaped(shape: Sequence[int], target: np.ndarray) -> list[int]:
    wanted = [shape[n] if d == 0 else int(d) for n, d in enumerate(target)]
    if -1 in wanted:
        rest = int(np.prod([d for d in wanted if d != -1]))
        wanted[wanted.index(-1)] = int(np.prod(shape)) // rest
    return wanted


def _regrouped(source: Sequence[Dim], wanted: Sequence[int]) -> tuple[Dim, ...] | None:
    """The factors of dims in the groups of a shape; None if a group would cut one."""
    atoms: list[Factor | int] = []
    for dim in source:
        atoms += [*dim.factors, *([dim.number] if dim.number > 1 else [])]
    dims = []
    for size in wanted:
        group = _group(atoms, size)
        if group is None:
            return None
        dims.append(group)
    if atoms and dims:  # of size 1
        left = tuple(a for a in atoms if isinstance(a, Factor))
        dims[-1] = Dim(dims[-1].number, dims[-1].factors + left)
    return tuple(dims)


def _group(atoms: list[Factor | int], size: int) -> Dim | None:
    """Takes the first atoms, whose product is `size`; None if they have none of that product."""
    number, factors, rest = 1, [], size
    while atoms and isinstance(atoms[0], Factor) and atoms[0].old == 1:
        factors.append(atoms.pop(0))
        if size == 1:
            return Dim(1, tuple(factors))
    while rest > 1:
        atom = atoms.pop(0)
        old = atom.old if isinstance(atom, Factor) else atom
        if isinstance(atom, int) and atom % rest == 0 and atom > rest:
            atoms.insert(0, atom // rest)
            atom = old = rest
        if rest % old:
            return None
        rest //= old
        if isinstance(atom, Factor):
            factors.append(atom)
        else:
            number *= atom
    return Dim(number, tuple(factors))


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose large initializers are inputs: the shapes are the same, and it is small."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    large = [t for t in small.graph.initializer if len(t.raw_data) > 1024]
    for tensor in large:
        type = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        small.graph.input.append(onnx.ValueInfoProto(name=tensor.name, type=type))
        small.graph.initializer.remove(tensor)
    return small
