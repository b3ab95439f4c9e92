"""From the solver's choice to a plan's decisions, collectives and totals: the inverse of `autoshard.lower`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoshard.backends import on_chip_bytes
from autoshard.costs import ReshardingPlan, ShardingSpec, joined_spec, plan_resharding
from autoshard.graph import LITERAL, Op
from autoshard.lower import OUTPUT, Link, Lowered, Span, agreeing_specs, body_of, copy_bytes, live_bytes
from autoshard.plan import Decision, Ending, Leaf, OpCost, PlannedCollective, Route, Totals
from autoshard.rules.base import TensorFacts
from autoshard.solver import Usage
from autoshard.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Decoded:
    """A choice, spelled out.

    Attributes:
        decisions: Per operation that is not constant.
        arguments: Per flat argument.
        results: Per flat result.
        collectives: All communication.
        costs: Per operation.
        totals: Their sum, and the peak memory.
    """

    decisions: tuple[Decision, ...]
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    collectives: tuple[PlannedCollective, ...]
    costs: tuple[OpCost, ...]
    totals: Totals


def decode(
    lowered: Lowered,
    choice: Sequence[int],
    argument_names: Sequence[str],
    output_names: Sequence[str],
    donated: Sequence[bool],
) -> Decoded:
    """Spell out a choice.

    Args:
        lowered: The problem and its legend.
        choice: The chosen strategy of each node.
        argument_names: Names of the flat arguments.
        output_names: Names of the flat results.
        donated: Per flat argument, whether its memory is given away.

    Returns:
        Decisions, collectives and totals.
    """
    return _Decoder(lowered, tuple(choice)).run(argument_names, output_names, donated)


ALL_BODIES = -1
"""Stands for every body of a region, as the body in which a copy is made."""

Start = tuple[TensorFacts, int, bool]
"""Where a resharding begins: the type that is sent, the body of the region, and whether from the shared copy."""


@dataclass(slots=True)
class _Decoder:
    lowered: Lowered
    choice: tuple[int, ...]
    collectives: list[PlannedCollective] = field(default_factory=list)
    memory: list[Span] = field(default_factory=list)
    moved: set[Hashable] = field(default_factory=set)

    def run(self, argument_names: Sequence[str], output_names: Sequence[str], donated: Sequence[bool]) -> Decoded:
        graph = self.lowered.graph
        routes: dict[int, dict[int, Route]] = defaultdict(dict)
        output_routes: dict[int, Route] = {}
        sources: set[int] = set()
        for link in self.lowered.links:
            route = self._route(link)
            if route is None:
                continue
            sources.add(link.value)
            if link.operand == OUTPUT:
                output_routes[link.output] = route
            else:
                routes[link.user][link.operand] = route
        shared = {value: steps for value in self.lowered.suppliers if (steps := self._shared_steps(value))}
        sources |= set(shared)
        results = [self._result(k, name, output_routes) for k, name in enumerate(output_names)]
        sources |= {value for value, leaf in zip(graph.outputs, results) if leaf.route is not None}
        decisions, costs = [], []
        for position, op in enumerate(graph.ops):
            strategy = self._strategy(position)
            if strategy is None:
                continue
            decisions.append(self._decision(op, strategy, routes[position], shared, sources))
            costs.append(self._op_cost(op, strategy))
        arguments = [self._argument(k, name, donated[k]) for k, name in enumerate(argument_names)]
        totals = self._totals()
        return Decoded(
            tuple(decisions), tuple(arguments), tuple(results), tuple(self.collectives), tuple(costs), totals
        )

    def _strategy(self, position: int) -> Strategy | None:
        strategies = self.lowered.sets[position]
        if strategies is None:
            return None
        return strategies.strategies[self.choice[self.lowered.nodes[position]]]

    def _held(self, value: int) -> tuple[ShardingSpec, ShardingSpec] | None:
        """The spec that a value is produced in and that of its shared copy; None for constants."""
        supplier = self.lowered.suppliers.get(value)
        if supplier is None:
            return None
        i = self.choice[supplier.node]
        return supplier.specs[supplier.first[i]], supplier.specs[supplier.second[i]]

    def _resharding(self, facts: TensorFacts, source: ShardingSpec, target: ShardingSpec) -> ReshardingPlan:
        scale = self.lowered.mesh.wire_scale(facts.dtype)
        return plan_resharding(source, target, facts.shape, facts.itemsize, self.lowered.mesh, wire_scale=scale)

    def _move(
        self, value: int, move: ReshardingPlan, trips: float, user: Op | None, likelihood: float, start: Start
    ) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Record the collectives of a resharding, those aside that another one has as well; returns its constraints.

        XLA merges equal reshardings of one value, and reshardings that begin alike as far as they do.
        """
        graph = self.lowered.graph
        producer = graph.values[value].producer[0]
        source = (user.source if user else "") or graph.ops[producer].source
        for count, step in enumerate(move.steps):
            way = value, start, move.source, tuple(s.spec for s in move.steps[: count + 1])
            if step.kind == "slice" or way in self.moved:
                continue
            self.moved.add(way)
            self.collectives.append(
                PlannedCollective(
                    kind=step.kind, axes=self._known_axes(step.axes), wire_bytes=step.wire_bytes, seconds=step.seconds,
                    trips=trips / likelihood, value=graph.values[value].name, source=source, role="resharding",
                    likelihood=likelihood,
                )
            )  # fmt: skip
        return tuple(spec.dims for spec in move.constraints)

    def _route(self, link: Link) -> Route | None:
        """The cheaper way from the value or its shared copy to what the use requires; None if they agree."""
        supplier = self.lowered.suppliers[link.value]
        chosen = self.choice[supplier.node]
        held = supplier.specs[supplier.first[chosen]], supplier.specs[supplier.second_for(link.sent)[chosen]]
        column = self.lowered.targets(link)
        target = column.specs[column.index[self.choice[self.lowered.nodes[link.user]]]]
        user = self.lowered.graph.ops[link.user]
        interval = None if link.operand == OUTPUT else (link.user, link.until + 1)
        producer = self.lowered.graph.ops[self.lowered.graph.values[link.value].producer[0]]
        body = 0 if link.operand == OUTPUT else body_of(producer, user, link.operand)
        return self._way(link.value, link.sent, held, target, link.trips, user, interval, body)

    def _way(
        self,
        value: int,
        sent: TensorFacts,
        held: tuple[ShardingSpec, ShardingSpec],
        target: ShardingSpec,
        trips: float,
        user: Op | None,
        interval: tuple[int, int] | None,
        body: int = 0,
    ) -> Route | None:
        """The cheaper way to a spec; its copy is held for an interval, or takes the value's place (None)."""
        ways = [self._resharding(sent, source, target) for source in held]
        shared = ways[1].seconds < ways[0].seconds
        way = ways[1] if shared else ways[0]
        if not way.steps and not shared:
            return None
        if way.wire_bytes > 0 and interval is not None:
            table = self.lowered.table(sent, [way.source], [target])
            nbytes = copy_bytes(table, sent, [way.source], self.lowered.mesh)[0, 0]
            self.memory.append((*interval, float(nbytes)))
        likelihood = 1.0 if user is None or interval is None else user.operand_likelihood
        return Route(shared=shared, steps=self._move(value, way, trips, user, likelihood, (sent, body, shared)))

    def _shared_steps(self, value: int) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Constraints that make the shared copy of a value; empty if it has none."""
        held = self._held(value)
        assert held is not None
        if held[0] == held[1]:
            return ()
        copied = self.lowered.suppliers[value].copied
        graph = self.lowered.graph
        likelihood = min(graph.ops[use.op].operand_likelihood for use in graph.uses(value))
        trips = self.lowered.copy_trips(value)
        move = self._resharding(copied, *held)
        return self._move(value, move, trips, None, likelihood, (copied, ALL_BODIES, False))

    def _decision(
        self,
        op: Op,
        strategy: Strategy,
        routes: dict[int, Route],
        shared: Mapping[int, tuple[tuple[tuple[str, ...], ...], ...]],
        sources: set[int],
    ) -> Decision:
        return Decision(
            path=op.path,
            slot=op.slot,
            primitive=op.primitive,
            operands=tuple(spec.dims for spec in strategy.operands),
            results=tuple(spec.dims for spec in strategy.results),
            routes=routes,
            shared={k: shared[v] for k, v in enumerate(op.results) if v in shared},
            pinned=tuple(op.rule.pinned or v in sources for v in op.results),
            local=strategy.local,
            endings=tuple(Ending(kind=c.kind, axes=c.axes, dimension=c.dimension) for c in strategy.collectives),
            arriving=next((spec.partial for spec in strategy.operands if spec.partial), ()),
            left=next((spec.partial for spec in strategy.results if spec.partial), ()),
        )

    def _op_cost(self, op: Op, strategy: Strategy) -> OpCost:
        for collective in strategy.collectives:
            share = (
                strategy.communication.seconds * collective.wire_bytes / max(strategy.communication.wire_bytes, 1e-30)
            )
            self.collectives.append(
                PlannedCollective(
                    kind=collective.kind, axes=self._known_axes(collective.axes), wire_bytes=collective.wire_bytes,
                    seconds=share, trips=op.ending_trips / op.likelihood, value=self._name(op), source=op.source,
                    role="reduction", likelihood=op.likelihood,
                )
            )  # fmt: skip
        return OpCost(
            name=self._name(op), primitive=op.primitive, source=op.source,
            spec=self._known_dims(strategy.results[0]) if strategy.results else (), trips=op.trips,
            compute_seconds=strategy.compute.seconds * op.trips,
            communication_seconds=strategy.communication.seconds * op.ending_trips,
        )  # fmt: skip

    def _known_axes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes as the caller knows them: parts that make up a larger part or the whole are one."""
        return self.lowered.mesh.joined(axes) if self.lowered.mesh.parts else axes

    def _known_dims(self, spec: ShardingSpec) -> tuple[tuple[str, ...], ...]:
        """A sharding as the caller knows it."""
        return joined_spec(spec, self.lowered.mesh.whole_sizes).dims if self.lowered.mesh.parts else spec.dims

    def _name(self, op: Op) -> str:
        return self.lowered.graph.values[op.results[0]].name if op.results else op.primitive

    def _leaf(self, value: int, name: str, spec: ShardingSpec, donated: bool, route: Route | None) -> Leaf:
        facts = self.lowered.graph.values[value].facts
        nbytes = float(spec.shard_bytes(facts.shape, facts.itemsize, self.lowered.mesh))
        return Leaf(
            name=name, shape=facts.shape, dtype=facts.dtype, spec=self._known_dims(spec), shard_bytes=nbytes,
            donated=donated, route=route,
        )  # fmt: skip

    def _argument(self, k: int, name: str, donated: bool) -> Leaf:
        value = self.lowered.graph.arguments[k]
        held = self._held(value)
        assert held is not None
        return self._leaf(value, name, held[0], donated, None)

    def _result(self, k: int, name: str, routes: Mapping[int, Route]) -> Leaf:
        value = self.lowered.graph.outputs[k]
        if value == LITERAL:
            return Leaf(name=name, shape=(), dtype="literal", spec=(), shard_bytes=0.0)
        held = self._held(value)
        facts = self.lowered.graph.values[value].facts
        if held is None:
            return self._leaf(value, name, self._made_in_place(k, facts), False, None)
        if k in self.lowered.fixed_outputs:
            target = self._nearest(value, held, k)
            return self._leaf(value, name, target, False, self._way(value, facts, held, target, 1.0, None, None))
        route = routes.get(k)
        if route is None:
            return self._leaf(value, name, held[0], False, None)
        final = ShardingSpec.of(*route.steps[-1]) if route.steps else held[1]
        return self._leaf(value, name, final, False, route)

    def _made_in_place(self, k: int, facts: TensorFacts) -> ShardingSpec:
        """The sharding of a result that depends on no argument: it is made where it is wanted, split as far as it goes.

        A state that is fed back comes in the sharding of the argument.
        """
        fixed = self.lowered.fixed_outputs.get(k, (None,) * len(facts.shape))
        if k in self.lowered.ties:
            held = self._held(self.lowered.graph.arguments[self.lowered.ties[k]])
            assert held is not None
            fixed = held[0].dims
        mesh = self.lowered.mesh
        specs = agreeing_specs(facts.shape, fixed, mesh)
        return min(specs, key=lambda spec: spec.shard_bytes(facts.shape, facts.itemsize, mesh))

    def _nearest(self, value: int, held: tuple[ShardingSpec, ShardingSpec], k: int) -> ShardingSpec:
        """The cheapest spec that agrees with what the caller fixed for an output."""
        facts = self.lowered.graph.values[value].facts
        targets = agreeing_specs(facts.shape, self.lowered.fixed_outputs[k], self.lowered.mesh)
        return min(targets, key=lambda t: min(self._resharding(facts, source, t).seconds for source in held))

    def _totals(self) -> Totals:
        lowered = self.lowered
        chosen = [(op, self._strategy(p)) for p, op in enumerate(lowered.graph.ops)]
        compute = sum(s.compute.seconds * op.trips for op, s in chosen if s is not None)
        flops = sum(s.compute.flops * op.trips for op, s in chosen if s is not None)
        by_role = {
            role: sum(c.call_seconds for c in self.collectives if c.role == role)
            for role in ("reduction", "resharding")
        }
        return Totals(
            compute_seconds=compute,
            reduction_seconds=by_role["reduction"],
            resharding_seconds=by_role["resharding"],
            wire_bytes=sum(c.wire_bytes * c.trips for c in self.collectives),
            peak_memory_bytes=self._peak(),
            flops=flops,
        )

    def _peak(self) -> float:
        """Largest sum over time of arguments, results and the temporaries that do not fit on chip."""
        lowered = self.lowered
        resident = live_bytes(self._spans(lowered.resident), lowered.graph.end)
        temporaries = live_bytes([*self._spans(lowered.temporaries), *self.memory], lowered.graph.end)
        return float((resident + np.maximum(0.0, temporaries - on_chip_bytes(lowered.mesh))).max(initial=0.0))

    def _spans(self, usages: Sequence[Usage]) -> list[Span]:
        return [(u.start, u.stop, float(u.nbytes[self.choice[u.node]])) for u in usages]
