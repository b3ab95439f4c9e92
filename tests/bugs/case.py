"""A program that went wrong for somebody, as data: what it computes, what its author fixed, what a plan has to reach.

`examine` plans it, compiles it for eight virtual devices, runs it, and says what is not as expected.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard import Plan, autoshard
from autoshard.costs import MeshAxis, MeshModel
from autoshard.costs.hardware import UNIT_DEVICE
from autoshard.graph import ASSUMED_WHILE_TRIPS
from autoshard.hlo import (
    Collective,
    collectives,
    compile_with_log,
    flops,
    involuntary_rematerializations,
    memory,
    optimized_hlo,
)

XY = {"x": 4, "y": 2}
YX = {"x": 2, "y": 4}
D = {"d": 8}

SLACK = 1.1
"""Bounds on bytes are those of hand-written plans; this much more is as good."""

PREDICTION = 0.05
DEVICE = UNIT_DEVICE.model_copy(
    update={"name": "even", "platform": "cpu", "peak_flops_per_s": {"float32": 1e12}, "memory_bytes_per_s": 1e12}
)


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What a plan has to reach; without a word, equal values, no replication for want of a better way, exact bytes.

    Attributes:
        sent_max: Bytes sent per device and call.
        priced_min: Bytes that a prediction must not be below: the move is not free.
        without: Kinds of collectives that do not occur.
        through: Kinds that do.
        not_gathered: Arguments that are never gathered.
        whole: Argument and dimension that no axis splits.
        argument_parts: Argument to the least number of its parts.
        result_parts: Result to the least number of its parts.
        alike: Pairs of leaves, by the ends of their paths, that have one sharding.
        result_axes: Result, dimension and an axis that splits it.
        flops_share_max: Products computed per device, as a share of those of the unsharded program.
        temporaries_max: Bytes of temporaries on a device.
        argument_share_max: Bytes of the arguments on a device, as a share of the whole.
        says: What the report mentions.
    """

    sent_max: float | None = None
    priced_min: float = 0.0
    without: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    not_gathered: tuple[str, ...] = ()
    whole: tuple[tuple[str, int], ...] = ()
    argument_parts: Mapping[str, int] = field(default_factory=dict)
    result_parts: Mapping[int, int] = field(default_factory=dict)
    alike: tuple[tuple[str, str], ...] = ()
    result_axes: tuple[tuple[int, int, str], ...] = ()
    flops_share_max: float | None = None
    temporaries_max: float | None = None
    argument_share_max: float | None = None
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with its arguments and what is fixed.

    Attributes:
        name: Its name.
        seen: The public report that it is taken after.
        fn: The program.
        args: Arguments, by which the parameters of ``fn`` are filled in order.
        mesh: Axis sizes.
        ins: Parameter to a prefix tree of the shardings that the author fixed.
        outs: Result to the same.
        donate: Positions of arguments that are given away.
        budget: Bytes per device, where the point is what does not fit.
        expect: What has to come out.
        everyday: Whether it is run with every change, or in the benchmark only.
        open: Why an expectation is not met; empty if it is.
    """

    name: str
    seen: str
    fn: Callable[..., Any]
    args: Callable[[], Sequence[Any]]
    mesh: Mapping[str, int] = field(default_factory=lambda: XY)
    ins: Mapping[str, Any] = field(default_factory=dict)
    outs: Mapping[int, Any] = field(default_factory=dict)
    donate: tuple[int, ...] = ()
    budget: float | None = None
    expect: Expect = field(default_factory=Expect)
    everyday: bool = True
    open: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Found:
    """What a case came to: the plan, the compiled program, and what is not as expected."""

    case: Case
    plan: Plan
    collectives: tuple[Collective, ...]
    faults: tuple[str, ...]

    @property
    def predicted(self) -> float:
        """Bytes sent, as planned."""
        return self.plan.predicted.wire_bytes

    @cached_property
    def compiled(self) -> float:
        """Bytes sent, as compiled."""
        return sum(c.call_wire_bytes for c in self.collectives)


def held(array: Any, mesh: Mapping[str, int], *spec: Any) -> Any:
    """A constraint that the author of a program wrote."""
    return lax.with_sharding_constraint(array, NamedSharding(devices(mesh), PartitionSpec(*spec)))


def normal(seed: int, *shape: int) -> Any:
    """Normal floats."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def below(bound: int, seed: int, *shape: int) -> Any:
    """Integers from zero up to a bound."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, bound, shape), jnp.int32)


def devices(sizes: Mapping[str, int]) -> Mesh:
    """The mesh with Auto axes."""
    return Mesh(np.array(jax.devices()[:8]).reshape(tuple(sizes.values())), tuple(sizes))


def model(sizes: Mapping[str, int]) -> MeshModel:
    """1 GB/s links without latency between devices of 1 TFLOP/s and 1 TB/s."""
    axes = tuple(MeshAxis.of(name, size, bytes_per_s=1e9, latency_s=0.0) for name, size in sizes.items())
    return MeshModel(axes=axes, device=DEVICE)


def examine(case: Case) -> Found:
    """Plan, compile and run a case."""
    args = tuple(case.args())
    expected = jax.tree.map(np.asarray, jax.jit(case.fn)(*args))
    step = autoshard(
        case.fn,
        devices(case.mesh),
        in_shardings=tuple(case.ins.get(name) for name in inspect.signature(case.fn).parameters),
        out_shardings=_outs(case, expected),
        donate_argnums=case.donate,
        memory_budget=case.budget,
        hardware=model(case.mesh),
    )
    plan = step.plan(*args)
    compiled, log = compile_with_log(step.lower(*args))
    text = optimized_hlo(compiled)
    sent = collectives(text, case.mesh, assumed_trips=ASSUMED_WHILE_TRIPS)
    faults = [f"replicated: {r}" for r in involuntary_rematerializations(log, text, case.mesh)]
    faults += _wrong_values(step, args, expected)
    faults += _wrong_bytes(case.expect, plan, sent)
    faults += _wrong_shardings(case, plan)
    want = case.expect
    if want.flops_share_max is not None:
        whole = flops(optimized_hlo(jax.jit(case.fn).lower(*args).compile()))
        if flops(text) > want.flops_share_max * whole:
            faults.append(f"{flops(text) / whole:.3f} of the products on every device")
    if want.temporaries_max is not None and memory(compiled).temporaries > want.temporaries_max:
        faults.append(f"{memory(compiled).temporaries} bytes of temporaries")
    if want.says and want.says not in str(plan.report(baselines=False)):
        faults.append(f"the report does not mention {want.says!r}")
    return Found(case, plan, sent, tuple(faults))


def _outs(case: Case, expected: Any) -> Any:
    if not case.outs:
        return None
    if not isinstance(expected, tuple | list):
        return case.outs[0]
    return type(expected)(case.outs.get(k) for k in range(len(expected)))


def _wrong_values(step: Any, args: Sequence[Any], expected: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        actual = jax.tree.map(np.asarray, step(*jax.tree.map(jnp.array, args)))
    faults = [str(w.message) for w in said if "donated" in str(w.message)]
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        exact = want.dtype.kind in "biu"
        same = np.array_equal(want, have) if exact else np.allclose(want, have, rtol=2e-3, atol=1e-4)
        if not same:
            faults.append(f"values of a {want.dtype}{list(want.shape)} differ")
    return faults


def _wrong_bytes(want: Expect, plan: Plan, sent: Sequence[Collective]) -> list[str]:
    predicted, compiled = plan.predicted.wire_bytes, sum(c.call_wire_bytes for c in sent)
    kinds = {c.kind for c in sent}
    gathered = {c.value for c in plan.collectives if c.kind == "all-gather"}
    faults = []
    if abs(predicted - compiled) > PREDICTION * compiled:
        faults.append(f"{predicted:.0f} bytes predicted, {compiled:.0f} compiled")
    if want.sent_max is not None and compiled > SLACK * want.sent_max:
        faults.append(f"{compiled:.0f} bytes sent, {want.sent_max:.0f} suffice")
    if predicted < want.priced_min:
        faults.append(f"priced at {predicted:.0f} bytes")
    faults += [f"has a {kind}" for kind in want.without if kind in kinds]
    faults += [f"has no {kind}" for kind in want.through if kind not in kinds]
    faults += [f"{name} is gathered" for name in want.not_gathered if name in gathered]
    return faults


def _wrong_shardings(case: Case, plan: Plan) -> list[str]:
    want = case.expect
    arguments = {leaf.name: leaf for leaf in plan.arguments}
    leaves = (*plan.arguments, *plan.results)
    faults = [f"{name} is split along {d}" for name, d in want.whole if arguments[name].spec[d]]
    counts = [(arguments[name], n) for name, n in want.argument_parts.items()]
    counts += [(plan.results[k], n) for k, n in want.result_parts.items()]
    for leaf, least in counts:
        if math.prod(case.mesh[axis] for axes in leaf.spec for axis in axes) < least:
            faults.append(f"{leaf.name} has fewer than {least} parts: {leaf.spec}")
    for ends in want.alike:
        first, second = (next(leaf for leaf in leaves if leaf.name.endswith(end)) for end in ends)
        if first.spec != second.spec:
            faults.append(f"{first.name} is {first.spec}, {second.name} is {second.spec}")
    for k, d, axis in want.result_axes:
        if axis not in plan.results[k].spec[d]:
            faults.append(f"result {k} is not split by {axis} along {d}")
    if want.argument_share_max is not None:
        whole = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in plan.arguments)
        share = sum(leaf.shard_bytes for leaf in plan.arguments) / whole
        if share > want.argument_share_max:
            faults.append(f"{share:.3f} of the arguments on every device")
    return faults
