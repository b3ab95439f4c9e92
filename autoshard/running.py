"""A planned function as jax.jit runs it: shardings on the caller's mesh, constraints on its twin with Auto axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from autoshard.emit import emit
from autoshard.errors import InputError
from autoshard.jaxprs import primitives
from autoshard.plan import Plan
from autoshard.shardings import has_explicit_axes, planning_mesh
from autoshard.trace import Program

TRACING_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
)
"""Settings of JAX under which a function traces to something else: a plan is made for their values."""


BOUND_TO_DEVICES = frozenset({"custom_partitioning", "inspect_sharding", "io_callback", "pure_callback"})
"""Primitives that JAX lowers only in programs whose shardings are all of one mesh."""


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A jitted function on the twin of a mesh with Explicit axes: arrays change their label on the way, and stay put.

    Attributes:
        run: The jitted function.
        twin: The mesh that it is jitted for.
        arguments: Shardings of its arguments, on the twin.
        results: Shardings of its results, on the mesh itself.
    """

    run: Any
    twin: Mesh
    arguments: tuple[Any, ...]
    results: Any

    def __call__(self, *arguments: Any) -> Any:
        """Call it; only from outside of a trace, since labels are types there."""
        try:
            context = jax.set_mesh(self.twin)
        except ValueError as error:
            raise InputError(
                "callbacks in a function planned for Explicit axes cannot be traced by an enclosing jit or grad: call "
                "it from outside, or make the mesh with axis_types=(jax.sharding.AxisType.Auto,) * n"
            ) from error
        with context:
            out = self.run(*jax.device_put(arguments, self.arguments))
        return jax.device_put(out, self.results)

    @property
    def lower(self) -> Callable[..., jax.stages.Lowered]:
        """As of `jax.jit`."""
        return cast(Callable[..., jax.stages.Lowered], self.run.lower)

    @property
    def trace(self) -> Callable[..., jax.stages.Traced]:
        """As of `jax.jit`."""
        return cast(Callable[..., jax.stages.Traced], self.run.trace)


class NewSignature(Exception):
    """Raised while jit traces: the arguments are not those that the compiled function was planned for."""


def jitted(plan: Plan, program: Program, mesh: Mesh | AbstractMesh, dynamic: tuple[Any, ...], out_tree: Any) -> Any:
    """The planned function over the dynamic arguments, jitted with the plan's shardings."""
    inner = planning_mesh(mesh)
    if has_explicit_axes(mesh) and isinstance(inner, Mesh) and BOUND_TO_DEVICES & primitives(program.jaxpr):
        run = jitted(plan, program, inner, dynamic, out_tree)
        return Relabelled(run, inner, dynamic_shardings(plan, inner), plan.shardings_on(mesh)[1])
    flat = emit(plan, program.jaxpr, inner)
    expected = abstract_key(dynamic)
    out_shardings = plan.shardings_on(mesh)[1]
    configuration = config_key()

    def on_tree(*arguments: Any) -> Any:
        return jax.tree.unflatten(out_tree, flat(*jax.tree.leaves(arguments)))

    body: Callable[..., Any] = on_tree
    if has_explicit_axes(mesh):
        outs = out_shardings if out_tree.num_leaves else PartitionSpec()
        body = jax.sharding.auto_axes(on_tree, axes=mesh.axis_names, out_sharding=outs)

    def checked(*arguments: Any) -> Any:
        if abstract_key(arguments) != expected or config_key() != configuration:
            raise NewSignature
        return body(*arguments)

    functools.update_wrapper(checked, flat)
    donated = _donated_positions(plan, dynamic)
    shardings = dynamic_shardings(plan, mesh)
    return jax.jit(checked, in_shardings=shardings, out_shardings=out_shardings, donate_argnums=donated)


def dynamic_shardings(plan: Plan, mesh: Mesh | AbstractMesh) -> tuple[Any, ...]:
    """Shardings of the dynamic arguments: positions, then keywords in alphabetical order."""
    args, kwargs = plan.shardings_on(mesh)[0]
    return (*args, *(kwargs[name] for name in sorted(kwargs)))


def config_key() -> tuple[Any, ...]:
    """The settings of JAX that change what a function traces to."""
    return tuple(getattr(jax.config, name) for name in TRACING_SETTINGS)


def _donated_positions(plan: Plan, dynamic: tuple[Any, ...]) -> tuple[int, ...]:
    """Which dynamic arguments are donated: those whose leaves all are."""
    positions, start = [], 0
    for position, argument in enumerate(dynamic):
        stop = start + len(jax.tree.leaves(argument))
        if stop > start and all(leaf.donated for leaf in plan.arguments[start:stop]):
            positions.append(position)
        start = stop
    return tuple(positions)


def abstract_key(tree: Any) -> Any:
    """Structure, shapes, types and weakness of all leaves: what a plan is made for."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(_leaf_key(leaf) for leaf in leaves)


def _leaf_key(leaf: Any) -> Any:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return aval.shape, str(jax.dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True)), bool(aval.weak_type)


def is_another_tree(error: ValueError) -> bool:
    """Whether jit refuses arguments because their number or tree is not that of its shardings, which are a plan's."""
    return "pjit in_shardings" in str(error)


def is_indivisible(error: ValueError) -> bool:
    """Whether JAX has no name for a sharding over a part of an axis.

    So it is where `jax.grad` outside of `jit` keeps inner values for the backward pass: they are results of the
    compiled forward pass, and JAX wants to say all results over the axes of the arguments' mesh.
    """
    return "is not divisible by axis_size" in str(error)


def is_misplaced(error: ValueError) -> bool:
    """Whether jit refuses an argument because it lives elsewhere than planned."""
    text = str(error)
    return (
        "Received incompatible devices" in text
        or "does not match the sharding" in text
        or "incompatible shardings" in text
        or "must match the mesh passed to shardings" in text
        or "Memory kinds passed to jax.jit does not match" in text
    )
