"""Run one strategy of one operation on eight devices, through the real emission, and read what XLA compiled."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import AxisType, Mesh, NamedSharding

from autoshard import hlo
from autoshard.costs import MeshModel, ShardingSpec
from autoshard.emit import emit
from autoshard.jaxprs import opened
from autoshard.plan import Decision, Ending, Leaf, Plan
from autoshard.rules import Equation, OpRule, rule_of
from autoshard.shardings import partition_spec
from autoshard.strategies import Strategy, StrategySet, enumerate_strategies
from autoshard.trace import equation_of

MESHES = {"4x2": {"x": 4, "y": 2}, "2x2x2": {"x": 2, "y": 2, "z": 2}}

CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "closed_call": "call_jaxpr"}

BYTES_SLACK = 0.02
"""Relative difference of wire bytes that still counts as equal: scalar bookkeeping beside a tensor."""


@dataclass(frozen=True)
class Case:
    """One operation on concrete operands.

    Attributes:
        name: Name for test ids.
        primitive: The primitive to take out of the traced function.
        fn: A function that contains it.
        args: Its arguments.
        exact: Whether values must be equal bit by bit, rather than up to rounding.
    """

    name: str
    primitive: str
    fn: Callable[..., Any]
    args: Sequence[Any]
    exact: bool = False

    @cached_property
    def op(self) -> OneOp:
        """The operation, with the values that its operands have in the function."""
        closed = jax.make_jaxpr(self.fn)(*self.args)
        found = next(_equations(closed, list(self.args), self.primitive), None)
        if found is None:
            raise AssertionError(f"{self.name}: the function has no {self.primitive}")
        return OneOp(*found, closed.jaxpr)


@dataclass(frozen=True)
class OneOp:
    """An equation, the values of its operands, and the program that it was taken from."""

    eqn: core.JaxprEqn
    operands: Sequence[Any]
    program: core.Jaxpr

    @cached_property
    def equation(self) -> Equation:
        """What its rule is made from."""
        return equation_of(self.eqn)

    @cached_property
    def rule(self) -> OpRule:
        """Its rule."""
        return rule_of(self.equation)

    @cached_property
    def expected(self) -> list[Any]:
        """Results on one device."""
        out = self.eqn.primitive.bind(*self.operands, **self.eqn.primitive.get_bind_params(dict(self.eqn.params)))
        return list(out) if self.eqn.primitive.multiple_results else [out]

    def strategies(self, mesh: MeshModel) -> StrategySet:
        """All its strategies, with all operands and results in memory."""
        equation = self.equation
        traffic = (True,) * (len(equation.operands) + len(equation.results))
        return enumerate_strategies(self.rule, equation.operands, equation.results, traffic, mesh)

    def jaxpr(self) -> core.ClosedJaxpr:
        """A program of this equation alone."""
        inputs = [v if isinstance(v, core.Literal) else core.Var(v.aval) for v in self.eqn.invars]
        outputs = [core.Var(v.aval) for v in self.eqn.outvars]
        eqn = self.eqn.replace(invars=inputs, outvars=outputs)
        arguments = [v for v in inputs if isinstance(v, core.Var)]
        alone = self.program.replace(constvars=[], invars=arguments, outvars=outputs, eqns=[eqn], effects=eqn.effects)
        return core.ClosedJaxpr(alone, ())


def _equations(
    closed: core.ClosedJaxpr | core.Jaxpr, args: Sequence[Any], primitive: str
) -> Iterator[tuple[core.JaxprEqn, list[Any]]]:
    """Equations of a primitive with the values of their operands, nested calls entered."""
    jaxpr, consts = opened(closed)
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args]))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive.name == primitive:
            yield eqn, operands
            return
        if eqn.primitive.name in CALLS:
            inner = eqn.params[CALLS[eqn.primitive.name]]
            for found in _equations(inner, operands, primitive):
                yield found
                return
        out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(dict(eqn.params)))
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))


def sampled(strategies: Sequence[Strategy], count: int) -> list[Strategy]:
    """At most so many strategies, the same ones every time."""
    if len(strategies) <= count:
        return list(strategies)
    return random.Random(0).sample(list(strategies), count)


def jax_mesh(sizes: Mapping[str, int]) -> Mesh:
    """A mesh of the virtual devices with Auto axes."""
    devices = np.array(jax.devices()[: math.prod(sizes.values())]).reshape(*sizes.values())
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def decision_of(op: OneOp, strategy: Strategy) -> Decision:
    """What the planner would decide for the operation if it chose this strategy."""
    return Decision(
        path=(0,),
        slot=0,
        primitive=op.eqn.primitive.name,
        operands=tuple(spec.dims for spec in strategy.operands),
        results=tuple(spec.dims for spec in strategy.results),
        routes={},
        shared={},
        pinned=(op.rule.pinned,) * len(strategy.results),
        local=strategy.local,
        endings=tuple(Ending(kind=c.kind, axes=c.axes, dimension=c.dimension) for c in strategy.collectives),
    )


Bytes = dict[tuple[str, frozenset[str]], float]
"""Wire bytes per device by kind and axes of the collectives."""


@dataclass(frozen=True)
class Outcome:
    """What became of one strategy.

    Attributes:
        strategy: The strategy.
        wrong_values: Why the values differ from the unsharded operation's; empty if they agree.
        priced: Its collectives by the price.
        compiled: Its collectives in the compiled program.
    """

    strategy: Strategy
    wrong_values: str
    priced: Bytes = field(default_factory=dict)
    compiled: Bytes = field(default_factory=dict)

    @property
    def as_priced(self) -> bool:
        """Whether kind, axes and bytes of all collectives are as priced."""
        if self.priced.keys() != self.compiled.keys():
            return False
        return all(math.isclose(self.priced[k], self.compiled[k], rel_tol=BYTES_SLACK) for k in self.priced)

    @property
    def agrees(self) -> bool:
        """Whether the values are right and the collectives as priced."""
        return not self.wrong_values and self.as_priced

    def __str__(self) -> str:
        def show(found: Bytes) -> str:
            return (
                ", ".join(f"{kind} over {','.join(sorted(axes))}: {n:g} B" for (kind, axes), n in found.items())
                or "none"
            )

        specs = f"{' '.join(map(str, self.strategy.operands))} -> {' '.join(map(str, self.strategy.results))}"
        local = " (local)" if self.strategy.local else ""
        values = self.wrong_values or "values equal"
        return f"{specs}{local}: {values}; priced {show(self.priced)}; compiled {show(self.compiled)}"


def known_difference(case: Case, outcome: Outcome) -> str | None:
    """The reason why the TPU compiler does something else with a strategy than priced, if it is a known one."""
    priced, compiled = _as_all_reduces(outcome.priced), _as_all_reduces(outcome.compiled)
    if priced.keys() != compiled.keys():
        return None
    if outcome.priced.keys() == outcome.compiled.keys() and case.op.equation.results[0].dtype == "bool":
        return PADDED_BOOLEANS
    if all(math.isclose(priced[k], compiled[k], rel_tol=BYTES_SLACK) for k in priced):
        return SMALL_SCATTERS
    if case.primitive != "conv_general_dilated":
        return None
    narrow = {k: nbytes / (2 if k[0] == "collective-permute" else 1) for k, nbytes in priced.items()}
    return NARROW_BORDERS if all(math.isclose(narrow[k], compiled[k], rel_tol=BYTES_SLACK) for k in priced) else None


PADDED_BOOLEANS = "the TPU compiler combines booleans as words, with the padding of their tiles"
NARROW_BORDERS = "the TPU compiler multiplies float32 as bfloat16, and sends the borders of convolutions so"
SMALL_SCATTERS = "the TPU compiler makes an all-reduce of a reduce-scatter whose shards fill no tiles of 8 x 128"


def _as_all_reduces(found: Bytes) -> Bytes:
    """Reduce-scatters counted as all-reduces over the same axes, which send twice as much."""
    merged: Bytes = {}
    for (kind, axes), nbytes in found.items():
        scattered = kind == "reduce-scatter"
        key = "all-reduce" if scattered else kind, axes
        merged[key] = merged.get(key, 0.0) + nbytes * (2 if scattered else 1)
    return merged


def _leaf(tensor: Any, spec: ShardingSpec) -> Leaf:
    return Leaf(name="value", shape=tensor.shape, dtype=str(tensor.dtype), spec=spec.dims, shard_bytes=0.0)


def execute(case: Case, strategy: Strategy, sizes: Mapping[str, int]) -> Outcome:
    """Run a strategy on the virtual devices and compare it with its price and with the unsharded operation."""
    mesh = jax_mesh(sizes)
    compiled = _compile(case.op, strategy, mesh)
    arguments = [jax.device_put(a, _sharding(mesh, spec)) for a, spec in _arguments(case.op, strategy)]
    return Outcome(
        strategy=strategy,
        wrong_values=_difference(case.op.expected, compiled(*arguments), exact=case.exact),
        priced=_priced(strategy),
        compiled=_compiled(compiled.as_text(), sizes),
    )


def only_compile(case: Case, strategy: Strategy, mesh: Mesh, sizes: Mapping[str, int]) -> Outcome:
    """Compile a strategy for devices that are not there, such as those of `autoshard.topology.tpu_mesh`."""
    text = _compile(case.op, strategy, mesh).as_text()
    return Outcome(strategy=strategy, wrong_values="", priced=_priced(strategy), compiled=_compiled(text, sizes))


def _arguments(op: OneOp, strategy: Strategy) -> list[tuple[Any, ShardingSpec]]:
    """The operands that are no literals, with their shardings."""
    found = zip(op.operands, strategy.operands, op.eqn.invars)
    return [(a, spec) for a, spec, v in found if isinstance(v, core.Var)]


def _compile(op: OneOp, strategy: Strategy, mesh: Mesh) -> Any:
    """The operation alone, emitted with the strategy as a plan's only decision, compiled for a mesh."""
    pairs = _arguments(op, strategy)
    plan = Plan.model_construct(
        function="one_op",
        mesh=MeshModel.uniform(dict(mesh.shape), bytes_per_s=1.0, latency_s=0.0),
        decisions=(decision_of(op, strategy),),
        arguments=tuple(_leaf(jax.typeof(a), spec) for a, spec in pairs),
        results=tuple(_leaf(t, spec) for t, spec in zip(op.equation.results, strategy.results)),
    )
    emitted = emit(plan, op.jaxpr(), mesh)
    arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=_sharding(mesh, spec)) for a, spec in pairs]
    shardings = [_sharding(mesh, spec) for spec in strategy.results]
    jitted = jax.jit(emitted, in_shardings=[_sharding(mesh, s) for _, s in pairs], out_shardings=shardings)
    return jitted.lower(*arguments).compile()


def _sharding(mesh: Mesh, spec: ShardingSpec) -> NamedSharding:
    return NamedSharding(mesh, partition_spec(spec))


def _difference(expected: Sequence[Any], results: Sequence[Any], *, exact: bool) -> str:
    for k, (want, have) in enumerate(zip(expected, results)):
        a, b = (np.asarray(_plain_array(x)) for x in (want, have))
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {k} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
        tolerance = 0.0 if exact or a.dtype.kind not in "fcV" else 3e-5
        a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
        scale = max(1.0, float(np.abs(np.nan_to_num(a, posinf=1.0, neginf=1.0)).max(initial=0.0)))
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return f"result {k} differs by up to {np.nanmax(np.abs(a - b)):g}"
    return ""


def _plain_array(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _priced(strategy: Strategy) -> Bytes:
    found: Bytes = {}
    for c in strategy.collectives:
        kind = "collective-permute" if c.kind == "permute" else c.kind
        key = kind, frozenset(c.axes)
        found[key] = found.get(key, 0.0) + c.wire_bytes
    return found


def _compiled(text: str, sizes: Mapping[str, int]) -> Bytes:
    found: Bytes = {}
    for c in hlo.collectives(text, sizes):
        key = str(c.kind), frozenset(c.axes)
        found[key] = found.get(key, 0.0) + c.call_wire_bytes
    return found
