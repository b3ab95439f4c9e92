"""What a caller demands of a plan besides fixed shardings, and what that means for each argument and result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pydantic

from autoshard.errors import OptionError, SpecError, did_you_mean, raise_all
from autoshard.placing import is_below
from autoshard.shardings import Fixed, Within


class Constraints(pydantic.BaseModel):
    """What a plan has to keep to, by paths of arguments and results, as the report prints them.

    A path stands for all leaves below it: ``"state"``, ``"state['params']"``, ``"result[0]"``. Shardings that are known
    dimension by dimension are given by ``in_shardings`` and ``out_shardings`` instead, those of values inside the
    function by `jax.lax.with_sharding_constraint` in its code.

    Attributes:
        only_axes: Path to the only mesh axes that its leaves may be split over; none (``()``) is "never split this".
        reserved_axes: Mesh axis to the paths of the only arguments that may be split over it.
        same_as: Path to another path whose leaves, path by path, have the same shardings.
        in_code: ``"keep"`` what `with_sharding_constraint` says in the function, or ``"reopen"`` it: plan as if it
            were not there.

    Example:
        >>> import jax
        >>> from autoshard import Constraints, autoshard
        >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
        >>> rules = Constraints(only_axes={"batch": "data", "w": ()})
        >>> step = autoshard(lambda w, batch: batch @ w, mesh, constraints=rules)
        >>> plan = step.plan(jax.ShapeDtypeStruct((512, 512), "float32"), jax.ShapeDtypeStruct((64, 512), "float32"))
        >>> plan.arguments[0].spec
        ((), ())
    """

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")

    only_axes: Mapping[str, tuple[str, ...]] = pydantic.Field(default_factory=dict)
    reserved_axes: Mapping[str, tuple[str, ...]] = pydantic.Field(default_factory=dict)
    same_as: Mapping[str, str] = pydantic.Field(default_factory=dict)
    in_code: Literal["keep", "reopen"] = "keep"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _known_names(cls, given: Any) -> Any:
        unknown = [name for name in given if name not in cls.model_fields] if isinstance(given, Mapping) else []
        if unknown:
            raise ValueError(
                "; ".join(f"{name!r} is not a constraint{did_you_mean(name, cls.model_fields)}" for name in unknown)
            )
        return given

    @pydantic.field_validator("only_axes", "reserved_axes", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: (v,) if isinstance(v, str) else tuple(v) if isinstance(v, list) else v for k, v in value.items()}


@dataclass(frozen=True, slots=True)
class Demands:
    """Constraints resolved for the flat arguments and results of one program.

    Attributes:
        arguments: Per flat argument what is fixed; free ones are left out.
        outputs: The same per flat result.
        same_arguments: Pairs of flat arguments that have one sharding.
        ties: Flat result to the flat argument whose sharding it has.
    """

    arguments: Mapping[int, Fixed] = field(default_factory=dict)
    outputs: Mapping[int, Fixed] = field(default_factory=dict)
    same_arguments: tuple[tuple[int, int], ...] = ()
    ties: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The flat arguments, or the flat results, of a program: their paths, shapes, and what is fixed by shardings."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    fixed: Mapping[int, Fixed]


def resolve(constraints: Constraints, arguments: Leaves, results: Leaves, mesh_axes: Sequence[str]) -> Demands:
    """What constraints mean for one program.

    Args:
        constraints: What the caller demands.
        arguments: The flat arguments.
        results: The flat results.
        mesh_axes: Names of the mesh's axes.

    Returns:
        What is fixed by shardings and constraints together.

    Raises:
        OptionError: One line per path or axis that does not exist.
        SpecError: One line per contradiction.
    """
    names = (*arguments.names, *results.names)
    raise_all(OptionError, "constraints do not fit the function:", list(_unknown(constraints, names, mesh_axes)))
    pairs, faults = _same(constraints.same_as, names, (*arguments.shapes, *results.shapes))
    count = len(arguments.names)
    within_arguments = _narrowed(arguments, constraints, mesh_axes, constraints.reserved_axes, faults)
    within_results = _narrowed(results, constraints, mesh_axes, {}, faults)
    raise_all(SpecError, "constraints contradict each other:", faults)
    return Demands(
        arguments=within_arguments,
        outputs=within_results,
        same_arguments=tuple((a, b) for a, b in pairs if max(a, b) < count),
        ties={max(a, b) - count: min(a, b) for a, b in pairs if min(a, b) < count <= max(a, b)},
    )


def _unknown(constraints: Constraints, names: Sequence[str], mesh_axes: Sequence[str]) -> Iterable[str]:
    """Paths that no leaf is below, and axes that the mesh lacks."""
    mentioned = [("only_axes", path) for path in constraints.only_axes]
    mentioned += [("reserved_axes", path) for paths in constraints.reserved_axes.values() for path in paths]
    mentioned += [("same_as", path) for pair in constraints.same_as.items() for path in pair]
    for option, path in mentioned:
        if not any(is_below(name, path) for name in names):
            yield f"{option}: nothing is at {path!r}" + did_you_mean(path, names)
    axes = [("only_axes", axis) for some in constraints.only_axes.values() for axis in some]
    axes += [("reserved_axes", axis) for axis in constraints.reserved_axes]
    for option, axis in axes:
        if axis not in mesh_axes:
            yield f"{option}: axis {axis!r} is not in the mesh, which has {', '.join(map(repr, mesh_axes))}"


def _narrowed(
    leaves: Leaves,
    constraints: Constraints,
    mesh_axes: Sequence[str],
    reserved: Mapping[str, tuple[str, ...]],
    faults: list[str],
) -> dict[int, Fixed]:
    """Per leaf its fixed dimensions, and for the free ones the axes that are left."""
    fixed = dict(leaves.fixed)
    for number, (name, shape) in enumerate(zip(leaves.names, leaves.shapes)):
        allowed = tuple(
            axis
            for axis in mesh_axes
            if all(axis in axes for path, axes in constraints.only_axes.items() if is_below(name, path))
            and (axis not in reserved or any(is_below(name, path) for path in reserved[axis]))
        )
        if len(allowed) == len(mesh_axes):
            continue
        dims = fixed.get(number, (None,) * len(shape))
        outside = {axis for dim in dims if isinstance(dim, tuple) for axis in dim if axis not in allowed}
        if outside:
            faults.append(
                f"{name} is fixed to a split over {', '.join(map(repr, sorted(outside)))}, which only_axes or "
                "reserved_axes exclude"
            )
        fixed[number] = tuple(Within(allowed) if dim is None else dim for dim in dims)
    return fixed


def _same(
    same_as: Mapping[str, str], names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> tuple[list[tuple[int, int]], list[str]]:
    """Pairs of leaves that have one sharding, and what is wrong with the others."""
    place = {name: number for number, name in enumerate(names)}
    pairs, faults = [], []
    for path, other in same_as.items():
        for name in (name for name in names if is_below(name, path)):
            twin = other + name.removeprefix(path)
            if twin not in place:
                faults.append(f"same_as: {name} has no counterpart {twin}" + did_you_mean(twin, names))
            elif len(shapes[place[name]]) != len(shapes[place[twin]]):
                faults.append(
                    f"same_as: {name} has shape {shapes[place[name]]}, {twin} has {shapes[place[twin]]}: their "
                    "shardings cannot be the same"
                )
            else:
                pairs.append((place[name], place[twin]))
    return pairs, faults
