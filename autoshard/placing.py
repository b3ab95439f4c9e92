"""Where arrays belong: shardings for trees that the plan knows in part, states made in place, batches of several hosts.

Leaves are matched by path, type and shape. Paths are compared by their names, so that a dictionary which a checkpoint
was restored to matches the dataclass that it was saved from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from autoshard.errors import InputError, SpecError, did_you_mean, raise_all

RESULT = "result"
"""Root of the results' paths."""

Names = tuple[str, ...]
"""A path below the arguments or results: the name of the parameter, then keys, attributes and positions."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one flat argument or result of a plan belongs.

    Attributes:
        root: The parameter that it belongs to, or `RESULT`.
        path: JAX's keys below that.
        shape: Shape of the whole array.
        dtype: Element type.
        sharding: The plan's sharding.
    """

    root: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    sharding: NamedSharding

    @property
    def name(self) -> str:
        """The path as it is printed, such as ``state['w']``."""
        return self.root + jax.tree_util.keystr(self.path)

    @property
    def keys(self) -> Names:
        """The path, key by key, parameter first."""
        return (self.root, *_names(self.path))


def places_of(names: Sequence[str], leaves: Sequence[tuple[tuple[int, ...], str]], trees: Sequence[Any]) -> list[Place]:
    """The flat arguments or results with their paths.

    Args:
        names: Printed path of each leaf.
        leaves: Shape and element type of each leaf.
        trees: Trees of NamedShardings, one per parameter, whose leaves are these in order.
    """
    flat = [leaf for tree in trees for leaf in jax.tree_util.tree_leaves_with_path(tree)]
    return [
        Place(name.removesuffix(jax.tree_util.keystr(path)), path, shape, dtype, sharding)
        for name, (shape, dtype), (path, sharding) in zip(names, leaves, flat, strict=True)
    ]


Fits = Callable[[Place, tuple[int, ...]], bool]
"""Whether a leaf of some shape belongs in a place."""


def shardings_for(places: Sequence[Place], tree: Any) -> Any:
    """Shardings for a tree whose leaves are a part of the places.

    Args:
        places: All arguments, then all results.
        tree: A tree of arrays or shapes: an argument, a result, a part of one, or part of its leaves.

    Returns:
        A tree of the same structure with a NamedSharding per leaf.

    Raises:
        InputError: No argument or result has these leaves, or several with different shardings have.
    """
    found = matching_places(places, tree)
    return jax.tree.unflatten(jax.tree.structure(tree), [place.sharding for place in found])


def _is_whole(place: Place, shape: tuple[int, ...]) -> bool:
    return shape == place.shape


def matching_places(places: Sequence[Place], tree: Any, fits: Fits = _is_whole) -> list[Place]:
    """The place of every leaf of a tree; see `shardings_for`."""
    leaves = [(_names(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    if not leaves:
        return []
    by_keys = {place.keys: place for place in reversed(places)}
    first = leaves[0][0]
    above = dict.fromkeys(p.keys[: len(p.keys) - len(first)] for p in places if _ends_with(p.keys, first))
    candidates = []
    for prefix in above:
        group = [by_keys.get((*prefix, *keys)) for keys, _ in leaves]
        held = [place for place in group if place is not None]
        if len(held) == len(leaves) and all(_alike(p, leaf, fits) for p, (_, leaf) in zip(held, leaves)):
            candidates.append((prefix[:1] == (RESULT,), len(prefix), held))
    if not candidates and type(tree) in (tuple, list):
        return _of_several_arguments(places, tree, fits)
    if not candidates:
        raise InputError(_not_found(places, leaves))
    return _nearest(candidates, len(first))


def _nearest(candidates: Sequence[tuple[bool, int, list[Place]]], levels: int) -> list[Place]:
    """The candidate nearest to the top, arguments before results; others there must agree with it."""
    best = min((is_result, depth) for is_result, depth, _ in candidates)
    chosen, *others = [held for is_result, depth, held in candidates if (is_result, depth) == best]
    rivals = [other for other in others if [p.sharding for p in other] != [p.sharding for p in chosen]]
    if rivals:
        names = ", ".join(_above(other[0], levels) for other in (chosen, *rivals))
        raise InputError(
            f"such a tree stands in several places with different shardings: {names}; say which, as in "
            f"plan.shardings_for({_above(chosen[0], levels)!r}), or give the whole argument"
        )
    return chosen


def _of_several_arguments(places: Sequence[Place], trees: Sequence[Any], fits: Fits) -> list[Place]:
    """The places of a tuple of arguments: all of them in order, or some."""
    roots = list(dict.fromkeys(place.root for place in places if place.root != RESULT))
    whole = len(roots) == len(trees)
    found = []
    for position, tree in enumerate(trees):
        own = [place for place in places if place.root == roots[position]] if whole else places
        found += matching_places(own, tree, fits)
    return found


def _names(path: Sequence[Any]) -> Names:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def is_below(name: str, path: str) -> bool:
    """Whether a printed path is another one or goes on from there.

    Example:
        >>> is_below("state['w']", "state"), is_below("state2['w']", "state")
        (True, False)
    """
    return name == path or (name.startswith(path) and name[len(path)] in "[.")


def _ends_with(keys: Names, end: Names) -> bool:
    return len(end) <= len(keys) and keys[len(keys) - len(end) :] == end


def _above(place: Place, levels: int) -> str:
    """The printed path some levels above a place."""
    return place.root + jax.tree_util.keystr(place.path[: len(place.path) - levels])


def _alike(place: Place, leaf: Any, fits: Fits) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and place.dtype != str(jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)):
        return False
    return fits(place, np.shape(leaf))


def _not_found(places: Sequence[Place], leaves: Sequence[tuple[Names, Any]]) -> str:
    """Why a tree has no place: the leaf that fits nowhere, or that not all stand below one path."""
    for keys, leaf in leaves:
        same_path = [place for place in places if _ends_with(place.keys, keys)]
        if any(_alike(place, leaf, _is_whole) for place in same_path):
            continue
        what = f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(np.shape(leaf))}"
        where = "".join(f"[{key}]" for key in keys) or "the leaf"
        known = ", ".join(f"{p.name} {p.dtype}{list(p.shape)}" for p in same_path[:3])
        hint = (
            f"the plan has {known}" if known else f"the plan has {', '.join(dict.fromkeys(p.name for p in places[:8]))}"
        )
        return f"no argument or result of the plan is {where} of {what}; {hint}"
    return "the leaves of this tree are not all below one argument or result of the plan"


def at_path(places: Sequence[Place], trees: Sequence[Any], path: str) -> Any:
    """The subtree of shardings at a path such as ``state['params']`` or ``result[0]``.

    Args:
        places: All arguments, then all results.
        trees: The trees of NamedShardings whose leaves they are, one per parameter.
        path: The path.

    Raises:
        InputError: Nothing is there.
    """
    rest = iter(places)
    roots = [[next(rest).root for _ in jax.tree.leaves(tree)][:1] for tree in trees]
    for root, tree in zip(roots, trees):
        found = _subtree(tree, path.removeprefix(root[0])) if root and path.startswith(root[0]) else []
        if found:
            return found[0]
    known = ", ".join(dict.fromkeys(place.root for place in places))
    hint = did_you_mean(path, [place.name for place in places]) or f"; its arguments and results are {known}"
    raise InputError(f"the plan has nothing at {path!r}{hint}")


def _subtree(tree: Any, path: str) -> list[Any]:
    """The node whose printed path is ``path``, if there is one."""
    found: list[Any] = []

    def is_wanted(keys: Any, node: Any) -> bool:
        if jax.tree_util.keystr(keys) != path:
            return False
        found.append(node)
        return True

    jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_wanted, is_leaf_takes_path=True)
    return found


def initialise(
    init_fn: Callable[..., Any], args: Sequence[Any], shardings: Callable[[Any], Any]
) -> tuple[Any, tuple[Any, ...]]:
    """The jitted function that makes a state where it belongs, and the arguments to call it with.

    Args:
        init_fn: Makes the state.
        args: Its arguments; those without arrays are closed over, as they may be sizes.
        shardings: From the abstract state to its shardings.

    Returns:
        The jitted function and its dynamic arguments.
    """
    is_dynamic = [any(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(a)) for a in args]

    def make(*dynamic: Any) -> Any:
        rest = iter(dynamic)
        return init_fn(*(next(rest) if moves else a for a, moves in zip(args, is_dynamic)))

    dynamic = tuple(a for a, moves in zip(args, is_dynamic) if moves)
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make, *dynamic))), dynamic


def global_arrays(places: Sequence[Place], local: Any, at: str | None) -> Any:
    """Global arrays of what every host has a part of; see `Plan.global_arrays`.

    Raises:
        InputError: No argument has these leaves.
        SpecError: One line per leaf whose extents are no part of its argument.
    """
    if at is not None:
        places = [place for place in places if is_below(place.name, at)]
    leaves, structure = jax.tree.flatten(local)
    try:
        found = matching_places(places, local, _is_part)
    except InputError:
        found = matching_places(places, local, lambda place, shape: len(shape) == len(place.shape))
        raise_all(SpecError, "these are not this host's parts of an argument:", _wrong_parts(found, leaves))
        raise
    return jax.tree.unflatten(structure, [_joined(place, np.asarray(leaf)) for place, leaf in zip(found, leaves)])


def _is_part(place: Place, shape: tuple[int, ...]) -> bool:
    return shape in (place.shape, local_shape(place), _rows(place))


def _rows(place: Place) -> tuple[int, ...]:
    """An equal share of the leading dimension for every process."""
    if not place.shape or place.shape[0] % jax.process_count():
        return place.shape
    return (place.shape[0] // jax.process_count(), *place.shape[1:])


def _joined(place: Place, part: np.ndarray[Any, Any]) -> jax.Array:
    """A global array of this process's part; rows that other hosts need as well are exchanged first."""
    if part.shape not in (local_shape(place), place.shape):
        part = np.asarray(multihost_utils.process_allgather(part, tiled=True))
    make: Callable[..., jax.Array] = jax.make_array_from_process_local_data
    return make(place.sharding, part, place.shape)


def _wrong_parts(places: Sequence[Place], leaves: Sequence[Any]) -> list[str]:
    return [
        f"{place.name}: {np.shape(leaf)} is given; it is {place.shape} in all, {local_shape(place)} of it on this host "
        f"under {place.sharding.spec}, {_rows(place)} if every process has read an equal share of the rows"
        for place, leaf in zip(places, leaves)
        if not _is_part(place, np.shape(leaf))
    ]


def local_shape(place: Place) -> tuple[int, ...]:
    """Extents of the part of an array that this process's devices hold, copies counted once."""
    index = place.sharding.addressable_devices_indices_map(place.shape).values()
    parts = [{(s.start or 0, s.stop or n) for s in dim} for dim, n in zip(zip(*index), place.shape)] if index else []
    return tuple(sum(stop - start for start, stop in spans) for spans in parts)
