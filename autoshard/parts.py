"""Parts of mesh axes: where a program has use for them, and its shardings written over them.

Two key-value heads do not fill an axis of four devices, but a part of it: with the axis as two parts of two, the heads
take the major part and the queries of a group the minor one, where eight query heads take both. Parts are axes of a
mesh model that is cut (`MeshModel.cut`); what the caller sees of arguments and results stays on whole axes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from jax.sharding import AbstractMesh, AxisType, Mesh

from autoshard.costs import MeshModel, ShardingSpec, refined_spec
from autoshard.graph import LITERAL, Graph, Op
from autoshard.rules.base import Combine, OpRule
from autoshard.shardings import Axes, Fixed, Within

MOST_AXES = 3
"""Axes above one that a mesh is cut into at most: strategies and ways between shardings multiply with every one."""

LEAST_SHARE = 0.01
"""Share of a program's products that a dimension has to take part in for an axis to be cut for it."""


def useful_parts(graph: Graph, mesh: MeshModel, axes: Collection[str]) -> list[dict[str, tuple[int, ...]]]:
    """The parts in which a program has use for an axis: products run over a dimension that a part divides, not all.

    Args:
        graph: The program.
        mesh: The mesh, not cut.
        axes: The axes that may be cut.

    Returns:
        Per axis, minor ones first: the axis and the sizes of its parts, major first. Dimensions that no whole axis of
        the mesh divides come first, then those with most products, as far as cuts agree.
    """
    room = MOST_AXES - sum(size > 1 for size in mesh.sizes.values())
    found = []
    for axis in reversed([axis for axis in mesh.axis_names if axis in axes] if room > 0 else []):
        bounds = [1, mesh.size(axis)]
        for bound in _wanted(graph, mesh, axis):
            refined = sorted({*bounds, bound})
            fits = bound not in _sizes(bounds) and all(b % a == 0 for a, b in pairwise(refined))
            bounds = refined if fits and len(refined) <= room + 2 else bounds
        found += [{axis: _sizes(bounds)}] if len(bounds) > 2 else []
    return found


def _sizes(bounds: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the parts between boundaries."""
    return tuple(b // a for a, b in pairwise(bounds))


def _wanted(graph: Graph, mesh: MeshModel, axis: str) -> list[int]:
    """The sizes of a major part of an axis that dimensions of products divide by, most wanted first."""
    size = mesh.size(axis)
    others = [other for name, other in mesh.sizes.items() if name != axis and other > 1]
    flops: dict[tuple[bool, int], float] = defaultdict(float)
    total = 0.0
    for op in graph.ops:
        if _multiplies(op.rule):
            total += op.rule.flops * op.trips
            sizes = {factor.size for factor in op.rule.factors}
            wanted = {(any(n % other == 0 for other in others), math.gcd(n, size)) for n in sizes}
            for key in wanted:
                flops[key] += op.rule.flops * op.trips
    kept = [key for key in flops if 1 < key[1] < size and flops[key] >= LEAST_SHARE * total]
    return list(dict.fromkeys(bound for _, bound in sorted(kept, key=lambda key: (key[0], -flops[key], key[1]))))


def _multiplies(rule: OpRule) -> bool:
    return rule.fixed is None and rule.pinned and any(factor.combine is Combine.SUM for factor in rule.factors)


def divided_ops(graph: Graph, mesh: MeshModel) -> frozenset[int]:
    """The operations whose strategies use parts of axes by themselves; the others use an axis as a whole or not at all.

    Those with a dimension of products that takes a part but not the whole, and those that are joined to them by a
    value, which operations that only map or rename elements pass on.
    """
    wholes = [mesh.whole_sizes[axis] for axis in mesh.parts]
    extents = {factor.size for op in graph.ops if _multiplies(op.rule) for factor in op.rule.factors}
    divided = {extent for extent in extents if any(1 < math.gcd(extent, size) < size for size in wholes)}
    queue = [k for k, op in enumerate(graph.ops) if any(factor.size in divided for factor in op.rule.factors)]
    found = set(queue)
    while queue:
        for neighbour in _neighbours(graph, graph.ops[queue.pop()]):
            if neighbour not in found:
                found.add(neighbour)
                queue += [neighbour] if graph.ops[neighbour].rule.fusible else []
    return frozenset(k for k in found if graph.ops[k].primitive != "argument")


def _neighbours(graph: Graph, op: Op) -> Iterable[int]:
    for value in {*op.operands, *op.results} - {LITERAL}:
        yield graph.values[value].producer[0]
        yield from (use.op for use in graph.uses(value))


def refined_axes_of(axes: Iterable[str], mesh: MeshModel) -> Axes:
    """Axes with the parts of those that are cut in their place; axes that the mesh lacks stay as they are."""
    known = [axis for axis in axes if axis in mesh.whole_sizes]
    return (
        *refined_spec(ShardingSpec.of(known), mesh.sizes, mesh.whole_sizes).axes,
        *(axis for axis in axes if axis not in mesh.whole_sizes),
    )


def refined_fixed(fixed: Fixed, mesh: MeshModel) -> Fixed:
    """What is fixed, over the axes of a mesh that is cut."""
    return tuple(
        None if dim is None
        else Within(refined_axes_of(dim.axes, mesh)) if isinstance(dim, Within)
        else refined_axes_of(dim, mesh)
        for dim in fixed
    )  # fmt: skip


def refined_graph(graph: Graph, mesh: MeshModel) -> Graph:
    """A graph whose operations are fixed over the axes of a mesh that is cut."""
    ops = tuple(
        replace(
            op,
            fixed=None if op.fixed is None else refined_fixed(op.fixed, mesh),
            rule=op.rule if op.rule.fixed is None else _refined_rule(op.rule, op.rule.fixed, mesh),
        )
        for op in graph.ops
    )
    return Graph(graph.values, ops, graph.arguments, graph.outputs, graph.unruled)


def _refined_rule(rule: OpRule, fixed: Sequence[ShardingSpec], mesh: MeshModel) -> OpRule:
    specs = [ShardingSpec.of(*(refined_axes_of(dim, mesh) for dim in spec.dims)) for spec in fixed]
    inner = [replace(collective, axes=refined_axes_of(collective.axes, mesh)) for collective in rule.inner]
    return replace(rule, fixed=tuple(specs), inner=tuple(inner))


def divided_mesh(mesh: Mesh | AbstractMesh, model: MeshModel) -> Mesh | AbstractMesh:
    """A mesh with axes in parts: the same devices in the same order.

    Args:
        mesh: A mesh with Auto axes.
        model: Its model, cut.
    """
    if not model.parts:
        return mesh
    names, sizes = tuple(model.sizes), tuple(model.sizes.values())
    auto = (AxisType.Auto,) * len(names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices.reshape(sizes), names, axis_types=auto)
    return AbstractMesh(sizes, names, axis_types=auto)
