"""What XLA does with planned reshardings: many chains of constraints in one compiled program, read apart again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.costs import MeshModel, ShardingSpec, plan_resharding, refined_axes, refined_spec
from autoshard.hlo import collectives, compile_with_log, involuntary_rematerializations

Setting = Literal["plain", "scan", "grad", "inner"]

TRIPS = 3
"""Trips of the loop in the setting `scan`."""

_SCOPE = re.compile(r"\bchain(\d+)\b")


@dataclass(frozen=True, slots=True)
class Chain:
    """A tensor that starts in a spec and is constrained to others, one after the other."""

    source: ShardingSpec
    constraints: tuple[ShardingSpec, ...]
    shape: tuple[int, ...]

    @property
    def target(self) -> ShardingSpec:
        """The last spec."""
        return self.constraints[-1] if self.constraints else self.source


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a compiled program does with its chains.

    Attributes:
        wire_bytes: Bytes that one device sends, per chain.
        total_wire_bytes: Of the whole program.
        rematerializations: Tensors that XLA replicated for want of a better way.
    """

    wire_bytes: tuple[float, ...]
    total_wire_bytes: float
    rematerializations: int


def planned_chain(
    source: ShardingSpec, target: ShardingSpec, shape: tuple[int, ...], mesh: MeshModel, *, sub_axes: bool = False
) -> Chain:
    """The constraints that a plan for float32 asks for."""
    return Chain(source, plan_resharding(source, target, shape, 4, mesh, sub_axes=sub_axes).constraints, shape)


def compile_chains(
    chains: Sequence[Chain], mesh: Mesh, *, setting: Setting = "plain", dtype: str = "float32"
) -> Outcome:
    """Compiles all chains as one program for the devices of `mesh`, every chain on an argument of its own."""

    def program(tensors: list[jax.Array]) -> list[jax.Array]:
        results = []
        for i, (chain, tensor) in enumerate(zip(chains, tensors)):
            with jax.named_scope(f"chain{i}"):
                results.append(_SETTINGS[setting](lambda x, chain=chain: _constrained(x, chain, mesh), tensor))
        return results

    lead = (TRIPS,) if setting == "scan" else ()
    arguments = [jax.ShapeDtypeStruct((*lead, *chain.shape), dtype) for chain in chains]
    starts, ends = zip(*(_outer_specs(chain, setting) for chain in chains))
    lowered = jax.jit(
        program,
        in_shardings=([_sharding(start, mesh, len(lead)) for start in starts],),
        out_shardings=[_sharding(end, mesh, len(lead)) for end in ends],
    ).lower(arguments)
    compiled, log = compile_with_log(lowered)
    per_chain, total = [0.0] * len(chains), 0.0
    for collective in collectives(compiled.as_text(), num_devices=math.prod(mesh.shape.values())):
        total += collective.call_wire_bytes
        scope = _SCOPE.search(collective.op_name)
        if scope and "outside" not in collective.op_name:
            per_chain[int(scope[1])] += collective.call_wire_bytes
    return Outcome(tuple(per_chain), total, len(involuntary_rematerializations(log)))


def planned_bytes(chain: Chain, mesh: MeshModel, *, setting: Setting = "plain") -> float:
    """Wire bytes that the model predicts for a chain of float32; under grad it is walked there and back."""
    stops = (chain.source, *chain.constraints)
    there = sum(_bytes(a, b, chain.shape, mesh) for a, b in pairwise(stops))
    if setting == "grad":
        return there + sum(_bytes(b, a, chain.shape, mesh) for a, b in pairwise(stops))
    return there * (TRIPS if setting == "scan" else 1)


def jax_mesh(sizes: dict[str, int]) -> Mesh:
    """A JAX mesh with Auto axes."""
    devices = np.array(jax.devices()[: math.prod(sizes.values())])
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


def _bytes(source: ShardingSpec, target: ShardingSpec, shape: tuple[int, ...], mesh: MeshModel) -> float:
    return plan_resharding(source, target, shape, 4, mesh).wire_bytes


def _outer_specs(chain: Chain, setting: Setting) -> tuple[ShardingSpec, ShardingSpec]:
    """Specs of the argument and of the result."""
    if setting == "inner":
        return ShardingSpec.replicated(len(chain.shape)), ShardingSpec.of()
    return chain.source, chain.source if setting == "grad" else chain.target


def _constrained(tensor: jax.Array, chain: Chain, mesh: Mesh) -> jax.Array:
    tensor = jax.lax.with_sharding_constraint(tensor, _sharding(chain.source, mesh, 0))
    for spec in chain.constraints:
        tensor = jax.lax.with_sharding_constraint(tensor, _sharding(spec, mesh, 0))
    return tensor


def _plain(constrain: Callable[[jax.Array], jax.Array], tensor: jax.Array) -> jax.Array:
    return constrain(tensor)


def _scan(constrain: Callable[[jax.Array], jax.Array], tensor: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, x: (carry, constrain(x)), 0.0, tensor)[1]


def _grad(constrain: Callable[[jax.Array], jax.Array], tensor: jax.Array) -> jax.Array:
    # Cubed after the move, so that its gradient needs the moved tensor and travels back through every constraint.
    return jax.grad(lambda x: (constrain(x) ** 3).sum())(tensor)


def _inner(constrain: Callable[[jax.Array], jax.Array], tensor: jax.Array) -> jax.Array:
    # Neither argument nor result has the specs of the chain: jit refuses uneven ones.
    with jax.named_scope("outside"):
        tensor = jnp.cos(tensor)
    moved = constrain(tensor)
    with jax.named_scope("outside"):
        return moved.sum()


_SETTINGS: dict[Setting, Callable[..., jax.Array]] = {"plain": _plain, "scan": _scan, "grad": _grad, "inner": _inner}


def _sharding(spec: ShardingSpec, mesh: Mesh, lead: int) -> NamedSharding:
    """On the mesh itself, or, if the spec names parts of axes, on the same devices with the axes cut."""
    sizes = dict(mesh.shape)
    axes = refined_axes([spec], sizes)
    if axes != sizes:
        mesh = Mesh(mesh.devices.reshape(tuple(axes.values())), tuple(axes))
    dims = refined_spec(spec, axes, sizes).dims
    return NamedSharding(mesh, PartitionSpec(*(None,) * lead, *(dim or None for dim in dims)))
