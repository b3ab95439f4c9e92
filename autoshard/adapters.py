"""`autoshard` for functions whose arguments are more than arrays: equinox modules, flax nnx objects.

`filter_autoshard` takes pytrees with any leaves, as `equinox.filter_jit` does; `nnx_autoshard` takes objects that are
updated in place, as `flax.nnx.jit` does. Neither needs its library to be installed before it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from autoshard.api import Autosharded, autoshard
from autoshard.errors import InputError, raise_all
from autoshard.plan import Plan

P = ParamSpec("P")
R = TypeVar("R")


def filter_autoshard(
    fn: Callable[P, R], mesh: Mesh | AbstractMesh | None = None, **options: Any
) -> AdaptedFunction[P, R]:
    """`autoshard` for pytrees with leaves that are no arrays, such as the activation functions in equinox modules.

    Arrays (of JAX and NumPy, and `jax.ShapeDtypeStruct`) are planned and sharded. Every other leaf, Python numbers
    included, is a constant of the function, as with `equinox.filter_jit`: another value means another plan. The same
    goes for results.

    Args:
        fn: The function.
        mesh: As of `autoshard`.
        **options: As of `autoshard`.

    Returns:
        A callable with the signature of ``fn`` and the methods of `AdaptedFunction`.

    Raises:
        InputError: On a call, if a leaf that is no array is not hashable; one line each.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from autoshard import filter_autoshard
        >>> layer = {"weight": jnp.eye(64), "activation": jax.nn.relu}
        >>> mesh = jax.make_mesh((8,), ("x",))
        >>> apply = filter_autoshard(lambda layer, x: layer["activation"](x @ layer["weight"]), mesh)
        >>> float(apply(layer, -jnp.ones((16, 64))).sum())
        0.0
    """

    @functools.wraps(fn)
    def on_hidden(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _shown((args, kwargs))
        return _hidden(fn(*args, **kwargs))

    inner = autoshard(on_hidden, mesh, **options)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entered:
        _refuse_unhashable(args, kwargs)
        return _Entered(inner, _hidden(args), _hidden(kwargs), _shown)

    return AdaptedFunction(fn, enter, [inner].__iter__)


def nnx_autoshard(fn: Callable[P, R], mesh: Mesh | AbstractMesh | None = None, **options: Any) -> AdaptedFunction[P, R]:
    """`autoshard` for functions of flax nnx objects, which they may update in place, as with `flax.nnx.jit`.

    Positional arguments that are nnx objects (modules, optimizers, metrics) are split into their graph, which is a
    constant of the function, and their state, which is planned and sharded; after a call the objects hold the new
    state. Variables may change their values, not come or go.

    Args:
        fn: The function.
        mesh: As of `autoshard`.
        **options: As of `autoshard`; ``in_shardings`` of an object is a prefix tree over its `nnx.state`, and donating
            an object gives its old buffers away.

    Returns:
        A callable with the signature of ``fn`` and the methods of `AdaptedFunction`; where an object is passed, a
        plan's shardings are those of its state.

    Raises:
        InputError: On a call, if an object has other variables afterwards than before, or is passed by keyword or
            inside of another argument, from where it could not be updated.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from autoshard import nnx_autoshard
        >>> mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        >>> model = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
        >>> step = nnx_autoshard(lambda model, x: model(x), mesh)  # instead of nnx.jit
        >>> step(model, jnp.ones((32, 8))).shape
        (32, 16)
    """
    functions: dict[Any, Autosharded[..., Any]] = {}

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entered:
        from flax import nnx

        numbers = tuple(i for i, argument in enumerate(args) if isinstance(argument, nnx.Pytree))
        _refuse_inner_objects([None if i in numbers else a for i, a in enumerate(args)], kwargs, nnx.Pytree)
        objects = tuple(args[i] for i in numbers)
        graph, state = nnx.split(objects)
        key = (graph, numbers)
        if key not in functions:
            functions[key] = autoshard(_on_state(fn, graph, numbers), mesh, **options)
        positional = list(args)
        for k, i in enumerate(numbers):
            positional[i] = state[k]

        def leave(results: Any) -> Any:
            *states, result = results
            nnx.update(objects, nnx.State(dict(enumerate(states))))
            return result

        return _Entered(functions[key], tuple(positional), kwargs, leave)

    return AdaptedFunction(fn, enter, lambda: iter(functions.values()))


def _refuse_inner_objects(args: list[Any], kwargs: dict[str, Any], kind: type) -> None:
    """Refuse nnx objects where their updates would be lost."""
    found = jax.tree_util.tree_leaves_with_path((args, kwargs), is_leaf=lambda node: isinstance(node, kind))
    faults = [
        f"argument {jax.tree_util.keystr(tuple(path[1:]))}: {type(leaf).__name__}"
        for path, leaf in found
        if isinstance(leaf, kind)
    ]
    raise_all(InputError, "nnx_autoshard takes nnx objects as positional arguments of their own:", faults)


def _on_state(fn: Callable[..., Any], graph: Any, numbers: tuple[int, ...]) -> Callable[..., Any]:
    """The function of objects as one of their states, which it returns, updated, before its result."""
    from flax import nnx

    @functools.wraps(fn)
    def on_state(*args: Any, **kwargs: Any) -> Any:
        objects = nnx.merge(graph, nnx.State({k: args[i] for k, i in enumerate(numbers)}))
        positional = list(args)
        for i, merged in zip(numbers, objects):
            positional[i] = merged
        result = fn(*positional, **kwargs)
        after, state = nnx.split(objects)
        if after != graph:
            raise InputError(
                f"{fn.__name__} adds or removes variables of its nnx objects: make them before the call, so that its "
                "state has the same tree before and after"
            )
        return (*(state[k] for k in range(len(numbers))), result)

    return on_state


class AdaptedFunction(Generic[P, R]):
    """A function planned by `autoshard` behind an adapter: `filter_autoshard` or `nnx_autoshard`."""

    __name__: str

    def __init__(
        self,
        fn: Callable[P, R],
        enter: Callable[[tuple[Any, ...], dict[str, Any]], _Entered],
        functions: Callable[[], Any],
    ) -> None:
        self._enter = enter
        self._functions = functions
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the planned function; plan it first if these arguments are new."""
        call = self._enter(args, kwargs)
        return cast(R, call.leave(call.function(*call.args, **call.kwargs)))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to its instance, which is the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for these arguments; nothing is run."""
        call = self._enter(args, kwargs)
        return call.function.plan(*call.args, **call.kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the planned function for these arguments, as `jax.jit` does."""
        call = self._enter(args, kwargs)
        return call.function.lower(*call.args, **call.kwargs)

    def clear_cache(self) -> None:
        """Forget all plans and compiled functions."""
        for function in self._functions():
            function.clear_cache()


@dataclass(frozen=True, slots=True)
class _Entered:
    """A call in terms of arrays: the planned function, its arguments, and what turns its results back."""

    function: Autosharded[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leave: Callable[[Any], Any]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, slots=True)
class _Constant:
    """A leaf that is no array, as a node without children: part of the tree, hence of the signature."""

    value: Any

    def tree_flatten(self) -> tuple[tuple[()], _Keyed]:
        return (), _Keyed(self.value)

    @classmethod
    def tree_unflatten(cls, keyed: _Keyed, children: Any) -> _Constant:
        return cls(keyed.value)


@dataclass(frozen=True, slots=True, eq=False)
class _Keyed:
    """Equal if type and value are: 1, 1.0 and True are three constants."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)


def _hidden(tree: Any) -> Any:
    """The tree with constants instead of the leaves that are no arrays."""
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else _Constant(leaf), tree)


def _shown(tree: Any) -> Any:
    """The inverse of `_hidden`."""
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, _Constant) else leaf,
        tree,
        is_leaf=lambda node: isinstance(node, _Constant),
    )


def _refuse_unhashable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    faults = []
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        if not _is_array(leaf) and type(leaf).__hash__ is None:
            place = jax.tree_util.keystr(tuple(path[1:]))
            faults.append(f"argument {place}: {type(leaf).__name__} is neither an array nor hashable")
    raise_all(InputError, "filter_autoshard takes arrays, and constants that can be hashed:", faults)
