"""Between our sharding specs and JAX's: meshes, PartitionSpecs, NamedShardings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.costs import ShardingSpec
from autoshard.errors import MeshError

DEVICE_MEMORY = "device"
"""What JAX calls the memory that arrays live in unless they are put elsewhere."""

HOST_MEMORY = "pinned_host"
"""What it calls the host's memory that devices read and write directly."""

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """A dimension that may be split over these mesh axes only."""

    axes: Axes


Fixed = tuple[Axes | Within | None, ...]
"""A sharding asked for: per dimension the mesh axes, None where it is left free."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A sharding that is wished for, not demanded; see `prefer_sharding`."""

    sharding: PartitionSpec | NamedSharding


def agrees(spec: ShardingSpec, fixed: Fixed) -> bool:
    """Whether a spec is what was asked for, dimension by dimension."""
    return all(_dim_agrees(want, have) for want, have in zip(fixed, spec.dims))


def _dim_agrees(want: Axes | Within | None, have: Axes) -> bool:
    if isinstance(want, Within):
        return all(axis in want.axes for axis in have)
    return want is None or want == have


def fixed_dims(sharding: Any, rank: int, unconstrained: Iterable[int] = ()) -> tuple[Axes | None, ...]:
    """Dimension by dimension what a PartitionSpec or NamedSharding fixes; `PartitionSpec.UNCONSTRAINED` is free."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    entries = tuple(spec) + (None,) * (rank - len(spec))
    free = set(unconstrained)
    return tuple(
        None if i in free or entry is PartitionSpec.UNCONSTRAINED else _axes(entry) for i, entry in enumerate(entries)
    )


def without_axes_of_one(fixed: Fixed, sizes: Mapping[str, int]) -> Fixed:
    """What is fixed without the axes of one device: a split over them is none."""
    return tuple(
        tuple(axis for axis in dim if sizes.get(axis) != 1) if isinstance(dim, tuple) else dim for dim in fixed
    )


def _axes(entry: Any) -> Axes:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def partition_spec(spec: ShardingSpec) -> PartitionSpec:
    """The closed PartitionSpec of a spec: every dimension is said."""
    return PartitionSpec(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec.dims))


def planning_mesh(mesh: Any) -> Mesh | AbstractMesh:
    """The twin of a mesh with Auto axes, in which our constraints are written.

    Raises:
        MeshError: It is not a JAX mesh, it is empty, or it has Manual axes.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise MeshError(
            f"mesh must be a jax.sharding.Mesh or AbstractMesh, not {type(mesh).__name__}; "
            "make one with jax.make_mesh((4, 2), ('x', 'y'))"
        )
    if not mesh.axis_names:
        raise MeshError("the mesh has no axes; make one with jax.make_mesh((4, 2), ('x', 'y'))")
    if any(kind == AxisType.Manual for kind in mesh.axis_types):
        raise MeshError("the mesh has Manual axes: call autoshard outside of shard_map, or give it another mesh")
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return abstract_twin(mesh)


def abstract_twin(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """The same axes as Auto ones, of the devices' kind but without them: the context in which functions are traced."""
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        twin: AbstractMesh = Mesh(mesh.devices, mesh.axis_names, axis_types=auto).abstract_mesh
        return twin
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=auto)


def has_explicit_axes(mesh: Mesh | AbstractMesh) -> bool:
    """Whether any axis is Explicit, as `jax.make_mesh` makes them."""
    return any(kind == AxisType.Explicit for kind in mesh.axis_types)


def named_shardings(
    mesh: Mesh | AbstractMesh, specs: Sequence[ShardingSpec], tree: Any, memory: Sequence[str | None] = ()
) -> Any:
    """A tree of NamedShardings from specs in flat order, and from kinds of memory if not all are the devices' own."""
    kinds = memory or (None,) * len(specs)
    shardings = [NamedSharding(mesh, partition_spec(spec), memory_kind=kind) for spec, kind in zip(specs, kinds)]
    return jax.tree.unflatten(tree, shardings)


def foreign_memory(sharding: Any) -> str | None:
    """The memory that a sharding names, such as ``pinned_host``; None for the devices' own."""
    kind: str | None = getattr(sharding, "memory_kind", None)
    return None if kind == DEVICE_MEMORY else kind
