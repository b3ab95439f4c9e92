"""Shardings by rule: names, sizes and annotations decide, no program is looked at.

`infer_sharding` walks a tree of parameters (or of optimizer state) and asks a rule for the spec of every leaf. Rules
compose, and none overwrites what is decided already: by a rule before it, by the annotation of a flax box or variable,
or by the array's own NamedSharding. Every decision, and every dimension that does not divide, goes to the logger
``autoshard``.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from autoshard.annotations import (
    LogicalAxes,
    SpecEntries,
    axes_of,
    decided_entries,
    entry_of,
    is_box,
    merged,
    spec_entries,
    value_of,
)
from autoshard.arguments import spec_faults
from autoshard.errors import OptionError, SpecError, raise_all
from autoshard.shardings import Hint, planning_mesh

logger: logging.Logger = logging.getLogger("autoshard")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLeaf:
    """What a rule sees of a leaf besides its name.

    Attributes:
        shape: Its shape.
        dtype: Its element type.
        nbytes: Its size.
        preconditioner: It is one of a list of square matrices, as optimizers hold them per parameter.
    """

    shape: tuple[int, ...]
    dtype: Any
    nbytes: int
    preconditioner: bool

    @property
    def ndim(self) -> int:
        """Its rank."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


ShardingRule = Callable[[SpecEntries, Mesh | AbstractMesh, str, RuleLeaf], SpecEntries]
"""``rule(spec, mesh, name, leaf)``: the spec so far to the spec, one entry per dimension, decided ones kept."""

WHOLE_WORDS = frozenset({"bias", "scale"})
LAST_DIMENSION_WORDS = frozenset({"down", "embed", "embedder", "embedding", "embeddings", "o", "out", "wpe", "wte"})
SECOND_TO_LAST_WORDS = frozenset({"gate", "k", "key", "q", "qkv", "query", "up", "v", "value"})


def infer_sharding(
    params: Any,
    mesh: Mesh | AbstractMesh,
    op: ShardingRule | None = None,
    *,
    logical_axes: LogicalAxes | None = None,
    undecided: Literal["whole", "free"] = "whole",
) -> tuple[Any, Any]:
    """Shardings of a tree by a rule.

    Leaves are arrays or abstract arrays. A flax box (`nn.Partitioned`, `nn.LogicallyPartitioned`) or `nnx.Variable`
    counts as one leaf, and its annotation as decided; a NamedSharding that an array already has does so too. A list of
    square matrices is taken for the preconditioners of one parameter.

    Args:
        params: The tree: parameters, optimizer state, or both.
        mesh: The mesh.
        op: The rule; left out, only annotations count.
        logical_axes: Mesh axes of the logical names in annotations, as flax spells its rules: a mapping, or pairs of
            which the first whose mesh axes are still unused in the array is taken.
        undecided: What nobody decided is ``"whole"``, or ``"free"`` (`PartitionSpec.UNCONSTRAINED`, on the mesh's twin
            with Auto axes) for `autoshard` to decide.

    Returns:
        The tree of NamedShardings and the tree of PartitionSpecs, as ``in_shardings`` of `autoshard` takes either; a
        box's place is taken by its sharding.

    Raises:
        OptionError: ``undecided`` is neither of the two.
        SpecError: One line per leaf for which a spec came out that does not fit or overwrites what was decided.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoshard import fsdp_sharding, infer_sharding
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> params = {"up": {"kernel": jnp.ones((64, 256)), "bias": jnp.ones(256)}}
        >>> shardings, specs = infer_sharding(params, mesh, fsdp_sharding("data", min_size_to_shard_mb=0))
        >>> specs["up"]["kernel"]
        P('data', None)
        >>> specs["up"]["bias"]
        P(None,)
    """
    if undecided not in ("whole", "free"):
        raise OptionError(f"undecided={undecided!r} must be 'whole' or 'free'")
    walk = _Walk(mesh, op or chain_sharding(), logical_axes, undecided == "free")
    leaves, tree = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda n: is_box(n) or _is_factor_list(n))
    specs = jax.tree.unflatten(tree, [walk.decide(_name(path), leaf) for path, leaf in leaves])
    raise_all(SpecError, "the rule does not fit:", walk.faults)
    home = planning_mesh(mesh) if undecided == "free" else mesh  # JAX has no UNCONSTRAINED on Explicit axes
    shardings = jax.tree.map(
        lambda spec: NamedSharding(home, spec), specs, is_leaf=lambda n: isinstance(n, PartitionSpec)
    )
    return shardings, specs


def fsdp_sharding(axis: str | Sequence[str], min_size_to_shard_mb: float = 1.0) -> ShardingRule:
    """Shard every large leaf over ``axis``, along the dimension that its name calls for.

    Embeddings and kernels named ``out`` or ``down`` are split along the last dimension; kernels named ``q``, ``k``,
    ``v``, ``gate`` or ``up``, and preconditioners, along the second to last; all others along the largest one (of
    equals the last). Leaves named ``scale`` or ``bias`` stay whole. Where a dimension is taken or does not divide,
    the next largest is tried. The word nearest to the end of the path counts.

    Args:
        axis: A mesh axis, or several.
        min_size_to_shard_mb: Leaves of at most so many MiB stay whole.

    Returns:
        The rule.

    Example:
        >>> import jax
        >>> from autoshard import fsdp_sharding, infer_sharding
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> table = {"wte": jax.ShapeDtypeStruct((50257, 768), "float32")}
        >>> infer_sharding(table, mesh, fsdp_sharding("data"))[1]
        {'wte': P(None, 'data')}
    """
    axes = axes_of(axis)

    def rule(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        if leaf.nbytes <= min_size_to_shard_mb * 2**20:
            logger.info("%s: left whole, %d bytes are not above the limit of fsdp_sharding", name, leaf.nbytes)
            return spec
        preferred = _preferred_dimension(name, leaf)
        if preferred is None:
            logger.info("%s: left whole, by its name or as a scalar", name)
            return spec
        return _place(spec, mesh, name, leaf, axes, preferred)

    return rule


def dim_sharding(axis: str | Sequence[str], dim: int) -> ShardingRule:
    """Shard dimension ``dim`` over ``axis``; if it is taken or does not divide, the largest one that is not and does.

    Args:
        axis: A mesh axis, or several.
        dim: The dimension; negative ones count from the end. Leaves without it are left alone.

    Returns:
        The rule.

    Example:
        >>> import jax
        >>> from autoshard import dim_sharding, infer_sharding, where_named
        >>> mesh = jax.sharding.AbstractMesh((4, 2), ("x", "y"))
        >>> weights = {"up": jax.ShapeDtypeStruct((64, 256), "float32")}
        >>> infer_sharding(weights, mesh, where_named("up", dim_sharding("y", -1)))[1]
        {'up': P(None, 'y')}
    """
    axes = axes_of(axis)

    def rule(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        if not -leaf.ndim <= dim < leaf.ndim:
            return spec
        return _place(spec, mesh, name, leaf, axes, dim % leaf.ndim)

    return rule


def chain_sharding(*rules: ShardingRule) -> ShardingRule:
    """Rules one after the other; each sees what those before it decided.

    Args:
        *rules: The rules.

    Returns:
        The rule.

    Example:
        >>> import jax
        >>> from autoshard import chain_sharding, dim_sharding, fsdp_sharding, infer_sharding, where_named
        >>> mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
        >>> rule = chain_sharding(where_named("up", dim_sharding("model", -1)), fsdp_sharding("data", 0))
        >>> infer_sharding({"up": jax.ShapeDtypeStruct((64, 256), "float32")}, mesh, rule)[1]
        {'up': P('data', 'model')}
    """

    def rule(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        for each in rules:
            spec = _applied(each, spec, mesh, name, leaf)
        return spec

    return rule


def _applied(
    rule: ShardingRule, spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf
) -> SpecEntries:
    """What a rule makes of a spec; it may decide dimensions, not take decisions back."""
    done = tuple(rule(spec, mesh, name, leaf))
    if len(done) != len(spec) or any(before is not None and before != after for before, after in zip(spec, done)):
        raise SpecError(f"{name}: a rule made {done} of {spec}; it must keep the rank and what is decided")
    return done


def where_named(pattern: str, rule: ShardingRule) -> ShardingRule:
    """A rule for the leaves in whose path a regular expression finds something.

    Args:
        pattern: The regular expression; paths are as ``layers/0/up/kernel``.
        rule: The rule.

    Returns:
        The rule, which leaves all others alone.

    Example:
        >>> import jax
        >>> from autoshard import fsdp_sharding, infer_sharding, where_named
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> weights = {name: jax.ShapeDtypeStruct((64, 16), "float32") for name in ("head", "lora")}
        >>> infer_sharding(weights, mesh, where_named("^head$", fsdp_sharding("data", 0)))[1]
        {'head': P('data', None), 'lora': P(None, None)}
    """
    expression = re.compile(pattern)

    def narrowed(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        return rule(spec, mesh, name, leaf) if expression.search(name) else spec

    return narrowed


def stacked_sharding(rule: ShardingRule, pattern: str = r"") -> ShardingRule:
    """A rule for parameters that are stacked for `jax.lax.scan`: the leading dimension stays whole.

    The leading dimension is that of the layers. A loop that runs over a split dimension has to fetch every iteration's
    slice from the device that holds it.

    Args:
        rule: The rule for one layer's parameters.
        pattern: Regular expression for the paths of the leaves that are stacked; the rule sees all others unchanged.

    Returns:
        The rule.

    Example:
        >>> import jax
        >>> from autoshard import fsdp_sharding, infer_sharding, stacked_sharding
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> weights = {"layers": {"w": jax.ShapeDtypeStruct((64, 16, 16), "float32")}}
        >>> infer_sharding(weights, mesh, stacked_sharding(fsdp_sharding("data", 0), "^layers/"))[1]
        {'layers': {'w': P(None, None, 'data')}}
    """
    expression = re.compile(pattern)

    def unstacked(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        if not leaf.shape or not expression.search(name):
            return rule(spec, mesh, name, leaf)
        layer = RuleLeaf(
            shape=leaf.shape[1:],
            dtype=leaf.dtype,
            nbytes=leaf.nbytes,
            preconditioner=leaf.preconditioner,
        )
        return (spec[0], *rule(spec[1:], mesh, name, layer))

    return unstacked


def state_sharding(params: Any, specs: Any) -> ShardingRule:
    """Optimizer state goes where its parameter is: a leaf whose path ends in a parameter's and has its shape.

    Args:
        params: The parameters.
        specs: Their PartitionSpecs or NamedShardings, or a prefix tree of them.

    Returns:
        The rule, which leaves other state (counts, factored moments, preconditioners) to the rules after it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoshard import infer_sharding, state_sharding
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> params = {"w": jnp.ones((64, 256))}
        >>> rule = state_sharding(params, {"w": jax.P(None, "data")})
        >>> infer_sharding({"count": jnp.ones(()), "mu": params}, mesh, rule)[1]
        {'count': P(), 'mu': {'w': P(None, 'data')}}
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_box)
    flat = jax.tree.leaves(jax.tree.broadcast(specs, jax.tree.unflatten(tree, range(len(leaves))), is_leaf=_is_spec),
                           is_leaf=_is_spec)  # fmt: skip
    known = {_name(path): (_facts(leaf).shape, spec) for (path, leaf), spec in zip(leaves, flat)}

    def rule(spec: SpecEntries, mesh: Mesh | AbstractMesh, name: str, leaf: RuleLeaf) -> SpecEntries:
        for suffix in _suffixes(name):
            shape, wanted = known.get(suffix, (None, None))
            if shape == leaf.shape:
                logger.info("%s: as parameter %s", name, suffix)
                return merged(spec, spec_entries(wanted, leaf.ndim))
        return spec

    return rule


def prefer_sharding(shardings: Any) -> Any:
    """Shardings as a wish: `autoshard` follows them as ``in_shardings`` unless another sharding pays.

    It pays if it saves more per call than reading the argument once. So an annotation can be a hint where it would be
    wrong to demand it.

    Args:
        shardings: A tree of PartitionSpecs, NamedShardings and None, as `infer_sharding` returns it.

    Returns:
        The same tree of wishes.

    Example:
        >>> import jax
        >>> from autoshard import autoshard, prefer_sharding
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"))
        >>> shape = jax.ShapeDtypeStruct((512, 512), "float32")
        >>> wish = prefer_sharding(jax.P("y", "x"))
        >>> autoshard(lambda a: 2 * a, mesh, in_shardings=(wish,)).plan(shape).arguments[0].spec
        (('y',), ('x',))
    """
    return jax.tree.map(lambda leaf: None if leaf is None else Hint(leaf), shardings, is_leaf=_is_spec)


@dataclass(slots=True)
class _Walk:
    """One walk over a tree; collects faults in place."""

    mesh: Mesh | AbstractMesh
    rule: ShardingRule
    logical_axes: LogicalAxes | None
    free: bool
    faults: list[str] = field(default_factory=list)

    def decide(self, name: str, leaf: Any) -> Any:
        """The spec of a leaf, or the list of those of a parameter's preconditioners."""
        if _is_factor_list(leaf):
            return [
                None if factor is None else self._spec(f"{name}/{i}", factor, preconditioner=True)
                for i, factor in enumerate(leaf)
            ]
        return self._spec(name, leaf, preconditioner=False)

    def _spec(self, name: str, leaf: Any, *, preconditioner: bool) -> PartitionSpec:
        facts = _facts(leaf, preconditioner)
        try:
            begun = decided_entries(name, leaf, facts.ndim, self.mesh, self.logical_axes)
            done = _applied(self.rule, begun, self.mesh, name, facts)
        except SpecError as error:
            self.faults.append(str(error))
            return PartitionSpec()
        logger.info("%s %s: %s", name, facts.shape, done)
        self.faults += [f"{name}{fault}" for fault in spec_faults(PartitionSpec(*done), facts.shape, self.mesh)]
        undecided = PartitionSpec.UNCONSTRAINED if self.free else None
        return PartitionSpec(*(undecided if entry is None else entry for entry in done))


def _place(
    spec: SpecEntries,
    mesh: Mesh | AbstractMesh,
    name: str,
    leaf: RuleLeaf,
    axes: tuple[str, ...],
    preferred: int,
) -> SpecEntries:
    """The spec with ``axes`` on the preferred dimension, or on the largest other one that is free and divides."""
    taken = {axis for entry in spec for axis in axes_of(entry)}
    if taken & set(axes):
        logger.info("%s: %s is in use already in %s", name, ", ".join(axes), spec)
        return spec
    parts = math.prod(mesh.shape[axis] for axis in axes if axis in mesh.axis_names)
    by_size = sorted(range(leaf.ndim), key=lambda d: (leaf.shape[d], d), reverse=True)
    for d in (preferred, *(d for d in by_size if d != preferred)):
        if spec[d] is not None:
            continue
        if leaf.shape[d] % parts:
            logger.info("%s: dimension %d of %s is not divisible by %d", name, d, leaf.shape, parts)
            continue
        return (*spec[:d], entry_of(axes), *spec[d + 1 :])
    logger.info("%s: no free dimension of %s is divisible by %d; %s is not used", name, leaf.shape, parts, axes)
    return spec


def _preferred_dimension(name: str, leaf: RuleLeaf) -> int | None:
    """Where the name wants the split; None where it wants none."""
    if not leaf.shape:
        return None
    largest = max(range(leaf.ndim), key=lambda d: (leaf.shape[d], d))
    second_to_last = leaf.ndim - 2 if leaf.ndim > 1 else 0
    if leaf.preconditioner:
        return second_to_last
    for word in reversed(re.findall(r"[a-z]+", name.lower())):
        if word in WHOLE_WORDS:
            return None
        if word in LAST_DIMENSION_WORDS:
            return leaf.ndim - 1
        if word in SECOND_TO_LAST_WORDS:
            return second_to_last
    return largest


def _is_spec(node: Any) -> bool:
    return node is None or isinstance(node, PartitionSpec | NamedSharding)


def _facts(leaf: Any, preconditioner: bool = False) -> RuleLeaf:
    value = value_of(leaf)
    shape = tuple(np.shape(value))
    dtype = getattr(value, "dtype", None) or np.result_type(value)
    itemsize = np.dtype(dtype).itemsize if not jnp.issubdtype(dtype, jax.dtypes.extended) else 8
    return RuleLeaf(shape=shape, dtype=dtype, nbytes=math.prod(shape) * itemsize, preconditioner=preconditioner)


def _is_factor_list(node: Any) -> bool:
    """Whether it is a list of preconditioners: square matrices, diagonals and None, at least one square."""
    if type(node) is not list or any(is_box(item) for item in node):
        return False
    shapes: list[tuple[int, ...]] = [getattr(item, "shape", ()) for item in node]
    matrices = [shape for shape in shapes if len(shape) > 1]
    return bool(matrices) and all(shape[-1] == shape[-2] for shape in matrices)


def _name(path: Sequence[Any]) -> str:
    """``layers/0/up/kernel``."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def _suffixes(name: str) -> Iterator[str]:
    """The name, and all that is left of it without its first parts."""
    parts = name.split("/")
    return ("/".join(parts[i:]) for i in range(len(parts)))
