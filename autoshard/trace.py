"""From a callable and abstract arguments to a `Graph`. The only maker of jaxprs besides the emitter's regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.extend.source_info_util as source_info_util
import jax.numpy as jnp
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core
from jax.sharding import NamedSharding

from autoshard.apart import pieces
from autoshard.errors import CapturedValuesError
from autoshard.graph import ASSUMED_WHILE_TRIPS, LITERAL, Graph, Op, Path, Value
from autoshard.jaxprs import called, equations, opened, scan_operands, solver_arguments, without_dead_code
from autoshard.rolling import rolled
from autoshard.rules.base import Combine, Dims, Equation, OpRule, RuleBuilder, TensorFacts, rule_of
from autoshard.rules.shardy import fallback_rule
from autoshard.shardings import fixed_dims


@dataclass(frozen=True, slots=True)
class Program:
    """A function traced for one abstract signature.

    Attributes:
        jaxpr: The closed jaxpr of the function over flat arguments.
        args_info: Tree of ``(args, kwargs)`` with shape, dtype and donation of every leaf.
        out_info: Tree of abstract results.
        argument_names: Path of every flat argument, such as ``params['w']``.
        output_names: Path of every flat result.
        argument_keys: Path of every flat argument below the parameter that it belongs to, such as ``['w']``.
        output_keys: Path of every flat result, whole and below its first key.
        donated: Per flat argument, whether its buffer is given away.
        name: The function's name.
    """

    jaxpr: core.ClosedJaxpr
    args_info: Any
    out_info: Any
    argument_names: tuple[str, ...]
    output_names: tuple[str, ...]
    argument_keys: tuple[str, ...]
    output_keys: tuple[tuple[str, str], ...]
    donated: tuple[bool, ...]
    name: str


def abstract(leaf: Any) -> Any:
    """Shape and dtype of an array leaf, without its sharding; Python scalars and other leaves as they are."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(leaf.weak_type))
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=bool(leaf.aval.weak_type))
    if isinstance(leaf, np.ndarray | np.generic):
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
    return leaf


def trace(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    signature_names: tuple[str, ...] = (),
    jit_options: Mapping[str, Any] | None = None,
) -> Program:
    """Trace a function on abstract arguments.

    Args:
        fn: The function.
        args: Positional arguments: pytrees of arrays or `jax.ShapeDtypeStruct`.
        kwargs: Keyword arguments.
        signature_names: Names of the positional parameters, for the argument paths.
        jit_options: ``static_argnums``, ``static_argnames``, ``donate_argnums``, ``donate_argnames`` as of `jax.jit`.

    Returns:
        The traced program.

    Raises:
        CapturedValuesError: The function uses values of an enclosing trace; see `lift`.
    """
    options = dict(jit_options or {})
    traced = jax.jit(fn, **options).trace(*args, **kwargs)
    leaves = jax.tree_util.tree_leaves_with_path(traced.args_info)
    names = tuple(_argument_name(path, signature_names) for path, _ in leaves)
    out_paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(traced.out_info)]
    keystr = jax.tree_util.keystr
    donated = tuple(bool(info.donated) for _, info in leaves)
    if len(names) != len(traced.jaxpr.jaxpr.invars):
        raise CapturedValuesError(
            f"{traced.fun_name} uses values of an enclosing jit, grad or vmap that are not among its arguments: pass "
            "them as arguments"
        )
    return Program(
        jaxpr=without_dead_code(traced.jaxpr),
        args_info=traced.args_info,
        out_info=traced.out_info,
        argument_names=names,
        output_names=tuple("result" + keystr(path) for path in out_paths),
        argument_keys=tuple(keystr(path[2:]) for path, _ in leaves),
        output_keys=tuple((keystr(path), keystr(path[1:])) for path in out_paths),
        donated=donated,
        name=traced.fun_name,
    )


def lift(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static: Sequence[int]
) -> tuple[Any, list[Any]]:
    """A function with the values of enclosing traces that it uses as a first argument.

    Args:
        fn: The function.
        args: Positional arguments, as shapes.
        kwargs: Keyword arguments, as shapes; none of them is static.
        static: Positions of static arguments.

    Returns:
        The function of these values and of the arguments that are not static, and the values.
    """
    closed, out_shape = jax.make_jaxpr(fn, static_argnums=tuple(static), return_shape=True)(*args, **kwargs)
    jaxpr, values = opened(closed)
    out_tree = jax.tree.structure(out_shape)

    def lifted(captured_values: Sequence[Any], *rest: Any, **named: Any) -> Any:
        leaves = jax.tree.leaves((rest, named))
        return jax.tree.unflatten(out_tree, eval_jaxpr(jaxpr, captured_values, *leaves))

    return lifted, list(values)


def _argument_name(path: Sequence[Any], signature_names: tuple[str, ...]) -> str:
    """``params['w'][0]`` for the leaf of a positional argument, ``key`` for a keyword argument."""
    kind, which, *rest = path
    if kind.idx == 1:
        return str(which.key) + jax.tree_util.keystr(tuple(rest))
    position = which.idx
    name: str = signature_names[position] if position < len(signature_names) else f"args[{position}]"
    return name + jax.tree_util.keystr(tuple(rest))


def facts_of(aval: Any) -> TensorFacts:
    """Shape, dtype name and bytes per element of an abstract value; tokens and the like have none.

    Types of fewer than eight bits are counted as one byte an element, as XLA keeps them unless a backend packs them.
    """
    shape = tuple(getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return TensorFacts((), "token", 0)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        element = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype))
        return TensorFacts(shape, str(dtype), math.prod(element.shape) * element.dtype.itemsize)
    return TensorFacts(shape, str(dtype), np.dtype(dtype).itemsize)


@dataclass(slots=True)
class _Draft:
    """An `Op` in the making: a boundary learns its last operands and times only when its region has been walked."""

    equation: Equation
    rule: OpRule
    path: Path
    slot: int
    operands: list[int]
    results: list[int]
    trips: float
    operand_trips: list[float]
    operand_until: list[int]
    result_from: list[int]
    source: str
    fixed: Any = None
    likelihood: float = 1.0

    def freeze(self) -> Op:
        return Op(
            self.equation, self.rule, self.path, self.slot, tuple(self.operands), tuple(self.results), self.trips,
            tuple(self.operand_trips), tuple(self.operand_until), tuple(self.result_from), self.source, self.fixed,
            self.likelihood,
        )  # fmt: skip


@dataclass(slots=True)
class _Builder:
    values: list[Value] = field(default_factory=list)
    drafts: list[_Draft] = field(default_factory=list)
    unruled: list[int] = field(default_factory=list)
    likelihood: float = 1.0

    @property
    def now(self) -> int:
        return len(self.drafts)

    def value(self, facts: TensorFacts, name: str, constant: bool, slot: int) -> int:
        self.values.append(Value(facts, name, constant, (self.now, slot)))
        return len(self.values) - 1

    def facts(self, number: int, aval: Any) -> TensorFacts:
        return facts_of(aval) if number == LITERAL else self.values[number].facts

    def all_constant(self, numbers: Sequence[int]) -> bool:
        return all(n == LITERAL or self.values[n].constant for n in numbers)

    def add(
        self,
        equation: Equation,
        rule: OpRule,
        path: Path,
        operands: Sequence[int],
        trips: float,
        source: str,
        *,
        slot: int = 0,
        names: Sequence[str] = (),
        constant: bool | None = None,
        operand_trips: Sequence[float] | None = None,
        fixed: Any = None,
    ) -> _Draft:
        """Append an operation and make its results."""
        if constant is None:
            constant = self.all_constant(operands)
        time = self.now
        results = [
            self.value(facts, names[k] if names else _describe(equation.primitive, source), constant, k)
            for k, facts in enumerate(equation.results)
        ]
        draft = _Draft(
            equation, rule, path, slot, list(operands), results, trips,
            list(operand_trips) if operand_trips is not None else [trips] * len(operands),
            [time] * len(operands), [time] * len(results), source, fixed, self.likelihood,
        )  # fmt: skip
        if not rule.ruled:
            self.unruled.append(time)
        self.drafts.append(draft)
        return draft


def _describe(primitive: str, source: str) -> str:
    return f"{primitive} at {source}" if source else primitive


def build_graph(program: Program) -> Graph:
    """The graph of a traced program.

    Args:
        program: What `trace` returned.

    Returns:
        The graph; its first operations are the arguments, in flat order.
    """
    b = _Builder()
    jaxpr = program.jaxpr.jaxpr
    arguments = []
    for position, (var, name) in enumerate(zip(jaxpr.invars, program.argument_names)):
        draft = _add_source(b, "argument", var.aval, (position,), name, constant=False)
        arguments.append(draft.results[0])
    outputs = _walk(b, program.jaxpr, arguments, (), 1.0)
    return Graph(
        tuple(b.values), tuple(d.freeze() for d in b.drafts), tuple(arguments), tuple(outputs), tuple(b.unruled)
    )


def _add_source(b: _Builder, kind: str, aval: Any, path: Path, name: str, *, constant: bool) -> _Draft:
    """An argument or a captured constant: no operand, any sharding."""
    facts = facts_of(aval)
    equation = Equation(kind, {}, (), (facts,))
    return b.add(equation, _identity_rule(0, facts), path, [], 1.0, "", names=[name], constant=constant)


def _identity_rule(operands: int, facts: TensorFacts, results: int = 1, *, aliases: bool = False) -> OpRule:
    """All operands and results have the same dimensions, each a parallel factor; nothing is computed."""
    b = RuleBuilder(Equation("identity", {}, (facts,) * operands, (facts,) * results))
    dims = b.factors_of(facts.shape)
    return b.build([dims] * operands, [dims] * results, aliases=aliases)


def _walk(
    b: _Builder, closed: core.ClosedJaxpr | core.Jaxpr, args: Sequence[int], path: Path, trips: float
) -> list[int]:
    """Add the equations of a jaxpr; returns the value numbers of its outputs."""
    jaxpr, consts = opened(closed)
    env: dict[core.Var, int] = dict(zip(jaxpr.invars, args))
    for k, (var, _) in enumerate(zip(jaxpr.constvars, consts)):
        env[var] = _add_source(b, "constant", var.aval, (*path, -1 - k), f"constant {k}", constant=True).results[0]

    def read(atom: Any) -> int:
        return LITERAL if isinstance(atom, core.Literal) else env[atom]

    for position, eqn in enumerate(jaxpr.eqns):
        handler = _REGIONS.get(eqn.primitive.name, _plain)
        outs = handler(b, eqn, [read(v) for v in eqn.invars], (*path, position), trips)
        env.update(zip(eqn.outvars, outs))
    return [read(v) for v in jaxpr.outvars]


def source_of(eqn: core.JaxprEqn) -> str:
    """The user's file and line of an equation, ``file.py:12 (function)``."""
    return source_info_util.summarize(eqn.source_info)


def _plain(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """An ordinary operation, by its rule; without one by Shardy's, or whole."""
    equation = equation_of(eqn)
    rule = rule_of(equation)
    if not rule.ruled:
        rule = fallback_rule(eqn, equation) or rule
    constant = False if eqn.effects else None
    return b.add(equation, rule, path, args, trips, source_of(eqn), constant=constant).results


def equation_of(eqn: core.JaxprEqn) -> Equation:
    """What a rule may know of an equation."""
    operands, results = (tuple(facts_of(v.aval) for v in vs) for vs in (eqn.invars, eqn.outvars))
    return Equation(eqn.primitive.name, eqn.params, operands, results)


def _call(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """A nested call, walked into unless it is known as one operation."""
    known = rolled(eqn)
    return _jit(b, eqn, args, path, trips) if known is None else _plain(b, known, args, path, trips)


def _in_pieces(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """An operation that may be planned in several pieces."""
    apart = pieces(eqn)
    return _plain(b, eqn, args, path, trips) if apart is None else _walk(b, apart, args, path, trips)


def _constraint(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """A `with_sharding_constraint` of the user's: kept, dimension by dimension."""
    free = eqn.params.get("unconstrained_dims", ())
    return [_held_to(b, args[0], eqn.invars[0].aval, eqn.params["sharding"], path, 0, trips, source_of(eqn), free)]


def _held_to(
    b: _Builder,
    number: int,
    aval: Any,
    sharding: Any,
    path: Path,
    slot: int,
    trips: float,
    source: str,
    unconstrained: Iterable[int] = (),
) -> int:
    """A value held to a sharding that the user's code asks for."""
    facts = b.facts(number, aval)
    equation = Equation("sharding_constraint", {}, (facts,), (facts,))
    rule = replace(_identity_rule(1, facts, aliases=True), pinned=True)
    fixed = fixed_dims(sharding, len(facts.shape), unconstrained)
    return b.add(equation, rule, path, [number], trips, source, slot=slot, fixed=fixed, constant=False).results[0]


def _jit(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """A jit inside, inlined; the shardings that it fixes are constraints like others in the code."""
    p, source = eqn.params, source_of(eqn)

    def held(numbers: Sequence[int], atoms: Sequence[Any], shardings: Sequence[Any], first_slot: int) -> list[int]:
        return [
            _held_to(b, number, atom.aval, sharding, path, first_slot + k, trips, source)
            if number != LITERAL and isinstance(sharding, NamedSharding)
            else number
            for k, (number, atom, sharding) in enumerate(zip(numbers, atoms, shardings))
        ]

    inside = held(args, eqn.invars, p["in_shardings"], 0)
    return held(_walk(b, p["jaxpr"], inside, path, trips), eqn.outvars, p["out_shardings"], len(args))


def foreign_constraints(program: Program, sizes: Mapping[str, int]) -> list[str]:
    """Shardings in the program's code that are of another mesh than one of these axes, with the user's line."""
    faults: dict[str, None] = {}
    for eqn in equations(program.jaxpr, closed_to=("shard_map",)):
        p = eqn.params
        for sharding in (p.get("sharding"), *p.get("in_shardings", ()), *p.get("out_shardings", ())):
            foreign = isinstance(sharding, NamedSharding) and not sharding.mesh.empty  # JAX's own are of no mesh
            if foreign and dict(sharding.mesh.shape) != dict(sizes):
                faults[f"{source_of(eqn)}: {sharding.spec} is of a mesh {dict(sharding.mesh.shape)}"] = None
    return list(faults)


def _inline(parameter: str) -> Callable[..., list[int]]:
    def inline(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
        return _walk(b, called(eqn.params, parameter), args, path, trips)

    return inline


def _linear_solve(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    """A `custom_linear_solve` is its solver: the other maps are for derivatives."""
    return _walk(b, eqn.params["jaxprs"].solve, solver_arguments(eqn, args), path, trips)


def _enter(
    b: _Builder,
    kind: str,
    number: int,
    aval: Any,
    path: Path,
    slot: int,
    inner_trips: float,
    outer_trips: float,
    source: str,
) -> _Draft:
    """A boundary through which an outer value is used in a region under one sharding."""
    facts = b.facts(number, aval)
    equation = Equation(kind, {}, (facts,), (facts,))
    name = _name(b, number)
    return b.add(
        equation, _identity_rule(1, facts, aliases=True), path, [number], inner_trips, source,
        slot=slot, names=[name], operand_trips=[outer_trips],
    )  # fmt: skip


def _name(b: _Builder, number: int) -> str:
    return "literal" if number == LITERAL else b.values[number].name


def _remat(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    source = source_of(eqn)
    entered = [
        _enter(b, "remat_in", n, v.aval, path, k, trips, trips, source)
        for k, (n, v) in enumerate(zip(args, eqn.invars))
    ]
    return _walk(b, eqn.params["jaxpr"], [d.results[0] for d in entered], path, trips)


def _scan(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    p, source = eqn.params, source_of(eqn)
    consts, carries = scan_operands(p)
    inner = trips * p["length"]
    body = p["jaxpr"].jaxpr
    start = b.now
    entered = [
        _enter(b, "scan_const", n, eqn.invars[k].aval, path, k, inner, trips, source)
        for k, n in enumerate(args[:consts])
    ]
    carried = [
        _carry(b, "scan_carry", args[k], body.invars[k].aval, path, k, inner, trips, source)
        for k in range(consts, consts + carries)
    ]
    scanned = [
        _slice_in(b, args[k], eqn.invars[k].aval, body.invars[k].aval, path, k, inner, trips, source)
        for k in range(consts + carries, len(args))
    ]
    inside = [d.results[0] for d in (*entered, *carried, *scanned)]
    outs = _walk(b, p["jaxpr"], inside, path, inner)
    for draft, out in zip(carried, outs[:carries]):
        _close_carry(b, draft, out)
    stacked = [
        _stack_out(b, outs[k], body.outvars[k].aval, eqn.outvars[k].aval, path, k, inner, start, source)
        for k in range(carries, len(outs))
    ]
    for draft in (*entered, *scanned):
        draft.operand_until = [b.now - 1]
    return [d.results[1] for d in carried] + [d.results[0] for d in stacked]


def _carry(
    b: _Builder, kind: str, init: int, aval: Any, path: Path, slot: int, inner: float, outer: float, source: str
) -> _Draft:
    facts = facts_of(aval)
    equation = Equation(kind, {}, (facts, facts), (facts, facts))
    rule = _identity_rule(2, facts, results=2)
    return b.add(
        equation, rule, path, [init, LITERAL], inner, source,
        slot=slot, names=[_name(b, init)] * 2, constant=False, operand_trips=[outer, inner],
    )  # fmt: skip


def _close_carry(b: _Builder, draft: _Draft, out: int) -> None:
    """The region has been walked: the value after an iteration is known, and the loop's result exists from here."""
    draft.operands[1] = out
    draft.operand_until[1] = draft.result_from[1] = b.now - 1


def _slice_in(
    b: _Builder, number: int, aval: Any, inner_aval: Any, path: Path, slot: int, inner: float, outer: float, source: str
) -> _Draft:
    stacked, one = b.facts(number, aval), facts_of(inner_aval)
    rule = _identity_rule(1, one)
    rule = replace(rule, operands=(((), *rule.operands[0]),), fusible=True)
    equation = Equation("scan_xs", {}, (stacked,), (one,))
    return b.add(
        equation, rule, path, [number], inner, source, slot=slot, names=[_name(b, number)], operand_trips=[outer]
    )


def _stack_out(
    b: _Builder, number: int, inner_aval: Any, aval: Any, path: Path, slot: int, inner: float, start: int, source: str
) -> _Draft:
    one, stacked = b.facts(number, inner_aval), facts_of(aval)
    rule = _identity_rule(1, one)
    dims: Dims = ((), *rule.results[0])
    rule = replace(rule, results=(dims,))
    equation = Equation("scan_ys", {}, (one,), (stacked,))
    draft = b.add(equation, rule, path, [number], inner, source, slot=slot, names=[_name(b, number)], constant=False)
    draft.result_from = [start]
    return draft


def _while(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    p, source = eqn.params, source_of(eqn)
    inner = trips * ASSUMED_WHILE_TRIPS
    consts = p["cond_nconsts"] + p["body_nconsts"]
    entered = [
        _enter(b, "while_const", n, eqn.invars[k].aval, path, k, inner, trips, source)
        for k, n in enumerate(args[:consts])
    ]
    body = p["body_jaxpr"].jaxpr
    carried = [
        _carry(b, "while_carry", n, body.invars[p["body_nconsts"] + k].aval, path, consts + k, inner, trips, source)
        for k, n in enumerate(args[consts:])
    ]
    inside = [d.results[0] for d in carried]
    cond_consts = [d.results[0] for d in entered[: p["cond_nconsts"]]]
    body_consts = [d.results[0] for d in entered[p["cond_nconsts"] :]]
    (goes_on,) = _walk(b, p["cond_jaxpr"], [*cond_consts, *inside], (*path, 0), inner)
    _while_test(b, goes_on, p["cond_jaxpr"].jaxpr.outvars[0].aval, path, inner, source)
    outs = _walk(b, p["body_jaxpr"], [*body_consts, *inside], (*path, 1), inner)
    for draft, out in zip(carried, outs):
        _close_carry(b, draft, out)
    for draft in entered:
        draft.operand_until = [b.now - 1]
    return [d.results[1] for d in carried]


def _while_test(b: _Builder, number: int, aval: Any, path: Path, trips: float, source: str) -> None:
    """A loop that was batched goes on while any element of its test is true: an "or" over all devices a trip."""
    facts = b.facts(number, aval)
    if not facts.shape:
        return
    equation = Equation("while_test", {}, (facts,), (TensorFacts((), facts.dtype, facts.itemsize),))
    builder = RuleBuilder(equation)
    dims = tuple(builder.factor(n, Combine.EXTREME) for n in facts.shape)
    b.add(equation, builder.build([dims], [()]), path, [number], trips, source)


def _cond(b: _Builder, eqn: core.JaxprEqn, args: list[int], path: Path, trips: float) -> list[int]:
    branches, source = eqn.params["branches"], source_of(eqn)
    entered = [
        _enter(b, "cond_in", n, eqn.invars[k + 1].aval, path, k, trips, trips, source) for k, n in enumerate(args[1:])
    ]
    inside = [d.results[0] for d in entered]
    share = trips / len(branches)
    b.likelihood /= len(branches)
    outs = [_walk(b, branch, inside, (*path, k), share) for k, branch in enumerate(branches)]
    b.likelihood *= len(branches)
    for draft in entered:
        draft.operand_until = [b.now - 1]
    results = []
    for k, var in enumerate(eqn.outvars):
        facts = facts_of(var.aval)
        alternatives = [out[k] for out in outs]
        equation = Equation("cond_out", {}, (facts,) * len(alternatives), (facts,))
        rule = _identity_rule(len(alternatives), facts)
        draft = b.add(
            equation, rule, path, alternatives, trips, source,
            slot=k, constant=False, operand_trips=[share] * len(alternatives),
        )  # fmt: skip
        results.append(draft.results[0])
    return results


_REGIONS: dict[str, Callable[..., list[int]]] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _inline("call_jaxpr"),
    "core_call": _inline("call_jaxpr"),
    "call": _inline("call_jaxpr"),
    "composite": _inline("jaxpr"),
    "custom_vmap_call": _inline("call"),
    "eval_jaxpr": _inline("jaxpr"),
    "xla_metadata_call": _inline("jaxpr"),
    "custom_linear_solve": _linear_solve,
    "custom_jvp_call": _inline("call_jaxpr"),
    "custom_vjp_call": _inline("call_jaxpr"),
    "custom_vjp_call_jaxpr": _inline("call_jaxpr"),
    "remat": _remat,
    "remat2": _remat,
    "checkpoint": _remat,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "sharding_constraint": _constraint,
    "fft": _in_pieces,
}
