"""What is decided about a leaf's sharding before any rule: by a flax box or variable around it, or by where it lives.

Boxes and variables are told by what they can do, so that flax need not be installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from autoshard.errors import SpecError

logger: logging.Logger = logging.getLogger("autoshard")

SpecEntry = str | tuple[str, ...] | None
"""Mesh axes of one dimension; None while it is undecided."""

SpecEntries = tuple[SpecEntry, ...]

LogicalAxes = Mapping[str, SpecEntry] | Sequence[tuple[str, SpecEntry]]
"""Logical axis names to mesh axes; of several pairs with one name the first whose mesh axes are unused counts."""


def decided_entries(
    name: str, leaf: Any, rank: int, mesh: Mesh | AbstractMesh, logical_axes: LogicalAxes | None
) -> SpecEntries:
    """What a leaf's annotation and its own sharding decide, one entry per dimension.

    Args:
        name: Path of the leaf, for messages.
        leaf: An array, or a box or variable that holds one.
        rank: Rank of the array.
        mesh: The mesh.
        logical_axes: Mesh axes of the logical names in annotations.

    Returns:
        Mesh axes per dimension; None where nothing is decided.

    Raises:
        SpecError: The annotation has more dimensions than the array.
    """
    metadata = _metadata(leaf) if is_box(leaf) else {}
    annotated = metadata.get("out_sharding") or ()
    entries = tuple(annotated.spec if isinstance(annotated, NamedSharding) else annotated)
    if len(entries) > rank:
        raise SpecError(f"{name}: annotated {entries}, the array has {rank} dimensions")
    pairs = [*_pairs(logical_axes), *_pairs(metadata.get("sharding_rules"))]
    used: set[str] = set()
    found: list[SpecEntry] = []
    for entry in entries:
        axes = tuple(axis for logical in axes_of(entry) for axis in _on_mesh(name, logical, pairs, used, mesh))
        used.update(axes)
        found.append(entry_of(axes))
    return merged((*found, *(None,) * (rank - len(found))), _own_entries(leaf, mesh, rank))


def is_box(node: Any) -> bool:
    """Whether it is one annotated array: a box of flax linen, or a variable of flax nnx."""
    return callable(getattr(node, "get_partition_spec", None)) or (
        callable(getattr(node, "get_metadata", None)) and callable(getattr(node, "set_metadata", None))
    )


def value_of(leaf: Any) -> Any:
    """What a box holds; other leaves as they are."""
    return next(iter(jax.tree.leaves(leaf)), None) if is_box(leaf) else leaf


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes of one dimension."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def entry_of(axes: tuple[str, ...]) -> SpecEntry:
    """The inverse of `axes_of`; no axes are undecided."""
    return None if not axes else axes[0] if len(axes) == 1 else axes


def spec_entries(spec: PartitionSpec | NamedSharding | None, rank: int) -> SpecEntries:
    """One entry per dimension of a PartitionSpec or NamedSharding; what is unconstrained is undecided."""
    dims = () if spec is None else tuple(spec.spec if isinstance(spec, NamedSharding) else spec)
    return (*(entry_of(axes_of(entry)) for entry in dims), *(None,) * (rank - len(dims)))


def merged(decided: SpecEntries, wanted: SpecEntries) -> SpecEntries:
    """``decided``, completed by those entries of ``wanted`` whose dimension and axes are still free."""
    used = {axis for entry in decided for axis in axes_of(entry)}
    return tuple(have if have is not None or used & set(axes_of(want)) else want for have, want in zip(decided, wanted))


def _metadata(box: Any) -> Mapping[str, Any]:
    """What is annotated, by the names that nnx variables use; boxes of linen have fields of other names."""
    reader: Any = getattr(box, "get_metadata", None)
    if reader is None:
        return {"out_sharding": box.names, "sharding_rules": getattr(box, "rules", None)}
    return dict(reader())


def _pairs(axes: LogicalAxes | None) -> Iterable[tuple[str, SpecEntry]]:
    if axes is None:
        return ()
    return axes.items() if isinstance(axes, Mapping) else axes


def _on_mesh(
    name: str, logical: str, pairs: Sequence[tuple[str, SpecEntry]], used: set[str], mesh: Mesh | AbstractMesh
) -> tuple[str, ...]:
    """The mesh axes of a logical name, or the name itself if it is one."""
    targets = [axes_of(axes) for known, axes in pairs if known == logical]
    if targets:
        return next((axes for axes in targets if not used & set(axes)), ())
    if logical in mesh.axis_names:
        return (logical,)
    logger.warning(
        "%s: annotation %r is neither an axis of the mesh nor in logical_axes; it is left to the rules", name, logical
    )
    return ()


def _own_entries(leaf: Any, mesh: Mesh | AbstractMesh, rank: int) -> SpecEntries:
    """The sharding that an array already has on this mesh's axes."""
    sharding = getattr(value_of(leaf), "sharding", None)
    on_this = isinstance(sharding, NamedSharding) and sharding.mesh.shape == mesh.shape
    return spec_entries(sharding if on_this else None, rank)
