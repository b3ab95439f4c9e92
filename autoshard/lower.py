"""From a graph with strategies to a solver's `Problem`, and from its solution back to a choice per operation.

Every operation that is not constant is a node; its choices are its strategies. An edge joins the producer of a value to
each user and holds, for every pair of strategies, the time to reshard from the spec that is produced to the spec that
is required, times the trips of the place where the resharding happens.

A value with several users gets a node of its own, whose choices are pairs (spec, second spec): the value is resharded
once to the second spec, and every user takes whichever of the two is nearer. So a gather that several users need is
paid for once, as XLA merges identical reshardings, and its copy takes memory as long as it lives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.backends import gathered_copies, on_chip_bytes, scratch_bytes, sent_as, storage_scale
from autoshard.costs import MeshModel, ReshardTable, ShardingSpec, joined_spec, refined_spec, reshard_table
from autoshard.errors import SpecError
from autoshard.graph import LITERAL, Graph, Op, Use
from autoshard.liveness import Liveness
from autoshard.partial_sums import open_values
from autoshard.parts import divided_ops
from autoshard.rules.base import OpRule, TensorFacts, left_open
from autoshard.shardings import Fixed, agrees
from autoshard.solver import Edge, EdgeUsage, Problem, Usage
from autoshard.strategies import SpecColumn, StrategySet, enumerate_strategies

Floats = NDArray[np.float64]

SMALLEST_COPY_FRACTION = 1e-3
"""Copies made for one operation enter the memory rows of the optimiser from this fraction of the budget on; the
predicted peak counts all of them."""


ON_CHIP_LEVELS = 4
"""Steps in which the use of on-chip memory is counted over time."""

PLACEMENT_WEIGHT = 0.01
"""What holding an argument counts, as a fraction of the time to read it once: enough to order plans that are equal
otherwise, too little to buy communication."""

TWIN_SECONDS = 1e-7
"""What a twin of an argument that the caller fixed must save per call to be held in another sharding: on real links,
the latency of the collectives in between alone takes ten times as long."""


HINT_READS = 1.0
"""What an argument must save per call to be held otherwise than the caller prefers: the time to read it so many times
where he wants it, and that of a twin. Small beside any collective that moves it."""


@dataclass(frozen=True, slots=True)
class Supplier:
    """Where the users of a value take it from: a node, and the specs that each of its choices holds the value in.

    Attributes:
        node: Node number in the problem.
        specs: Distinct specs.
        first: Per choice, the spec in which the value is produced (a position in ``specs``).
        second: Per choice, the spec of the shared copy; equal to ``first`` where there is none.
        copied: Shape and element type in which the shared copy is sent and held; only uses that take the value like
            this can take the copy.
    """

    node: int
    specs: tuple[ShardingSpec, ...]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    copied: TensorFacts

    def second_for(self, sent: TensorFacts) -> NDArray[np.intp]:
        """Per choice, the second spec that a use may take the value from."""
        return self.second if sent == self.copied else self.first


@dataclass(frozen=True, slots=True)
class Link:
    """An edge of the problem as a use of a value.

    Attributes:
        value: The value.
        user: Position of the using operation; for a tie, that of the argument which the output is fed back to.
        operand: Which operand; for an output, ``OUTPUT`` and ``output`` says which.
        output: Flat output number, or -1.
        trips: How often a resharding runs per call.
        until: Last time at which a resharded copy is needed.
        sent: Shape and element type in which it is resharded.
    """

    value: int
    user: int
    operand: int
    output: int
    trips: float
    until: int
    sent: TensorFacts


OUTPUT = -1


@dataclass(frozen=True)
class Lowered:
    """A problem with all that is needed to read its solution.

    Attributes:
        graph: The graph.
        liveness: Storage and lifetimes of its values.
        mesh: The mesh model.
        problem: What the solver gets.
        sets: Strategies per operation; None for constants.
        nodes: Node number per operation; -1 for constants.
        suppliers: Per value, where users take it from.
        links: Uses of values that may need resharding.
        fixed_outputs: Specs that the caller fixed for outputs.
        resident: Storage of arguments and results.
        temporaries: Storage of everything else that a node's choice decides.
        ties: Flat output number to the flat argument that it is fed back to.
    """

    graph: Graph
    liveness: Liveness
    mesh: MeshModel
    problem: Problem
    sets: tuple[StrategySet | None, ...]
    nodes: tuple[int, ...]
    suppliers: Mapping[int, Supplier]
    links: tuple[Link, ...]
    fixed_outputs: Mapping[int, Fixed]
    resident: tuple[Usage, ...]
    temporaries: tuple[Usage, ...]
    ties: Mapping[int, int]

    @property
    def replicated(self) -> tuple[int, ...]:
        """The choice that has everything on every device: the first strategy of each operation."""
        return (0,) * len(self.problem.costs)

    def table(
        self, facts: TensorFacts, sources: Sequence[ShardingSpec], targets: Sequence[ShardingSpec]
    ) -> ReshardTable:
        """Resharding costs of one tensor between specs."""
        return _table(facts, sources, targets, self.mesh)

    def targets(self, link: Link) -> SpecColumn:
        """The specs that a use may require, over the choices of its user."""
        if link.operand == OUTPUT:
            return self._set(link.user).results[0]
        return self._set(link.user).operands[link.operand]

    def copy_trips(self, value: int) -> float:
        """How often the shared copy of a value is made per call."""
        return _copy_trips(self.graph, value)

    def _set(self, op: int) -> StrategySet:
        strategies = self.sets[op]
        assert strategies is not None
        return strategies


def lower(
    graph: Graph,
    liveness: Liveness,
    mesh: MeshModel,
    *,
    budget_bytes: float | None = None,
    ties: Mapping[int, int] | None = None,
    fixed_outputs: Mapping[int, Fixed] | None = None,
    same_arguments: Sequence[tuple[int, int]] = (),
    twins: Mapping[int, Fixed] | None = None,
    hints: Mapping[int, Fixed] | None = None,
) -> Lowered:
    """Build the optimisation problem of a graph.

    Args:
        graph: The graph; user-fixed shardings are in its operations.
        liveness: Storage and lifetimes of its values.
        mesh: The mesh model.
        budget_bytes: Memory per device, None for no limit.
        ties: Flat output number to the flat argument that it is fed back to.
        fixed_outputs: Flat output number to the sharding that the caller fixed.
        same_arguments: Pairs of flat arguments that have one sharding.
        twins: Flat number of a free argument to the sharding of the fixed argument that it is a twin of.
        hints: Flat number of a free argument to the sharding that the caller prefers.

    Returns:
        The problem and its legend.

    Raises:
        SpecError: A fixed sharding is met by no strategy.
    """
    lowering = _Lowering(graph, liveness, mesh, budget_bytes, dict(twins or {}), dict(hints or {}))
    return lowering.run(dict(ties or {}), dict(fixed_outputs or {}), same_arguments)


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    liveness: Liveness
    mesh: MeshModel
    budget: float | None
    twins: dict[int, Fixed]
    hints: dict[int, Fixed]
    names: list[str] = field(default_factory=list)
    costs: list[Floats] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    resident: list[Usage] = field(default_factory=list)
    temporaries: list[Usage] = field(default_factory=list)
    edge_usages: list[EdgeUsage] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    suppliers: dict[int, Supplier] = field(default_factory=dict)
    sets: list[StrategySet | None] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    open: frozenset[int] = frozenset()
    uneven: dict[int, tuple[ShardingSpec, ...]] = field(default_factory=dict)
    divided: frozenset[int] = frozenset()

    def run(
        self, ties: dict[int, int], fixed_outputs: dict[int, Fixed], same_arguments: Sequence[tuple[int, int]]
    ) -> Lowered:
        self.open = open_values(self.graph)
        self.divided = divided_ops(self.graph, self.mesh) if self.mesh.parts else self.divided
        for position, op in enumerate(self.graph.ops):
            self._add_op(position, op)
        for value in range(len(self.graph.values)):
            self._add_supplier(value)
        for position, op in enumerate(self.graph.ops):
            self._add_uses(position, op)
        fixed_outputs = self._even_outputs() | self._whole_outputs(ties) | fixed_outputs
        self._add_outputs(ties, fixed_outputs)
        off_chip = self._off_chip()
        problem = Problem(
            names=tuple(self.names),
            costs=tuple(self.costs),
            edges=tuple(self.edges),
            usages=(*self.resident, *self.temporaries, *off_chip),
            edge_usages=tuple(self.edge_usages),
            budget=None if self.budget is None else self.budget + on_chip_bytes(self.mesh),
            ties=(),
        )
        return Lowered(
            self.graph, self.liveness, self.mesh, problem, tuple(self.sets), tuple(self.nodes), self.suppliers,
            tuple(self.links), fixed_outputs, tuple(self.resident), tuple(self.temporaries),
            ties,
        )  # fmt: skip

    def _node(self, name: str, costs: Floats) -> int:
        self.names.append(name)
        self.costs.append(costs)
        return len(self.costs) - 1

    def _add_op(self, position: int, op: Op) -> None:
        if self.graph.is_constant(op) or not (op.results or op.operands):
            self.sets.append(None)
            self.nodes.append(-1)
            return
        uneven = self._uneven(op)
        strategies = enumerate_strategies(
            self._rule(op),
            op.equation.operands,
            op.equation.results,
            self.liveness.traffic(position),
            self.mesh,
            uneven,
            position in self.divided,
        )
        if op.fixed is not None:
            strategies = _filtered(strategies, op.fixed, op)
        costs = strategies.seconds * op.ending_trips
        if op.primitive == "argument":
            costs = costs + self._placement(position, op, strategies)
        node = self._node(f"{position}:{op.primitive}", costs)
        self.sets.append(strategies)
        self.nodes.append(node)
        if uneven:
            self._remember_uneven(op, strategies)
        scratch = scratch_bytes(op, strategies, self.mesh)
        if scratch is not None:
            self.temporaries.append(Usage(node, scratch[0], position + 1, scratch[1]))

    def _uneven(self, op: Op) -> tuple[tuple[int, ShardingSpec], ...]:
        """Operands that may come in a sharding that does not divide them: by the user's constraint, or from one."""
        found = [(k, spec) for k, value in enumerate(op.operands) for spec in self.uneven.get(value, ())]
        if op.primitive == "sharding_constraint" and op.fixed is not None:
            spec = ShardingSpec.of(*(dim if isinstance(dim, tuple) else () for dim in op.fixed))
            if not spec.divides(op.equation.results[0].shape, self.mesh):
                found.append((0, spec))
        return tuple(found)

    def _even_outputs(self) -> dict[int, Fixed]:
        """Outputs that may come out uneven: any sharding will do that divides them, since JAX returns no other."""
        facts = {
            output: self.graph.values[value].facts
            for output, value in enumerate(self.graph.outputs)
            if value in self.uneven
        }
        return {output: (None,) * len(tensor.shape) for output, tensor in facts.items()}

    def _whole_outputs(self, ties: Mapping[int, int]) -> dict[int, Fixed]:
        """Outputs that may come out split by parts of axes: any sharding will do over whole ones."""
        return {
            output: (None,) * len(self.graph.values[value].facts.shape)
            for output, value in enumerate(self.graph.outputs)
            if output not in ties and value in self.suppliers and self._divides_axes(self.suppliers[value].specs)
        }

    def _divides_axes(self, specs: Iterable[ShardingSpec]) -> bool:
        whole = self.mesh.whole_sizes
        return any(axis not in whole for spec in specs for axis in joined_spec(spec, whole).axes)

    def _remember_uneven(self, op: Op, strategies: StrategySet) -> None:
        for value, facts, column in zip(op.results, op.equation.results, strategies.results):
            self.uneven[value] = tuple(spec for spec in column.specs if not spec.divides(facts.shape, self.mesh))

    def _rule(self, op: Op) -> OpRule:
        """The rule, with partial sums where they may arrive or be left."""
        arriving = [k for k, value in enumerate(op.operands) if value in self.open]
        leaves = any(value in self.open for value in op.results)
        if op.primitive == "scan_carry":
            return left_open(op.rule, arriving, carries_open=True) if leaves else op.rule
        return left_open(op.rule, arriving, leaves) if arriving or leaves else op.rule

    def _placement(self, number: int, op: Op, strategies: StrategySet) -> Floats:
        """A secondary order among plans of equal time: arguments are split rather than held whole on every device.

        Twins of an argument that the caller fixed, such as the moments of a parameter, had better be like it.
        """
        column = strategies.results[0]
        sizes = _shard_bytes(op.equation.results[0], column.specs, self.mesh)
        seconds = PLACEMENT_WEIGHT * sizes / self.mesh.device.memory_bytes_per_s
        if number in self.twins:
            alike = np.array([agrees(spec, self.twins[number]) for spec in column.specs])
            seconds = np.where(alike, 0.0, seconds + TWIN_SECONDS)
        if number in self.hints:
            alike = np.array([agrees(spec, self.hints[number]) for spec in column.specs])
            read = sizes[alike].min(initial=np.inf) / self.mesh.device.memory_bytes_per_s
            seconds = np.where(alike, seconds, seconds + HINT_READS * read + TWIN_SECONDS) if alike.any() else seconds
        return seconds[column.index]

    def _add_supplier(self, value: int) -> None:
        position, k = self.graph.values[value].producer
        strategies = self.sets[position]
        if strategies is None:
            return
        column = strategies.results[k]
        facts = self.graph.values[value].facts
        own = Supplier(self.nodes[position], column.specs, column.index, column.index, facts)
        uses = self._sharing_uses(value)
        pairs = self._shared_copies(uses, column)
        supplier = own if pairs is None else self._add_copy_node(value, own, pairs, uses)
        self.suppliers[value] = supplier
        self._add_storage(value, own)

    def _add_storage(self, value: int, own: Supplier) -> None:
        interval = self.liveness.interval(value)
        if interval.stop > interval.start:
            facts = self.graph.values[value].facts
            producer = self.graph.ops[self.graph.values[value].producer[0]]
            sizes = _shard_bytes(facts, own.specs, self.mesh) * storage_scale(producer, facts, self.mesh)
            lasting = producer.primitive == "argument" or self.liveness.is_returned(value)
            storage = self.resident if lasting else self.temporaries
            storage.append(Usage(own.node, interval.start, interval.stop, sizes[own.first]))

    def _sharing_uses(self, value: int) -> list[Use]:
        """The uses that a shared copy can serve: those that take the value in the same element type."""
        facts = self.graph.values[value].facts
        groups: dict[TensorFacts, list[Use]] = {facts: []}
        for use in self.graph.uses(value):
            if self.sets[use.op] is not None:
                groups.setdefault(sent_as(facts, self.graph.ops[use.op], self.mesh), []).append(use)
        narrow = [uses for sent, uses in groups.items() if sent != facts and len(uses) > 1]
        return narrow[0] if narrow else groups[facts]

    def _shared_copies(self, uses: list[Use], column: SpecColumn) -> list[tuple[ShardingSpec, ShardingSpec]] | None:
        """Pairs (spec, coarser spec) worth holding at once; None if at most one user could profit."""
        if len(uses) < 2:
            return None
        wanted: dict[ShardingSpec, int] = {}
        for use in uses:
            strategies = self.sets[use.op]
            assert strategies is not None
            for spec in strategies.operands[use.operand].specs:
                wanted[spec] = wanted.get(spec, 0) + 1
        shared = [spec for spec, users in wanted.items() if users > 1]
        pairs = [(spec, spec) for spec in column.specs]
        pairs += [(spec, coarse) for spec in column.specs for coarse in shared if _is_gathered(coarse, spec)]
        return pairs if len(pairs) > len(column.specs) else None

    def _add_copy_node(
        self, value: int, own: Supplier, pairs: list[tuple[ShardingSpec, ShardingSpec]], uses: list[Use]
    ) -> Supplier:
        """A node that holds the value in the spec that is produced and, by choice, in a second one."""
        facts = sent_as(self.graph.values[value].facts, self.graph.ops[uses[0].op], self.mesh)
        position, _ = self.graph.values[value].producer
        op = self.graph.ops[position]
        specs = tuple({spec: None for pair in pairs for spec in pair})
        place = {spec: i for i, spec in enumerate(specs)}
        first = np.array([place[a] for a, _ in pairs], dtype=np.intp)
        second = np.array([place[b] for _, b in pairs], dtype=np.intp)
        seconds = _table(facts, specs, specs, self.mesh).seconds[first, second]
        trips = _copy_trips(self.graph, value)
        node = self._node(f"{position}:{op.primitive} (copies)", seconds * trips)
        produced = np.array([place[spec] for spec in own.specs], dtype=np.intp)[own.first]
        self.edges.append(Edge(own.node, node, np.where(produced[:, None] == first[None, :], 0.0, np.inf)))
        interval = self.liveness.interval(value)
        stop = max(interval.stop, 1 + max(use.until for use in uses))
        start = min(use.op for use in uses)
        sizes = np.where(first == second, 0.0, _shard_bytes(facts, specs, self.mesh)[second])
        begin, while_gathered = max(position, start), gathered_copies(self.mesh) - 1
        self.temporaries.append(Usage(node, begin, stop, sizes))
        if while_gathered:
            self.temporaries.append(Usage(node, begin, begin + 1, sizes * while_gathered))
        return Supplier(node, specs, first, second, facts)

    def _add_uses(self, position: int, op: Op) -> None:
        if self.sets[position] is None:
            return
        for k, value in enumerate(op.operands):
            if value != LITERAL and value in self.suppliers:
                sent = sent_as(self.graph.values[value].facts, op, self.mesh)
                link = Link(value, position, k, -1, op.operand_trips[k], op.operand_until[k], sent)
                strategies = self.sets[position]
                assert strategies is not None
                self._connect(link, self.nodes[position], strategies.operands[k])

    def _add_outputs(self, ties: dict[int, int], fixed_outputs: dict[int, Fixed]) -> None:
        for output, value in enumerate(self.graph.outputs):
            if value not in self.suppliers:
                continue
            if output in fixed_outputs:
                self._fix_output(output, value, fixed_outputs[output])
            elif output in ties:
                argument = ties[output]
                strategies = self.sets[argument]
                assert strategies is not None
                facts = self.graph.values[value].facts
                link = Link(value, argument, OUTPUT, output, 1.0, self.graph.end, facts)
                self._connect(link, self.nodes[argument], strategies.results[0])

    def _hold_equal(self, argument: int, other: int) -> None:
        """Forbid that two arguments have different shardings; arguments are the first operations."""
        specs = [
            [s.results[0] for s in strategies.strategies] for n in (argument, other) if (strategies := self.sets[n])
        ]
        equal = np.array([[a == b for b in specs[1]] for a in specs[0]])
        self.edges.append(Edge(self.nodes[argument], self.nodes[other], np.where(equal, 0.0, np.inf)))

    def _fix_output(self, output: int, value: int, fixed: Fixed) -> None:
        """Charge the producer for the way to the nearest spec that agrees with what is fixed."""
        supplier = self.suppliers[value]
        targets = agreeing_specs(self.graph.values[value].facts.shape, fixed, self.mesh)
        if not targets:
            raise SpecError(
                f"output {output}: no sharding of shape {self.graph.values[value].facts.shape} agrees with it"
            )
        seconds = _table(self.graph.values[value].facts, supplier.specs, targets, self.mesh).seconds.min(axis=1)
        self.costs[supplier.node] = self.costs[supplier.node] + np.minimum(
            seconds[supplier.first], seconds[supplier.second]
        )

    def _connect(self, link: Link, user_node: int, column: SpecColumn) -> None:
        """Add the edge of a use, unless nothing ever needs resharding."""
        supplier = self.suppliers[link.value]
        if len(supplier.specs) == len(column.specs) == 1 and supplier.specs == column.specs:
            return
        table = _table(link.sent, supplier.specs, column.specs, self.mesh)
        second = supplier.second_for(link.sent)
        nearer = np.minimum(table.seconds[supplier.first], table.seconds[second])[:, column.index]
        self.links.append(link)
        if supplier.node == user_node:
            self.costs[user_node] = self.costs[user_node] + np.diagonal(nearer) * link.trips
            return
        self.edges.append(Edge(supplier.node, user_node, nearer * link.trips))
        self._add_copy_memory(link, supplier, column, table)

    def _add_copy_memory(self, link: Link, supplier: Supplier, column: SpecColumn, table: ReshardTable) -> None:
        if self.budget is None or link.operand == OUTPUT:
            return
        held = copy_bytes(table, link.sent, supplier.specs, self.mesh)
        second = supplier.second_for(link.sent)
        take_second = table.seconds[second] < table.seconds[supplier.first]
        nbytes = np.where(take_second, held[second], held[supplier.first])[:, column.index]
        if nbytes.max() >= SMALLEST_COPY_FRACTION * self.budget:
            self.edge_usages.append(EdgeUsage(len(self.edges) - 1, link.user, link.until + 1, nbytes))

    def _off_chip(self) -> list[Usage]:
        """What is missing of the on-chip memory when few temporaries are live.

        The budget is raised by the on-chip memory, which only temporaries may use: at times when they might not fill
        it, because their smallest shards do not, a node without a choice takes the rest.
        """
        on_chip = on_chip_bytes(self.mesh)
        if self.budget is None or not on_chip:
            return []
        live = live_bytes(least([*self.temporaries, *self.edge_usages]), self.graph.end)
        missing = on_chip - np.floor(np.minimum(live / on_chip, 1) * ON_CHIP_LEVELS) / ON_CHIP_LEVELS * on_chip
        changes = [0, *(np.flatnonzero(np.diff(missing)) + 1), len(missing)]
        node = self._node("on-chip memory left over", np.zeros(1))
        spans = [(a, b, missing[a]) for a, b in itertools.pairwise(changes) if missing[a] > 0]
        return [Usage(node, int(a), int(b), np.array([nbytes])) for a, b, nbytes in spans]


Span = tuple[int, int, float]
"""Bytes that are live from a time until before another."""


def least(usages: Iterable[Usage | EdgeUsage]) -> Iterator[Span]:
    """What usages take if everything takes the least that it can."""
    return ((usage.start, usage.stop, float(usage.nbytes.min())) for usage in usages)


def live_bytes(spans: Iterable[Span], end: int) -> Floats:
    """Per time up to the end of the program, the bytes that are live."""
    change = np.zeros(end + 2)
    for start, stop, nbytes in spans:
        change[start] += nbytes
        change[min(stop, end + 1)] -= nbytes
    return np.cumsum(change)[:-1]


def _copy_trips(graph: Graph, value: int) -> float:
    """As often as its users ask for it: once in every branch of a cond, in the test and in the body of a while."""
    producer = graph.ops[graph.values[value].producer[0]]
    trips: dict[int, float] = {}
    for use in graph.uses(value):
        user = graph.ops[use.op]
        part = body_of(producer, user, use.operand)
        trips[part] = max(trips.get(part, 0.0), user.operand_trips[use.operand])
    return sum(trips.values())


def body_of(boundary: Op, user: Op, operand: int) -> int:
    """Which body of a region a user of the region's operand stands in; copies made in one are unknown in another."""
    if boundary.primitive not in ("cond_in", "while_carry") or user.path[: len(boundary.path)] != boundary.path:
        return 0
    if user.primitive == "cond_out" and user.path == boundary.path:
        return operand
    depth = len(boundary.path)
    return user.path[depth] if len(user.path) > depth else 0


def copy_bytes(table: ReshardTable, facts: TensorFacts, sources: Sequence[ShardingSpec], mesh: MeshModel) -> Floats:
    """Largest memory held besides the source while resharding, per (source, target); slices take none."""
    own = _shard_bytes(facts, sources, mesh)[:, None]
    return np.where(table.wire_bytes > 0, (table.extra_bytes + own) * gathered_copies(mesh), 0.0)


def agreeing_specs(shape: tuple[int, ...], fixed: Fixed, mesh: MeshModel) -> tuple[ShardingSpec, ...]:
    """The specs of a shape, over whole axes, that agree with the dimensions that are fixed."""
    from autoshard.strategies import tensor_specs

    exact = [dim for dim in fixed if isinstance(dim, tuple)]
    if len(exact) == len(fixed):
        return (ShardingSpec.of(*exact),)
    whole = (refined_spec(spec, mesh.sizes, mesh.whole_sizes) for spec in tensor_specs(shape, mesh.whole))
    return tuple(spec for spec in whole if agrees(spec, fixed))


def _filtered(strategies: StrategySet, fixed: Fixed, op: Op) -> StrategySet:
    """Only the strategies whose result agrees with what is fixed."""
    kept = [i for i, s in enumerate(strategies.strategies) if agrees(s.results[0], fixed)]
    if not kept:
        shape = op.equation.results[0].shape
        raise SpecError(
            f"{op.primitive} {op.source}: no sharding of shape {shape} agrees with {fixed}; every dimension must be "
            "divisible by the product of its mesh axes"
        )
    return strategies.keep(kept)


def _is_gathered(coarse: ShardingSpec, fine: ShardingSpec) -> bool:
    """Whether ``coarse`` is ``fine`` after gathering some of its minor axes."""
    return coarse != fine and all(c == f[: len(c)] for c, f in zip(coarse.dims, fine.dims))


def _table(
    facts: TensorFacts, sources: Sequence[ShardingSpec], targets: Sequence[ShardingSpec], mesh: MeshModel
) -> ReshardTable:
    """Resharding costs; partial sums are passed on as they are, since only operations end them."""
    table = reshard_table(
        tuple(map(_summed, sources)), tuple(map(_summed, targets)), facts.shape, facts.itemsize, mesh,
        wire_scale=mesh.wire_scale(facts.dtype),
    )  # fmt: skip
    if not any(spec.partial for spec in (*sources, *targets)):
        return table
    stays = np.array([[s == t if s.partial or t.partial else True for t in targets] for s in sources])
    return replace(table, seconds=np.where(stays, table.seconds, np.inf))


def _summed(spec: ShardingSpec) -> ShardingSpec:
    return ShardingSpec.of(*spec.dims) if spec.partial else spec


def _shard_bytes(facts: TensorFacts, specs: Sequence[ShardingSpec], mesh: MeshModel) -> Floats:
    return np.array([spec.shard_bytes(facts.shape, facts.itemsize, mesh) for spec in specs], dtype=np.float64)
