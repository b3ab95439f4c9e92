"""Tables of cheapest paths: one per (mesh, rank, size class).

What a step costs depends on the shape only through the bytes of the shard. So where every dimension divides, shapes of
equal bytes share one table. Where some do not, a step that splits a dimension anew has to keep its padded extent.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .edges import Array, Edges, Indices, canon_of, edges_of, inverse_order
from .laws import collective_law
from .mesh import MeshModel
from .search import PathTable
from .steps import Piece, Sizes, StepGraph, step_graph


def path_table(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> PathTable:
    """The table for tensors of `shape`."""
    if not any(_types(shape, mesh)):
        return _even_table(mesh, len(shape), math.prod(shape) * itemsize, wire_scale)
    return _uneven_table(mesh, shape, itemsize, wire_scale)


@lru_cache(maxsize=256)
def _even_table(mesh: MeshModel, rank: int, tensor_bytes: int, wire_scale: float) -> PathTable:
    names, sizes = split_axes(mesh)
    graph, edges = step_graph(sizes, rank), edges_of(sizes, rank)
    shard_bytes = tensor_bytes / graph.parts.prod(axis=1)
    step_bytes = tensor_bytes / edges.steps.parts.prod(axis=1)
    seconds, wire_bytes = _step_prices(edges, edges.steps.law, step_bytes * wire_scale, names, mesh)
    move_seconds = _totals(edges.steps.move, seconds, len(edges.moves))[edges.move]
    move_bytes = _totals(edges.steps.move, wire_bytes, len(edges.moves))[edges.move]
    return PathTable(graph, edges, shard_bytes, move_seconds, move_bytes, canon_of(sizes, (0,) * rank))


@lru_cache(maxsize=256)
def _uneven_table(mesh: MeshModel, shape: tuple[int, ...], itemsize: int, wire_scale: float) -> PathTable:
    names, sizes = split_axes(mesh)
    graph, edges = step_graph(sizes, len(shape)), edges_of(sizes, len(shape))
    extent = np.array(shape, dtype=np.int64)
    padded = -(-extent // graph.parts)
    shard_bytes = padded.prod(axis=1).astype(np.float64) * itemsize
    edge_of_step, law, parts = _edge_steps(edges)
    held = padded_extents(extent, graph.parts[edges.source], graph.parts[edges.target])[edge_of_step]
    step_bytes = (held // parts).prod(axis=1).astype(np.float64) * itemsize
    seconds, wire_bytes = _step_prices(edges, law, step_bytes * wire_scale, names, mesh)
    exact = _exact(graph, edges, extent)
    edge_seconds = np.where(exact, _totals(edge_of_step, seconds, len(exact)), np.inf)
    edge_bytes = _totals(edge_of_step, wire_bytes, len(exact))
    return PathTable(graph, edges, shard_bytes, edge_seconds, edge_bytes, canon_of(sizes, _types(shape, mesh)))


def padded_extents(extent: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sizes that a move counts: every dimension padded up to whole shards, before and after it."""
    return np.maximum(before * -(-extent // before), after * -(-extent // after))


def _totals(group: Indices, values: Array, count: int) -> Array:
    return np.bincount(group, weights=values, minlength=count).astype(np.float64)


@lru_cache(maxsize=1 << 14)
def _types(shape: tuple[int, ...], mesh: MeshModel) -> tuple[int, ...]:
    """0 for a dimension that divides however it is split, else its size: dimensions of one type are interchangeable."""
    return tuple(size if size % mesh.num_devices else 0 for size in shape)


def split_axes(mesh: MeshModel) -> tuple[tuple[str, ...], Sizes]:
    """Names and sizes of the axes above 1: the others split nothing."""
    names = tuple(name for name in mesh.axis_names if mesh.size(name) > 1)
    return names, tuple(mesh.size(name) for name in names)


def piece_name(piece: Piece, names: tuple[str, ...], mesh: MeshModel) -> str:
    """The name of an axis or of a part of it."""
    axis, major, size = piece
    return names[axis] if size == mesh.size(names[axis]) else mesh.part_name(names[axis], major, size)


def _step_prices(
    edges: Edges, step_law: Indices, step_bytes: Array, names: tuple[str, ...], mesh: MeshModel
) -> tuple[Array, Array]:
    """Seconds and wire bytes of every step."""
    seconds, wire_bytes = np.zeros(len(step_law)), np.zeros(len(step_law))
    by_law = np.argsort(step_law, kind="stable")
    bounds = np.searchsorted(step_law[by_law], np.arange(len(edges.steps.laws) + 1))
    for i, (kind, pieces) in enumerate(edges.steps.laws):
        law = collective_law(kind, tuple(piece_name(piece, names, mesh) for piece in pieces), mesh)
        members = by_law[bounds[i] : bounds[i + 1]]
        seconds[members] = law.seconds(step_bytes[members])
        wire_bytes[members] = law.wire_bytes_per_byte * step_bytes[members]
    return seconds, wire_bytes


def _edge_steps(edges: Edges) -> tuple[Indices, Indices, NDArray[np.int64]]:
    """The collective steps of every edge: their edge, law, and parts in the edge's own order of dimensions."""
    first = np.searchsorted(edges.steps.move, np.arange(len(edges.moves) + 1))
    counts = np.diff(first)[edges.move]
    edge = np.repeat(np.arange(len(edges.move)), counts)
    step = np.repeat(first[edges.move], counts) + np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.array([inverse_order(order) for order in edges.orders], dtype=np.intp)[edges.order[edge]]
    return edge, edges.steps.law[step], np.take_along_axis(edges.steps.parts[step], places, axis=1)


def _exact(graph: StepGraph, edges: Edges, extent: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which moves XLA carries out exactly on a shape that does not divide everywhere.

    A single step is exact if every dimension that it splits differently was or becomes whole, or keeps its padded
    extent; a run only where those dimensions divide.
    """
    before, after = graph.parts[edges.source], graph.parts[edges.target]
    changed = before != after
    same_extent = before * -(-extent // before) == after * -(-extent // after)
    fine = np.where(
        edges.is_run[edges.move][:, None],
        extent % np.maximum(before, after) == 0,
        (np.minimum(before, after) == 1) | same_extent,
    )
    return np.asarray((~changed | fine).all(axis=1), dtype=np.bool_)
