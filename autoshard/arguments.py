"""The caller's options and shardings, checked and brought to one form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import jax
import pydantic
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from autoshard.constraints import Constraints
from autoshard.costs import MeshModel
from autoshard.errors import OptionError, SpecError, raise_all
from autoshard.plan import Plan
from autoshard.shardings import Fixed, Hint, fixed_dims, foreign_memory, without_axes_of_one

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(amount: float | str) -> float:
    """Bytes of a number or of a string such as ``"1.5GiB"`` or ``"800 MB"``.

    Raises:
        OptionError: It is neither, or not positive.

    Example:
        >>> parse_bytes("1.5 GiB")
        1610612736.0
    """
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kmgt]?i?b?)\s*", amount.lower())
        if match is None or match[2] not in _UNITS:
            raise OptionError(f"memory_budget={amount!r} is not an amount of memory; write bytes, or '1.5GiB'")
        return parse_bytes(float(match[1]) * _UNITS[match[2]])
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 1 <= amount < float("inf"):
        raise OptionError(f"memory_budget={amount!r} must be a positive number of bytes per device, or '1.5GiB'")
    return float(amount)


class Options(pydantic.BaseModel):
    """What the caller of `autoshard` asked for, besides function and mesh; see there."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(
        frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True
    )

    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    memory_budget: float | None = None
    hardware: str | MeshModel | None = None
    time_limit_s: float = pydantic.Field(default=20.0, gt=0)
    on_failure: Literal["raise", "replicate"] = "raise"
    strict: bool = False
    plan: Plan | str | os.PathLike[str] | None = None
    constraints: Constraints = pydantic.Field(default_factory=Constraints)
    axis_parts: bool = True

    @pydantic.field_validator("static_argnums", "donate_argnums", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> tuple[int, ...]:
        return () if value is None else (value,) if isinstance(value, int) else tuple(value)

    @pydantic.field_validator("static_argnames", "donate_argnames", mode="before")
    @classmethod
    def _names(cls, value: Any) -> tuple[str, ...]:
        return () if value is None else (value,) if isinstance(value, str) else tuple(value)

    @pydantic.field_validator("constraints", mode="before")
    @classmethod
    def _constraints(cls, value: Any) -> Any:
        return Constraints() if value is None else value

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """Options from keywords.

        Raises:
            OptionError: One line per wrong option.
        """
        try:
            return cls(**given)
        except pydantic.ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors()]
            raise_all(OptionError, "wrong options for autoshard:", faults)
            raise


_Leaf = (PartitionSpec, Sharding)


def _is_leaf(node: Any) -> bool:
    return node is None or isinstance(node, _Leaf)


def flat_fixed(
    prefix: Any,
    tree: Any,
    names: Sequence[str],
    mesh: Mesh | AbstractMesh,
    what: str,
    *,
    hints: Literal["refused", "skipped", "taken"] = "refused",
) -> dict[int, Fixed]:
    """The shardings that a caller fixed, per flat leaf.

    Args:
        prefix: A prefix tree of PartitionSpecs, NamedShardings and None over ``tree``.
        tree: The abstract arguments or results.
        names: Their paths, for messages.
        mesh: The mesh.
        what: The option's name, for messages.
        hints: Whether leaves that are a `Hint` are faults, left out, or the only ones that count.

    Returns:
        Flat number to what is fixed; leaves that are free are left out.

    Raises:
        SpecError: One line per fault: unknown axis, axis used twice, rank too high, extent not divisible, or a tree
            that is no prefix.
    """
    if prefix is None:
        return {}
    try:
        leaves = jax.tree.leaves(jax.tree.broadcast(prefix, tree, is_leaf=_is_leaf), is_leaf=_is_leaf)
    except ValueError as error:
        apart = list(_prefix_faults(prefix, tree, what)) or [str(error)]
        lines = "\n  ".join([f"{what} must be a prefix of the tree that it is for:", *apart])
        raise SpecError(lines) from error
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes))
    faults: list[str] = []
    fixed: dict[int, Fixed] = {}
    for number, (leaf, shape, name) in enumerate(zip(leaves, shapes, names)):
        if leaf is None or (hints != "refused" and isinstance(leaf, Hint) != (hints == "taken")):
            continue
        leaf = leaf.sharding if hints == "taken" else leaf
        found = list(spec_faults(leaf, shape, mesh))
        faults += [f"{what}: {name}{fault}" for fault in found]
        if not found:
            fixed[number] = without_axes_of_one(fixed_dims(leaf, len(shape)), sizes)
    raise_all(SpecError, f"{what} does not fit:", faults)
    return {number: dims for number, dims in fixed.items() if dims != (None,) * len(dims) or not dims}


def _prefix_faults(prefix: Any, tree: Any, where: str) -> Iterable[str]:
    """Where a tree of shardings parts from the tree that it is for."""
    if _is_leaf(prefix):
        return
    wanted, given = _children(tree), _children(prefix)
    if type(prefix) is not type(tree) or wanted is None or given is None:
        expected = "a single array" if wanted is None else f"a {type(tree).__name__}"
        yield (
            f"{where} is a {type(prefix).__name__}, what it is for is {expected}; a PartitionSpec, a NamedSharding or "
            "None stands for all below"
        )
        return
    missing, extra = [key for key in wanted if key not in given], [key for key in given if key not in wanted]
    if missing or extra:
        counts = f"{len(given)} entries for {len(wanted)}"
        lacks = f", lacks {', '.join(missing)}" if missing else ""
        surplus = f", has {', '.join(extra)} besides" if extra else ""
        yield f"{where} has {counts}{lacks}{surplus}; None leaves an entry free"
        return
    for key, child in given.items():
        yield from _prefix_faults(child, wanted[key], where + key)


def _children(node: Any) -> dict[str, Any] | None:
    """The children of a tree's node by printed key; None for a leaf."""
    found = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda below: below is not node)
    if any(not path for path, _ in found):
        return None
    return {jax.tree_util.keystr(path): child for path, child in found}


def flat_memory(prefix: Any, tree: Any, own: Sequence[str | None]) -> tuple[str | None, ...]:
    """The memory of every leaf: as its NamedSharding says, otherwise where the leaf is.

    Args:
        prefix: A prefix tree of shardings over ``tree``; one that does not fit is left to `flat_fixed` to refuse.
        tree: The arguments or results.
        own: Per leaf, the memory that it is in; None for the devices' own.
    """
    try:
        leaves = jax.tree.leaves(jax.tree.broadcast(prefix, tree, is_leaf=_is_leaf), is_leaf=_is_leaf)
    except ValueError:
        return tuple(own)
    return tuple(foreign_memory(leaf) if isinstance(leaf, Sharding) else held for leaf, held in zip(leaves, own))


def spec_faults(leaf: Any, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> Iterable[str]:
    """What is wrong with one leaf's sharding; each fault begins with the place within the leaf."""
    if not isinstance(leaf, PartitionSpec | NamedSharding):
        yield f": {type(leaf).__name__} is not a PartitionSpec, NamedSharding or None"
        return
    spec = leaf.spec if isinstance(leaf, NamedSharding) else leaf
    if len(spec) > len(shape):
        yield f": {spec} has {len(spec)} entries, the array has {len(shape)} dimensions (shape {shape})"
        return
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes))
    if isinstance(leaf, NamedSharding) and dict(leaf.mesh.shape) != sizes:
        yield f": {spec} is of a mesh {dict(leaf.mesh.shape)}, the function's is {sizes}"
        return
    used: set[str] = set()
    for d, axes in enumerate(fixed_dims(spec, len(shape))):
        parts = 1
        for axis in axes or ():
            if axis not in sizes:
                yield f", dimension {d}: axis {axis!r} is not in the mesh, which has {', '.join(map(repr, sizes))}"
                continue
            if axis in used:
                yield f", dimension {d}: axis {axis!r} is used twice in {spec}"
            used.add(axis)
            parts *= sizes[axis]
        if shape[d] % parts:
            yield (
                f", dimension {d}: extent {shape[d]} does not divide into {parts} parts ({spec}); pad it to "
                f"{-(-shape[d] // parts) * parts}, or leave the dimension free"
            )
