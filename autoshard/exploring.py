"""What planning chooses between: the strategies of every operation with their costs, the choice, its alternatives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from autoshard.arguments import parse_bytes
from autoshard.backends import on_chip_bytes
from autoshard.costs import MeshModel, ShardingSpec, plan_resharding
from autoshard.errors import InputError
from autoshard.graph import LITERAL
from autoshard.hardware import mesh_model
from autoshard.lower import Lowered, Supplier
from autoshard.planner import PlanningOptions, choose, fed_back, planned_graph
from autoshard.report import Place, place_of
from autoshard.rules.base import Combine, TensorFacts
from autoshard.solver import (
    Holder,
    LeastBudget,
    MemoryPrice,
    Problem,
    Solution,
    Status,
    check_solution,
    holders,
    least_budget,
    memory_price,
    solve,
)
from autoshard.strategies import Collective, Strategy
from autoshard.tables import nbytes_text
from autoshard.tabular import AbstractTabular, Table, seconds_text
from autoshard.trace import Program, abstract, trace


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow:
    """One way to split one operation; times are per device and call, all executions together.

    Attributes:
        number: Position among the operation's strategies.
        operands: Sharding that each operand has to have.
        results: Sharding of each result.
        collectives: What ends partial sums.
        compute_seconds: Arithmetic and memory traffic.
        communication_seconds: The collectives.
        cost_seconds: What the optimiser counts: both, and for arguments a little for the memory, so that they are
            split where that makes no difference otherwise.
        memory_bytes: What the results and partial sums hold on each device; nothing for a value that is fused away.
        per_shard: It is carried out as a per-shard region rather than by constraints.
        chosen: The solver took it.
    """

    number: int
    operands: tuple[ShardingSpec, ...]
    results: tuple[ShardingSpec, ...]
    collectives: tuple[Collective, ...]
    compute_seconds: float
    communication_seconds: float
    cost_seconds: float
    memory_bytes: float
    per_shard: bool
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How an operand gets from one sharding to another; times and bytes of one execution, per device.

    Attributes:
        source: The sharding that it is in.
        required: The one that is asked for.
        seconds: Entry of the communication resharding cost vector.
        wire_bytes: Bytes sent.
        extra_bytes: Entry of the memory resharding cost vector: what is held on the way beyond the source shard.
        steps: The steps, as ``all-gather x`` and so on.
        chosen: It is the one that the solver took.
    """

    source: ShardingSpec
    required: ShardingSpec
    seconds: float
    wire_bytes: float
    extra_bytes: float
    steps: tuple[str, ...]
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One operand of one operation: an edge between the operation that makes the value and the one that uses it.

    Attributes:
        name: The value: an argument's path, or the primitive and line that make it.
        shape: Its shape.
        dtype: Its element type.
        producer: Number of the operation that makes it.
        executions: How often a resharding for this use runs per call.
        offered: Every sharding that it may be held in, the producer's first, those of copies that users share after.
        required: Every sharding that a strategy of the user asks for.
        held: The shardings that it is held in by choice: the producer's, and the shared copy's if there is one.
        asked: The sharding that the user asks for by choice; None if there is no solution.
        mesh: The mesh model.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    producer: int
    executions: float
    offered: tuple[ShardingSpec, ...]
    required: tuple[ShardingSpec, ...]
    held: tuple[ShardingSpec, ...]
    asked: ShardingSpec | None
    mesh: MeshModel

    def moves(self, required: ShardingSpec | None = None) -> Moves:
        """The ways to a sharding, one from every sharding that is offered: the operand's cost vectors.

        Args:
            required: The sharding to get to; the one asked for by choice if None.

        Raises:
            InputError: There is no choice to take it from.
        """
        target = self.asked if required is None else required
        if target is None:
            raise InputError(f"{self.name}: the solver has no choice, so say which sharding is required")
        return Moves(self.name, tuple(self._move(source, target) for source in self.offered))

    def _move(self, source: ShardingSpec, target: ShardingSpec) -> Move:
        scale = self.mesh.wire_scale(self.dtype)
        plan = plan_resharding(source, target, self.shape, self.itemsize, self.mesh, wire_scale=scale)
        return Move(
            source=source,
            required=target,
            seconds=plan.seconds,
            wire_bytes=plan.wire_bytes,
            extra_bytes=plan.extra_bytes,
            steps=tuple(f"{step.kind} {','.join(step.axes)}" for step in plan.steps),
            chosen=source in self.held and target == self.asked,
        )


@dataclass(frozen=True, slots=True)
class Moves(AbstractTabular):
    """The cost vectors of one operand and one required sharding, the choice marked ``*``; prints as a table."""

    name: str
    rows: tuple[Move, ...]

    @property
    def title(self) -> str:
        """The line above the table."""
        return f"{self.name} into {self.rows[0].required}"

    def table(self) -> Table:
        """Header and rows."""
        header = ("", "held in", ">time", ">sent", ">extra memory", "steps")
        rows = tuple(
            (
                "*" if move.chosen else "", str(move.source), seconds_text(move.seconds), nbytes_text(move.wire_bytes),
                nbytes_text(move.extra_bytes), ", ".join(move.steps) or "none",
            )
            for move in self.rows
        )  # fmt: skip
        return header, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(AbstractTabular):
    """One operation, or boundary of a region, with all its strategies; prints as a table, the choice marked ``*``.

    Attributes:
        number: Its position in the program.
        primitive: Its primitive or boundary kind.
        name: Its first result: an argument's path, or primitive and line.
        place: The user's line.
        executions: How often it runs per call.
        factors: Its rule as an einsum: ``b t d, d k -> b t k`` with the factors' sizes.
        strategies: Every way to split it.
        operands: Its operands that are not constant.
    """

    number: int
    primitive: str
    name: str
    place: Place
    executions: float
    factors: str
    strategies: tuple[StrategyRow, ...]
    operands: tuple[Operand, ...]

    @property
    def chosen(self) -> StrategyRow | None:
        """The strategy that the solver took; None if there is no solution."""
        return next((row for row in self.strategies if row.chosen), None)

    @property
    def title(self) -> str:
        """The line above the table."""
        place = f", line {self.place.line} {self.place.function}".rstrip() if self.place.line else ""
        runs = f", {self.executions:g} times a call" if self.executions != 1 else ""
        return f"{self.number}: {self.primitive}{place}{runs}: {self.factors}"

    def table(self) -> Table:
        """Header and rows."""
        return _strategy_header(self.strategies), tuple(_strategy_cells(row) for row in self.strategies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What a strategy would have cost the whole program, everything else free to adapt to it.

    Attributes:
        strategy: The strategy that was forced.
        cost_seconds: Cost of the best plan with it that was found; infinite if there is none.
        extra_seconds: How much more that is than the choice.
        status: How the solver ended.
    """

    strategy: StrategyRow
    cost_seconds: float
    extra_seconds: float
    status: Status


@dataclass(frozen=True, slots=True)
class Alternatives(AbstractTabular):
    """The alternatives of one operation, cheapest first, the choice marked ``*``; prints as a table."""

    operation: Operation
    rows: tuple[Alternative, ...]

    @property
    def title(self) -> str:
        """The line above the table."""
        return self.operation.title

    def table(self) -> Table:
        """Header and rows."""
        header = (*_strategy_header([row.strategy for row in self.rows]), ">whole program")
        rows = tuple((*_strategy_cells(row.strategy), _extra_text(row)) for row in self.rows)
        return header, rows


def _extra_text(row: Alternative) -> str:
    if math.isinf(row.cost_seconds):
        return str(row.status)
    sign = "-" if row.extra_seconds < 0 else "+"
    return sign + seconds_text(abs(row.extra_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one value, or one copy of it, holds at the fullest time.

    Attributes:
        value: The value: an argument's path, or the operation that makes it and its line.
        copied_for: The operation that a resharded copy is held for, or "several"; empty for the value itself.
        nbytes: Bytes on each device.
    """

    value: str
    copied_for: str
    nbytes: float


@dataclass(frozen=True, slots=True)
class Peak(AbstractTabular):
    """What makes up the peak of a choice, largest first; prints as a table.

    Attributes:
        nbytes: Bytes on each device, those that it keeps on chip included.
        on_chip_bytes: How many of them the device keeps on chip at most.
        at: The operation that runs then.
        rows: What is held.
    """

    nbytes: float
    on_chip_bytes: float
    at: str
    rows: tuple[Held, ...]

    @property
    def title(self) -> str:
        """The line above the table."""
        on_chip = f", up to {nbytes_text(self.on_chip_bytes)} of it on chip" if self.on_chip_bytes else ""
        return f"{nbytes_text(self.nbytes)} held at {self.at}{on_chip}"

    def table(self) -> Table:
        """Header and rows."""
        rows = tuple(
            (row.value, row.copied_for, nbytes_text(row.nbytes), f"{row.nbytes / self.nbytes:.1%}") for row in self.rows
        )
        return ("value", "copied for", ">held", ">share"), rows


@dataclass(frozen=True)
class Exploration(AbstractTabular):
    """A program as the optimiser sees it; made by `explore`, prints as the list of its operations and choices.

    Attributes:
        operations: All operations that are not constant, in program order; the arguments come first.
        solution: What the solver found: cost, bound, status, peak memory.
        problem: The optimisation problem itself.
        mesh: The mesh model.
    """

    operations: tuple[Operation, ...]
    solution: Solution
    problem: Problem
    mesh: MeshModel
    _nodes: Mapping[int, int]
    _values: Mapping[int, tuple[str, str]]

    def find(self, primitive: str, occurrence: int = 0) -> Operation:
        """The operation of a primitive, counted from 0 in program order.

        Raises:
            InputError: There is none.
        """
        found = [op for op in self.operations if op.primitive == primitive]
        if not -len(found) <= occurrence < len(found):
            known = ", ".join(sorted({op.primitive for op in self.operations}))
            raise InputError(
                f"{len(found)} operations are {primitive!r}, number {occurrence} was asked for; there are {known}"
            )
        return found[occurrence]

    def alternatives(self, operation: Operation, *, time_limit_s: float = 10.0) -> Alternatives:
        """Solve once for every strategy of an operation, with that strategy forced.

        Args:
            operation: One of `operations`.
            time_limit_s: Time for each solve.

        Returns:
            Cost of the whole program by strategy, cheapest first.
        """
        node = self._nodes[operation.number]
        rows = [self._forced(node, row, time_limit_s) for row in operation.strategies]
        ordered = tuple(sorted(rows, key=lambda row: (row.cost_seconds, not row.strategy.chosen, row.strategy.number)))
        return Alternatives(operation, ordered)

    def peak(self, choice: Sequence[int] | None = None) -> Peak:
        """What is held when the choice holds most.

        Args:
            choice: A choice per node of `problem`, such as that of `least_budget`; the solver's if None.

        Raises:
            InputError: The solver has no choice, and none is given.
        """
        chosen = self.solution.choice if choice is None else choice
        if not chosen:
            raise InputError("the solver has no choice: pass least_budget().choice to see what fills the least budget")
        time = check_solution(self.problem, chosen).peak_time or 0
        rows = [self._held(holder) for holder in holders(self.problem, chosen, time) if holder.node in self._values]
        at = next((op.title for op in self.operations if op.number == time), f"time {time}")
        return Peak(sum(row.nbytes for row in rows), on_chip_bytes(self.mesh), at, tuple(rows))

    def _held(self, holder: Holder) -> Held:
        value, copied_for = self._values[holder.node]
        if holder.edge is not None:
            copied_for = self._values[self.problem.edges[holder.edge].v][0]
        return Held(value=value, copied_for=copied_for, nbytes=holder.nbytes)

    def least_budget(self, *, time_limit_s: float = 20.0) -> LeastBudget:
        """The smallest memory budget that a plan exists for, in bytes per device.

        Args:
            time_limit_s: Time for the solver.
        """
        found = least_budget(self.problem, time_limit_s=time_limit_s)
        on_chip = on_chip_bytes(self.mesh)  # comes on top of every budget
        return replace(found, nbytes=found.nbytes - on_chip, bound=found.bound - on_chip)

    def memory_price(self, step: float | str = "1GiB", *, time_limit_s: float = 20.0) -> MemoryPrice:
        """What more memory would save, and less memory would cost, in seconds per call.

        Args:
            step: By how much the budget is changed: bytes per device, or a string.
            time_limit_s: Time for the solver.
        """
        return memory_price(self.problem, self.solution, step_bytes=parse_bytes(step), time_limit_s=time_limit_s)

    def _forced(self, node: int, row: StrategyRow, time_limit_s: float) -> Alternative:
        costs = list(self.problem.costs)
        costs[node] = np.where(np.arange(len(costs[node])) == row.number, costs[node], np.inf)
        forced = solve(replace(self.problem, costs=tuple(costs)), time_limit_s=time_limit_s)
        return Alternative(
            strategy=row,
            cost_seconds=forced.cost,
            extra_seconds=forced.cost - self.solution.cost,
            status=forced.status,
        )

    @property
    def title(self) -> str:
        """The line above the table."""
        found, count = self.solution, len(self.operations)
        if not found.choice:
            return f"{count} operations; {found.status}: {found.message}"
        cost, bound = seconds_text(found.cost), seconds_text(found.bound)
        peak = nbytes_text(found.peak_bytes - on_chip_bytes(self.mesh))
        return f"{count} operations; {found.status}, cost {cost}, bound {bound}, peak {peak}"

    def table(self) -> Table:
        """Header and rows."""
        header = (">number", "operation", ">strategies", "operands", "result", ">time", "line")
        return header, tuple(_operation_cells(op) for op in self.operations)


def _operation_cells(op: Operation) -> tuple[str, ...]:
    row = op.chosen
    place = f":{op.place.line} {op.place.function}" if op.place.line else ""
    name = op.name if op.primitive == "argument" else op.primitive
    if row is None:
        return (str(op.number), name, str(len(op.strategies)), "", "", "", place)
    operands, results = ("  ".join(map(str, specs)) for specs in (row.operands, row.results))
    seconds = seconds_text(row.compute_seconds + row.communication_seconds)
    return (str(op.number), name, str(len(op.strategies)), operands, results, seconds, place)


def _strategy_header(rows: Sequence[StrategyRow]) -> tuple[str, ...]:
    operands = tuple(f"operand {k}" for k in range(len(rows[0].operands)))
    return ("", ">", *operands, "result", ">compute", ">communication", ">memory", "ends in")


def _strategy_cells(row: StrategyRow) -> tuple[str, ...]:
    ends = ", ".join(f"{end.kind} {','.join(end.axes)}" for end in row.collectives)
    return (
        "*" if row.chosen else "", str(row.number), *map(str, row.operands), "  ".join(map(str, row.results)),
        seconds_text(row.compute_seconds), seconds_text(row.communication_seconds), nbytes_text(row.memory_bytes), ends,
    )  # fmt: skip


def explore(
    fn: Callable[..., Any],
    mesh: Mesh | AbstractMesh | MeshModel,
    *,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    memory_budget: float | str | None = None,
    hardware: str | MeshModel | None = None,
    time_limit_s: float = 60.0,
) -> Exploration:
    """Look at everything that planning a function would choose between; nothing is compiled or run.

    The choice is that of `autoshard` with these options; `autoshard(fn, mesh, ...).explore(*args)` has all of them.

    Args:
        fn: The function.
        mesh: A JAX mesh as for `autoshard`, or a mesh model (`autoshard.costs.MeshModel`) without any devices.
        args: Positional arguments, arrays or `jax.ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        donate_argnums: Arguments whose memory is given away.
        static_argnums: Arguments that are not traced.
        memory_budget: Bytes per device, or a string such as ``"1.5GiB"``. By default what the hardware has.
        hardware: As of `autoshard`; not with a mesh model.
        time_limit_s: Time for the solver.

    Returns:
        Operations, strategies, cost vectors and the choice. Where nothing fits the budget, all but the choice.

    Example:
        >>> import jax
        >>> from autoshard import explore
        >>> from autoshard.costs import MeshModel
        >>> mesh = MeshModel.preset("tpu-v5e", {"x": 4, "y": 2})
        >>> shape = jax.ShapeDtypeStruct((512, 512), "float32")
        >>> found = explore(lambda a, b: a @ b, mesh, args=(shape, shape))
        >>> found.find("dot_general").factors
        'b a, a c -> b c; a=512 (sum), b=512, c=512'
    """
    model = mesh if isinstance(mesh, MeshModel) else mesh_model(mesh, hardware)
    shapes, named = jax.tree.map(abstract, (tuple(args), dict(kwargs or {})))
    program = trace(
        fn, shapes, named, signature_names=_parameters(fn),
        jit_options={"donate_argnums": donate_argnums, "static_argnums": static_argnums},
    )  # fmt: skip
    budget = float(model.device.usable_memory_bytes) if memory_budget is None else parse_bytes(memory_budget)
    options = PlanningOptions(mesh=model, budget_bytes=budget, ties=fed_back(program), time_limit_s=time_limit_s)
    return explore_program(program, options)


def explore_program(program: Program, options: PlanningOptions) -> Exploration:
    """What planning a traced program chooses between, and what it chooses."""
    lowered, solution = choose(program, planned_graph(program, options), options)
    operations = tuple(
        _operation(lowered, position, solution) for position, node in enumerate(lowered.nodes) if node >= 0
    )
    nodes = {position: node for position, node in enumerate(lowered.nodes) if node >= 0}
    return Exploration(operations, solution, lowered.problem, lowered.mesh, nodes, _values(lowered))


def _values(lowered: Lowered) -> dict[int, tuple[str, str]]:
    """Per node of the problem the value that it stands for, and whom a copy is for."""
    values = lowered.graph.values
    copies = {supplier.node: (values[value].name, "several") for value, supplier in lowered.suppliers.items()}
    made = {
        node: (values[op.results[0]].name if op.results else op.primitive, "")
        for op, node in zip(lowered.graph.ops, lowered.nodes)
        if node >= 0
    }
    return copies | made


def _parameters(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


def _operation(lowered: Lowered, position: int, solution: Solution) -> Operation:
    op, strategies = lowered.graph.ops[position], lowered.sets[position]
    assert strategies is not None
    taken = solution.choice[lowered.nodes[position]] if solution.choice else -1
    values = lowered.graph.values
    return Operation(
        number=position,
        primitive=op.primitive,
        name=values[op.results[0]].name if op.results else op.primitive,
        place=place_of(op.source),
        executions=op.trips,
        factors=_factors_text(lowered, position),
        strategies=tuple(
            _strategy_row(lowered, position, number, strategy, chosen=number == taken)
            for number, strategy in enumerate(strategies.strategies)
        ),
        operands=tuple(
            _operand(lowered, position, k, solution)
            for k, value in enumerate(op.operands)
            if value != LITERAL and value in lowered.suppliers
        ),
    )


def _strategy_row(lowered: Lowered, position: int, number: int, strategy: Strategy, *, chosen: bool) -> StrategyRow:
    op = lowered.graph.ops[position]
    held = sum(
        _shard_bytes(lowered.graph.values[value].facts, spec, lowered.mesh)
        for value, spec in zip(op.results, strategy.results)
        if lowered.liveness.occupies(value)
    )
    return StrategyRow(
        number=number,
        operands=strategy.operands,
        results=strategy.results,
        collectives=strategy.collectives,
        compute_seconds=strategy.compute.seconds * op.trips,
        communication_seconds=strategy.communication.seconds * op.trips,
        cost_seconds=float(lowered.problem.costs[lowered.nodes[position]][number]),
        memory_bytes=held + strategy.scratch_bytes,
        per_shard=strategy.local,
        chosen=chosen,
    )


def _shard_bytes(facts: TensorFacts, spec: ShardingSpec, mesh: MeshModel) -> float:
    return float(spec.shard_bytes(facts.shape, facts.itemsize, mesh))


def _operand(lowered: Lowered, position: int, k: int, solution: Solution) -> Operand:
    op, strategies = lowered.graph.ops[position], lowered.sets[position]
    assert strategies is not None
    value = op.operands[k]
    facts, supplier = lowered.graph.values[value].facts, lowered.suppliers[value]
    column = strategies.operands[k]
    asked = column.specs[column.index[solution.choice[lowered.nodes[position]]]] if solution.choice else None
    return Operand(
        name=lowered.graph.values[value].name,
        shape=facts.shape,
        dtype=facts.dtype,
        itemsize=facts.itemsize,
        producer=lowered.graph.values[value].producer[0],
        executions=op.operand_trips[k],
        offered=supplier.specs,
        required=column.specs,
        held=_held(supplier, solution),
        asked=asked,
        mesh=lowered.mesh,
    )


def _held(supplier: Supplier, solution: Solution) -> tuple[ShardingSpec, ...]:
    if not solution.choice:
        return ()
    taken = solution.choice[supplier.node]
    return tuple(dict.fromkeys((supplier.specs[supplier.first[taken]], supplier.specs[supplier.second[taken]])))


def _factors_text(lowered: Lowered, position: int) -> str:
    """The rule of an operation as an einsum, with the sizes of its factors and how their shards are combined."""
    rule = lowered.graph.ops[position].rule
    letters = [chr(ord("a") + n) if n < 26 else f"f{n}" for n in range(len(rule.factors))]

    def tensor(dims: Sequence[Sequence[int]]) -> str:
        groups = [" ".join(letters[f] for f in factors) or "-" for factors in dims]
        return " ".join(f"({group})" if " " in group else group for group in groups) or "scalar"

    sizes = [
        f"{letter}={factor.size}" + ("" if factor.combine is Combine.PARALLEL else f" ({factor.combine})")
        for letter, factor in zip(letters, rule.factors)
    ]
    sides = [", ".join(map(tensor, tensors)) for tensors in (rule.operands, rule.results)]
    return " -> ".join(side for side in sides if side) + (f"; {', '.join(sizes)}" if sizes else "")
