"""Rebuild a traced function with a plan's decisions written into it.

The jaxpr is evaluated again, equation by equation, under the equations' own source lines and name scopes. Operands are
brought to the sharding that the plan requires, one ``with_sharding_constraint`` a step; results are pinned where XLA
must be told; strategies that constraints cannot say run as per-shard regions (`autoshard.local`). Regions (scan, while,
cond, remat, custom rules) are rebuilt inside out: their bodies are evaluated the same way and bound to the same
primitive with the same parameters. Constants are computed again inside the region that uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.extend.source_info_util as source_info_util
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from autoshard.apart import pieces
from autoshard.graph import Path
from autoshard.jaxprs import called, opened, scan_operands, solver_arguments
from autoshard.local import end_sum, open_sum, run_local
from autoshard.parts import divided_mesh
from autoshard.plan import Decision, Leaf, Plan, SpecDims, spec_of
from autoshard.rolling import ROLL, rolled
from autoshard.shardings import DEVICE_MEMORY, abstract_twin, partition_spec

Key = tuple[Path, int, str]
T = TypeVar("T")

source_info_util.register_exclusion(os.path.dirname(__file__) + os.sep)  # a line of ours is never the user's

ALWAYS_LOCAL = frozenset({"fft"})
"""Operations that run as per-shard regions even where every device does all of it, because of layouts."""

SCOPE = "autoshard"
"""Name scope of the constraints that a plan adds, in HLO and profiles, below the scopes of the user's line."""


@dataclass(slots=True)
class Held:
    """A value while the function is rebuilt; its copy is filled in place, once a user asks for it.

    Attributes:
        array: The array, in the sharding that the plan produces it in.
        shared_steps: Constraints that make its shared copy; empty if it has none.
        copy: The shared copy, once a user has asked for it.
        recipe: For constants, how to compute it again in another region; None for everything else.
        ways: The arrays along the ways that users have taken, by whether they began at the copy, and the steps.
    """

    array: Any
    shared_steps: tuple[SpecDims, ...] = ()
    copy: Any = None
    recipe: Callable[[dict[int, Held]], Held] | None = None
    ways: dict[tuple[bool, tuple[SpecDims, ...]], Any] = field(default_factory=dict)


def emit(plan: Plan, jaxpr: core.ClosedJaxpr, mesh: Mesh | AbstractMesh) -> Callable[..., list[Any]]:
    """The planned function over flat arguments.

    Args:
        plan: The plan.
        jaxpr: The traced program that the plan was made for.
        mesh: A mesh with Auto axes.

    Returns:
        A function from flat arguments to flat results, to be jitted with the plan's shardings.
    """
    decisions = {(d.path, d.slot, d.primitive): d for d in plan.decisions}
    inner = divided_mesh(mesh, plan.mesh.cut(plan.axis_parts))
    makers = {id(var): eqn for eqn in jaxpr.jaxpr.eqns for var in eqn.outvars}

    def emitted(*arguments: Any) -> list[Any]:
        emitter = _Emitter(decisions, inner, mesh)
        present = [emitter.on_device(a, leaf) for a, leaf in zip(arguments, plan.arguments)]
        held = [emitter.source(("argument", k), a) for k, a in enumerate(present)]
        outs = emitter.walk(jaxpr, held, ())
        return [
            _under(makers.get(id(var)), emitter.result, out, leaf)
            for var, out, leaf in zip(jaxpr.jaxpr.outvars, outs, plan.results)
        ]

    emitted.__name__ = plan.function
    return emitted


@dataclass(slots=True)
class _Emitter:
    decisions: Mapping[Key, Decision]
    mesh: Mesh | AbstractMesh
    whole: Mesh | AbstractMesh

    # Values

    def constrain(self, array: Any, dims: SpecDims, mesh: Mesh | AbstractMesh | None = None) -> Any:
        """One ``with_sharding_constraint``; nothing for scalars, keys and tokens."""
        if not dims:
            return array
        with jax.named_scope(SCOPE):
            place = NamedSharding(self.mesh if mesh is None else mesh, partition_spec(spec_of(dims)))
            return jax.lax.with_sharding_constraint(array, place)

    def on_shards(self, region: Callable[..., T], *args: Any) -> T:
        """A per-shard region, on the mesh of the context in which the program was traced, if there was one.

        Where axes are used in parts, the context is for the region that of the mesh that has them.
        """
        context = jax.sharding.get_abstract_mesh()
        if context.empty:
            return region(*args, self.mesh)
        if self.mesh is self.whole:
            return region(*args, context)
        inner = abstract_twin(self.mesh)
        with jax.sharding.use_abstract_mesh(inner):
            return region(*args, self.mesh)

    def through(self, array: Any, steps: Iterable[SpecDims]) -> Any:
        for dims in steps:
            array = self.constrain(array, dims)
        return array

    def on_device(self, array: Any, leaf: Leaf) -> Any:
        """An argument that lives in host memory, copied to the devices."""
        if leaf.memory_kind is None:
            return array
        place = NamedSharding(self.whole, partition_spec(spec_of(leaf.spec)), memory_kind=DEVICE_MEMORY)
        return jax.device_put(array, place)

    def source(self, which: tuple[str, int], array: Any) -> Held:
        kind, position = which
        decision = self.decisions.get(((position,), 0, kind))
        return Held(array, decision.shared.get(0, ()) if decision else ())

    def fetch(self, held: Held, route: Any) -> Any:
        """The value in the sharding that a use requires; ways that begin alike are gone once, as plans count them."""
        if route is None:
            return held.array
        array = self.copy_of(held) if route.shared else held.array
        for count, dims in enumerate(route.steps):
            way = route.shared, tuple(route.steps[: count + 1])
            if way not in held.ways:
                held.ways[way] = self.constrain(array, dims)
            array = held.ways[way]
        return array

    def copy_of(self, held: Held) -> Any:
        if held.copy is None:
            held.copy = self.through(held.array, held.shared_steps)
        return held.copy

    def result(self, held: Held, leaf: Leaf) -> Any:
        array = self.fetch(held, leaf.route)
        if jax.typeof(array).memory_space == jax.memory.Space.Host:  # put there by the function
            return array
        return self.constrain(array, leaf.spec, self.whole)

    def made(self, decision: Decision | None, k: int, array: Any) -> Held:
        """A result of an operation, pinned if the plan says so."""
        if decision is None:
            return Held(array)
        if decision.pinned[k] and not decision.left:
            array = self.constrain(array, decision.results[k])
        return Held(array, decision.shared.get(k, ()))

    def sink(self, held: Held, scope: dict[int, Held]) -> Held:
        """A constant computed again in the region whose constants are in ``scope``."""
        if held.recipe is None:
            return held
        if id(held) not in scope:
            scope[id(held)] = held.recipe(scope)
        return scope[id(held)]

    # Equations

    def walk(self, closed: core.ClosedJaxpr | core.Jaxpr, args: Sequence[Held], path: Path) -> list[Held]:
        """Evaluate a jaxpr; the twin of `autoshard.trace`'s walk."""
        jaxpr, consts = opened(closed)
        env: dict[core.Var, Held] = dict(zip(jaxpr.invars, args))
        env.update({var: _constant(value) for var, value in zip(jaxpr.constvars, consts)})

        def read(atom: Any) -> Held:
            return _constant(atom.val) if isinstance(atom, core.Literal) else env[atom]

        for position, eqn in enumerate(jaxpr.eqns):
            handler = _HANDLERS.get(eqn.primitive.name, _Emitter.plain)
            args = [read(v) for v in eqn.invars]
            env.update(zip(eqn.outvars, _under(eqn, handler, self, eqn, args, (*path, position))))
        return [read(v) for v in jaxpr.outvars]

    def plain(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """An ordinary operation."""
        decision = self.decisions.get((path, 0, eqn.primitive.name))
        if decision is None:
            return self.constant(eqn, args)
        arrays = [self.fetch(held, decision.routes.get(k)) for k, held in enumerate(args)]
        arrays = _within_bounds(eqn, arrays)
        if decision.local or eqn.primitive.name in ALWAYS_LOCAL:
            outs = self.on_shards(run_local, eqn, decision, arrays)
        else:
            outs = _bind(eqn, arrays, eqn.params)
        return [self.made(decision, k, out) for k, out in enumerate(outs)]

    def in_pieces(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """An operation that may be planned in several pieces; as one again if nothing moves between them."""
        apart = pieces(eqn)
        if apart is None:
            return self.plain(eqn, args, path)
        keys = [((*path, k), 0, piece.primitive.name) for k, piece in enumerate(apart.jaxpr.eqns)]
        found = [self.decisions[key] for key in keys if key in self.decisions]
        if len(found) < len(keys) or any(d.routes for d in found[1:]):
            return self.walk(apart, args, path)
        first, last = found[0], found[-1]
        whole = first.model_copy(update={"results": last.results, "shared": last.shared, "pinned": last.pinned})
        arrays = [self.fetch(args[0], first.routes.get(0))]
        return [self.made(whole, k, out) for k, out in enumerate(self.on_shards(run_local, eqn, whole, arrays))]

    def constant(self, eqn: core.JaxprEqn, args: list[Held]) -> list[Held]:
        """An operation on constants only (or on scalars): no sharding; it can be computed again anywhere."""
        outs = _bind(eqn, _within_bounds(eqn, [held.array for held in args]), eqn.params)
        if eqn.effects or any(held.recipe is None for held in args):
            return [Held(out) for out in outs]

        def again(k: int) -> Callable[[dict[int, Held]], Held]:
            def recipe(scope: dict[int, Held]) -> Held:
                arrays = [self.sink(held, scope).array for held in args]
                return Held(_bind(eqn, _within_bounds(eqn, arrays), eqn.params)[k], recipe=again(k))

            return recipe

        return [Held(out, recipe=again(k)) for k, out in enumerate(outs)]

    def constraint(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """The user's own constraint: the plan holds the value to it."""
        return [self.held_to(args[0], path, 0)]

    def held_to(self, held: Held, path: Path, slot: int) -> Held:
        """A value held to a sharding that the user's code asks for, if it does."""
        decision = self.decisions.get((path, slot, "sharding_constraint"))
        if decision is None:
            return held
        return self.made(decision, 0, self.fetch(held, decision.routes.get(0)))

    # Regions

    def enter(self, kind: str, held: Held, path: Path, slot: int) -> tuple[Any, Decision | None]:
        """An outer value as a region's operand, and the decision under which it is used inside."""
        decision = self.decisions.get((path, slot, kind))
        array = self.fetch(held, decision.routes.get(0) if decision else None)
        if decision is not None and decision.arriving:
            array = self.on_shards(open_sum, array, decision)
        return array, decision

    def inside(self, decision: Decision | None, outer: Held, array: Any, k: int = 0) -> Held:
        """A region's operand seen from inside: pinned there, since barriers and loops stop propagation."""
        if outer.recipe is not None and decision is None:
            return outer.recipe({})
        if decision is None:
            return Held(array)
        return Held(self.constrain(array, _stacked(decision, k)), decision.shared.get(k, ()))

    def remat(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        entered = [self.enter("remat_in", held, path, k) for k, held in enumerate(args)]
        outs: list[Held] = []

        def body(*arrays: Any) -> list[Any]:
            held = [self.inside(d, outer, a) for (_, d), outer, a in zip(entered, args, arrays)]
            outs[:] = self.walk(eqn.params["jaxpr"], held, path)
            return [out.array for out in outs]

        operands = [array for array, _ in entered]
        closed = _retrace(body, operands)
        results = _bind(eqn, [*closed.consts, *operands], {**eqn.params, "jaxpr": _open(closed)})
        return [Held(array, out.shared_steps) for array, out in zip(results, outs)]

    def scan(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        p = eqn.params
        consts, carries = scan_operands(p)
        kinds = ["scan_const"] * consts + ["scan_carry"] * carries + ["scan_xs"] * (len(args) - consts - carries)
        entered = [self.enter(kind, held, path, k) for k, (kind, held) in enumerate(zip(kinds, args))]

        def body(*arrays: Any) -> list[Any]:
            held = [
                Held(a) if kind == "scan_xs" and d is None else self.inside(d, outer, a)  # a slice is not the constant
                for kind, (_, d), outer, a in zip(kinds, entered, args, arrays)
            ]
            outs = self.walk(p["jaxpr"], held, path)
            kept = [self.carried(out, entered[consts + k][1]) for k, out in enumerate(outs[:carries])]
            stacked = [self.enter("scan_ys", out, path, carries + k)[0] for k, out in enumerate(outs[carries:])]
            return kept + stacked

        avals = [
            array if decision is not None and decision.arriving else v.aval
            for v, (array, decision) in zip(p["jaxpr"].jaxpr.invars, entered)
        ]
        results = _bind(eqn, [array for array, _ in entered], {**p, "jaxpr": _retrace(body, avals)})
        after = [self.after(entered[consts + k][1], results[k]) for k in range(carries)]
        ys = [self.decisions.get((path, k, "scan_ys")) for k in range(carries, len(results))]
        return after + [self.pinned(d, out) for d, out in zip(ys, results[carries:])]

    def pinned(self, decision: Decision | None, array: Any) -> Held:
        """A stacked result, always pinned: loops stop propagation."""
        if decision is None:
            return Held(array)
        return Held(self.constrain(array, decision.results[0]), decision.shared.get(0, ()))

    def after(self, decision: Decision | None, array: Any) -> Held:
        """A carry after its loop; a sum that stayed open is ended."""
        if decision is None or not decision.arriving:
            return self.made(decision, 1, array)
        return Held(self.on_shards(end_sum, array, decision), decision.shared.get(1, ()))

    def carried(self, out: Held, decision: Decision | None) -> Any:
        """A value at the end of an iteration, in the sharding of its carry."""
        if decision is None:
            return out.array
        return self.constrain(self.fetch(out, decision.routes.get(1)), _stacked(decision, 0))

    def while_loop(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        p = eqn.params
        tests, bodies = p["cond_nconsts"], p["body_nconsts"]
        consts = tests + bodies
        kinds = ["while_const"] * consts + ["while_carry"] * (len(args) - consts)
        entered = [self.enter(kind, held, path, k) for k, (kind, held) in enumerate(zip(kinds, args))]

        def seen(arrays: Sequence[Any], slots: Sequence[int]) -> list[Held]:
            return [self.inside(entered[k][1], args[k], a) for k, a in zip(slots, arrays)]

        carry = range(consts, len(args))

        def test(*arrays: Any) -> list[Any]:
            held = seen(arrays, [*range(tests), *carry])
            return [self.enter("while_test", out, path, 0)[0] for out in self.walk(p["cond_jaxpr"], held, (*path, 0))]

        def body(*arrays: Any) -> list[Any]:
            held = seen(arrays, [*range(tests, consts), *carry])
            outs = self.walk(p["body_jaxpr"], held, (*path, 1))
            return [self.carried(out, entered[consts + k][1]) for k, out in enumerate(outs)]

        cond_jaxpr = _retrace(test, [v.aval for v in p["cond_jaxpr"].jaxpr.invars])
        body_jaxpr = _retrace(body, [v.aval for v in p["body_jaxpr"].jaxpr.invars])
        params = {**p, "cond_jaxpr": cond_jaxpr, "body_jaxpr": body_jaxpr}
        results = _bind(eqn, [array for array, _ in entered], params)
        return [self.made(entered[consts + k][1], 1, out) for k, out in enumerate(results)]

    def cond(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        index, *operands = args
        entered = [self.enter("cond_in", held, path, k) for k, held in enumerate(operands)]
        exits = [self.decisions.get((path, k, "cond_out")) for k in range(len(eqn.outvars))]

        def branch(which: int, closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
            def body(*arrays: Any) -> list[Any]:
                held = [self.inside(d, outer, a) for (_, d), outer, a in zip(entered, operands, arrays)]
                outs = self.walk(closed, held, (*path, which))
                return [self.leave(d, out, which) for d, out in zip(exits, outs)]

            return _retrace(body, [v.aval for v in closed.jaxpr.invars])

        branches = tuple(branch(k, closed) for k, closed in enumerate(eqn.params["branches"]))
        results = _bind(eqn, [index.array, *(a for a, _ in entered)], {**eqn.params, "branches": branches})
        return [self.pinned(d, out) for d, out in zip(exits, results)]

    def leave(self, decision: Decision | None, out: Held, which: int) -> Any:
        if decision is None:
            return out.array
        return self.constrain(self.fetch(out, decision.routes.get(which)), decision.results[0])

    def inline(self, parameter: str, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """A nested call without rules of its own."""
        name = eqn.params.get("name")
        if name is None:
            return self.walk(called(eqn.params, parameter), args, path)
        with jax.named_scope(name):
            return self.walk(called(eqn.params, parameter), args, path)

    def jit(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """A jit inside, with the shardings that it fixes."""
        inside = [self.held_to(held, path, k) for k, held in enumerate(args)]
        outs = self.inline("jaxpr", eqn, inside, path)
        return [self.held_to(out, path, len(args) + k) for k, out in enumerate(outs)]

    def call(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """A nested call, walked into unless it is planned as one operation."""
        known = rolled(eqn)
        decision = self.decisions.get((path, 0, ROLL.name))
        if known is None or decision is None:
            return self.jit(eqn, args, path)
        arrays = [self.fetch(args[0], decision.routes.get(0))]
        if decision.local:
            outs = self.on_shards(run_local, known, decision, arrays)
        else:
            outs = [held.array for held in self.inline("jaxpr", eqn, [Held(array) for array in arrays], path)]
        return [self.made(decision, k, out) for k, out in enumerate(outs)]

    def custom(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """A call with its own derivative rule: the rule is kept, the body is rebuilt."""
        if all(held.recipe is not None for held in args):
            return self.constant(eqn, args)
        closed, outs = self.rebuilt(eqn.params["call_jaxpr"], args, path)
        results = _bind(eqn, [held.array for held in args], {**eqn.params, "call_jaxpr": closed})
        return [Held(array, out.shared_steps) for array, out in zip(results, outs)]

    def linear_solve(self, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        """A `custom_linear_solve`: the maps that its derivatives use are kept, the solver is rebuilt."""
        if all(held.recipe is not None for held in args):
            return self.constant(eqn, args)
        jaxprs = eqn.params["jaxprs"]
        closed, outs = self.rebuilt(jaxprs.solve, solver_arguments(eqn, args), path)
        params = {**eqn.params, "jaxprs": jaxprs._replace(solve=closed)}
        results = _bind(eqn, [held.array for held in args], params)
        return [Held(array, out.shared_steps) for array, out in zip(results, outs)]

    def rebuilt(self, body: core.ClosedJaxpr, args: Sequence[Held], path: Path) -> tuple[core.ClosedJaxpr, list[Held]]:
        """The body of a call with the decisions in it, and its results; constants are computed again inside."""
        outs: list[Held] = []

        def walked(*arrays: Any) -> list[Any]:
            held = [
                outer.recipe({}) if outer.recipe is not None else Held(a, outer.shared_steps)
                for outer, a in zip(args, arrays)
            ]
            outs[:] = self.walk(body, held, path)
            return [out.array for out in outs]

        return _retrace(walked, [v.aval for v in body.jaxpr.invars]), outs


def _under(eqn: core.JaxprEqn | None, work: Callable[..., T], *args: Any) -> T:
    """Work done under the source line, the name scopes and the context of an equation of the user's."""
    if eqn is None:
        return work(*args)
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        return work(*args)


def _stacked(decision: Decision, k: int) -> SpecDims:
    """The sharding of a result inside a region; a partial sum has its dimension in front."""
    dims = decision.results[k]
    return (decision.arriving, *dims) if decision.arriving else dims


def _constant(value: Any) -> Held:
    held = Held(value)
    held.recipe = lambda scope: held
    return held


def _bind(eqn: core.JaxprEqn, arrays: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """Bind an equation's primitive to arrays; always a list of results."""
    out = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(dict(params)))
    return list(out) if eqn.primitive.multiple_results else [out]


def _within_bounds(eqn: core.JaxprEqn, arrays: list[Any]) -> list[Any]:
    """Operands of a look-up, its indices clamped as the operation itself would do.

    XLA merges the slice that a device takes of the result into the look-up by adding the starts, and clamps the sum
    instead (XLA of jax 0.10: wrong values for a start beyond the end; mended in that of jax 0.12).
    """
    if eqn.primitive.name == "dynamic_slice":
        limits = [n - size for n, size in zip(arrays[0].shape, eqn.params["slice_sizes"])]
        return [arrays[0], *(_clamped(start, limit) for start, limit in zip(arrays[1:], limits))]
    if eqn.primitive.name == "gather" and eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        looked_up, sizes = eqn.params["dimension_numbers"].start_index_map, eqn.params["slice_sizes"]
        if any(sizes[d] > 1 for d in looked_up):
            limits = [arrays[0].shape[d] - sizes[d] for d in looked_up]
            columns = [_clamped(arrays[1][..., k : k + 1], limit) for k, limit in enumerate(limits)]
            return [arrays[0], jnp.concatenate(columns, axis=-1)]
    return arrays


def _clamped(start: Any, limit: int) -> Any:
    dtype = jax.typeof(start).dtype
    return jax.lax.clamp(jnp.zeros((), dtype), start, jnp.asarray(min(limit, jnp.iinfo(dtype).max), dtype))


def _retrace(body: Callable[..., list[Any]], operands: Sequence[Any]) -> core.ClosedJaxpr:
    """The jaxpr of a rebuilt region body, weak types kept."""
    avals = [x if isinstance(x, ShapedArray) else jax.typeof(x) for x in operands]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    return jax.make_jaxpr(body)(*shapes)


def _open(closed: core.ClosedJaxpr) -> core.Jaxpr:
    """A jaxpr without constants: they become its first inputs."""
    jaxpr: core.Jaxpr = closed.jaxpr
    if jaxpr.constvars:
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return jaxpr


def _inline_by(parameter: str) -> Callable[..., list[Held]]:
    def handler(emitter: _Emitter, eqn: core.JaxprEqn, args: list[Held], path: Path) -> list[Held]:
        return emitter.inline(parameter, eqn, args, path)

    return handler


_HANDLERS: dict[str, Callable[..., list[Held]]] = {
    "jit": _Emitter.call,
    "pjit": _Emitter.call,
    "closed_call": _inline_by("call_jaxpr"),
    "core_call": _inline_by("call_jaxpr"),
    "call": _inline_by("call_jaxpr"),
    "composite": _inline_by("jaxpr"),
    "custom_vmap_call": _inline_by("call"),
    "eval_jaxpr": _inline_by("jaxpr"),
    "xla_metadata_call": _inline_by("jaxpr"),
    "custom_linear_solve": _Emitter.linear_solve,
    "custom_jvp_call": _Emitter.custom,
    "custom_vjp_call": _Emitter.custom,
    "custom_vjp_call_jaxpr": _Emitter.custom,
    "remat": _Emitter.remat,
    "remat2": _Emitter.remat,
    "checkpoint": _Emitter.remat,
    "scan": _Emitter.scan,
    "while": _Emitter.while_loop,
    "cond": _Emitter.cond,
    "sharding_constraint": _Emitter.constraint,
    "fft": _Emitter.in_pieces,
}
