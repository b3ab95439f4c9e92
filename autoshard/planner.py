"""The pipeline from a traced program to a plan."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.backends import on_chip_bytes
from autoshard.costs import MeshModel
from autoshard.costs.mesh import axis_parts
from autoshard.decode import decode
from autoshard.errors import InfeasibleError, SolverError, UnsupportedError
from autoshard.graph import ASSUMED_WHILE_TRIPS, Graph
from autoshard.liveness import Liveness
from autoshard.lower import Lowered, least, live_bytes, lower
from autoshard.parts import refined_fixed, refined_graph, useful_parts
from autoshard.plan import PLAN_VERSION, Leaf, Plan, SolverSummary
from autoshard.rules.base import called_name
from autoshard.shardings import Fixed, without_axes_of_one
from autoshard.solver import Progress, Solution, Status, check_solution, least_budget, solve
from autoshard.tables import nbytes_text
from autoshard.trace import Program, build_graph

logger: logging.Logger = logging.getLogger("autoshard")


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """What the caller decided about planning.

    Attributes:
        mesh: The mesh model.
        budget_bytes: Memory per device; None for no limit.
        fixed_arguments: Flat argument number to the sharding that the caller fixed.
        fixed_outputs: The same for flat results.
        hinted_arguments: Flat argument number to the sharding that the caller prefers.
        ties: Flat output number to the flat argument that it is fed back to.
        same_arguments: Pairs of flat arguments that have one sharding.
        argument_memory: Per flat argument the memory that it lives in; None for the devices' own. Empty for all there.
        result_memory: The same per flat result.
        reopen: Whether constraints in the function's own code are planned as if they were not there.
        cut_axes: Mesh axes that values inside the function may be split over in parts.
        time_limit_s: Time for the solver.
        on_failure: ``raise``, or ``replicate`` to run unsharded when no plan is found.
        strict: Whether a primitive without a rule is an error.
        on_progress: Called while the solver works.
    """

    mesh: MeshModel
    budget_bytes: float | None = None
    fixed_arguments: Mapping[int, Fixed] = field(default_factory=dict)
    fixed_outputs: Mapping[int, Fixed] = field(default_factory=dict)
    hinted_arguments: Mapping[int, Fixed] = field(default_factory=dict)
    ties: Mapping[int, int] = field(default_factory=dict)
    same_arguments: tuple[tuple[int, int], ...] = ()
    argument_memory: tuple[str | None, ...] = ()
    result_memory: tuple[str | None, ...] = ()
    reopen: bool = False
    cut_axes: frozenset[str] = frozenset()
    time_limit_s: float = 60.0
    on_failure: str = "raise"
    strict: bool = False
    on_progress: Callable[[Progress], None] | None = None


def make_plan(program: Program, options: PlanningOptions) -> Plan:
    """Plan a traced program.

    Args:
        program: The traced program.
        options: Mesh, budget and what the caller fixed.

    Returns:
        The plan, not yet bound to devices.

    Raises:
        InfeasibleError: Nothing fits the budget and the fixed shardings.
        SolverError: The solver stopped without a choice.
        SpecError: A fixed sharding is met by no strategy.
        UnsupportedError: A primitive has no rule and ``strict`` was asked for.
    """
    begin = time.monotonic()
    graph = planned_graph(program, options)
    unruled = _unruled(graph)
    if unruled and options.strict:
        raise UnsupportedError(
            "no sharding rule for:\n  " + "\n  ".join(unruled) + "\nregister one, or plan without strict=True"
        )
    lowered, solution = choose(program, graph, options)
    built = time.monotonic() - sum(solution.seconds.values())
    if not solution.choice and lowered.problem.costs:
        solution = _without_solution(solution, lowered, options)
    seconds = {"build": built - begin, **solution.seconds}
    return assemble(program, lowered.graph, lowered, solution, options, seconds, unruled)


def choose(program: Program, graph: Graph, options: PlanningOptions) -> tuple[Lowered, Solution]:
    """The optimisation problem of a graph and its solution, over parts of axes where that pays.

    Every plan over whole axes is one over parts, too, but there are many more of those: a search that is cut short may
    end at a dearer one. So whole axes come first, and parts have the time that is left.
    """
    best, solution = _within_budget(program, graph, options)
    spent = dict(solution.seconds)
    for parts in useful_parts(graph, options.mesh, options.cut_axes):
        left_s = options.time_limit_s - sum(spent.values())
        if left_s <= 0:
            break
        divided = replace(over_parts(options, parts), time_limit_s=left_s)
        lowered, found = _within_budget(program, planned_graph(program, divided), divided)
        spent = {phase: spent.get(phase, 0.0) + found.seconds.get(phase, 0.0) for phase in {**spent, **found.seconds}}
        if found.choice and (not solution.choice or found.cost < (1 - TARGET_GAP) * solution.cost):
            best, solution = lowered, found
    return best, replace(solution, seconds=spent)


def _within_budget(program: Program, graph: Graph, options: PlanningOptions) -> tuple[Lowered, Solution]:
    """A problem and its solution, within the budget less headroom if that can be."""
    lowered = lower_program(program, graph, options, 1 - MEMORY_HEADROOM)
    solution = _solve(lowered, options)
    if solution.status is Status.INFEASIBLE and options.budget_bytes is not None:
        lowered = lower_program(program, graph, options, 1.0)
        solution = _solve(lowered, options)
    return lowered, solution


def over_parts(options: PlanningOptions, parts: Mapping[str, tuple[int, ...]]) -> PlanningOptions:
    """The same options on a mesh with axes in parts; without any, they are as they were."""
    if not parts:
        return options
    mesh = options.mesh.cut(parts)
    fixed = [
        {number: refined_fixed(dims, mesh) for number, dims in each.items()}
        for each in (options.fixed_arguments, options.fixed_outputs, options.hinted_arguments)
    ]
    return replace(options, mesh=mesh, fixed_arguments=fixed[0], fixed_outputs=fixed[1], hinted_arguments=fixed[2])


TARGET_GAP = 1e-3
"""A plan this near the bound is good enough: the cost model is not more exact."""


def _solve(lowered: Lowered, options: PlanningOptions) -> Solution:
    if not lowered.problem.costs:
        return Solution(choice=(), cost=0.0, bound=0.0, status=Status.OPTIMAL, peak_bytes=0.0)
    solution = solve(
        lowered.problem,
        time_limit_s=options.time_limit_s,
        target_gap=TARGET_GAP,
        on_progress=options.on_progress,
    )
    return _at_least_replicated(lowered, solution) if solution.status is Status.FAILED else solution


def _at_least_replicated(lowered: Lowered, solution: Solution) -> Solution:
    """Everything on every device, where time was up before anything was found, if that fits."""
    check = check_solution(lowered.problem, lowered.replicated)
    if check.violations or not np.isfinite(check.cost):
        return solution
    message = "time was up before any plan was found: everything is replicated, raise time_limit_s"
    logger.warning("%s", message)
    return replace(
        solution, choice=lowered.replicated, cost=check.cost, peak_bytes=check.peak_bytes, status=Status.FEASIBLE,
        message=message,
    )  # fmt: skip


MEMORY_HEADROOM = 0.1
"""Part of the budget left free for what the memory model does not see: the compiler's schedule and layout copies. The
model's error against XLA's `memory_analysis` is about as large. Where nothing fits otherwise, all of it is used."""


def lower_program(program: Program, graph: Graph, options: PlanningOptions, usable: float = 1.0) -> Lowered:
    """The optimisation problem of a program's graph, within a fraction of the memory budget."""
    budget = None if options.budget_bytes is None else usable * options.budget_bytes
    liveness = Liveness(graph, program.donated, options.mesh.platform)
    return lower(
        graph, liveness, options.mesh,
        budget_bytes=budget, ties=options.ties, fixed_outputs=options.fixed_outputs,
        same_arguments=options.same_arguments,
        twins=twins(program, options.fixed_arguments),
        hints=options.hinted_arguments,
    )  # fmt: skip


def twins(program: Program, fixed: Mapping[int, Fixed]) -> dict[int, Fixed]:
    """Free arguments to the sharding of the fixed argument that they are twins of: same shape, type and end of path.

    Adam's ``state[0].mu['w']`` is a twin of ``params['w']``.
    """
    avals = [v.aval for v in program.jaxpr.jaxpr.invars]
    keys = program.argument_keys
    found: dict[int, Fixed] = {}
    for number, aval in enumerate(avals):
        for other, dims in fixed.items():
            alike = (aval.shape, aval.dtype) == (avals[other].shape, avals[other].dtype)
            if number not in fixed and alike and keys[other] and keys[number].endswith(keys[other]):
                found.setdefault(number, dims)
    return found


def _unruled(graph: Graph) -> tuple[str, ...]:
    """Primitives without a rule, what they fall back on, and the user's line, each once."""
    ops = [graph.ops[i] for i in graph.unruled]
    seen = {f"{called_name(op.equation)} ({op.rule.reason}) at {op.source}": None for op in ops}
    return tuple(seen)


def planned_graph(program: Program, options: PlanningOptions) -> Graph:
    """The graph of a program with what the caller fixed of arguments, and in the code unless that is reopened."""
    graph = build_graph(program)
    sizes = options.mesh.whole_sizes
    ops = tuple(
        op if op.fixed is None else replace(op, fixed=None if options.reopen else without_axes_of_one(op.fixed, sizes))
        for op in graph.ops
    )
    graph = Graph(graph.values, ops, graph.arguments, graph.outputs, graph.unruled)
    graph = refined_graph(graph, options.mesh) if options.mesh.parts else graph
    return fix_arguments(graph, options.fixed_arguments)


def fix_arguments(graph: Graph, fixed: Mapping[int, Fixed]) -> Graph:
    """The graph with the caller's shardings written into its argument operations."""
    if not fixed:
        return graph
    ops = list(graph.ops)
    for number, dims in fixed.items():
        position = graph.values[graph.arguments[number]].producer[0]
        ops[position] = replace(ops[position], fixed=dims)
    return Graph(graph.values, tuple(ops), graph.arguments, graph.outputs, graph.unruled)


def _without_solution(solution: Solution, lowered: Lowered, options: PlanningOptions) -> Solution:
    """The replicated plan if the caller prefers that to an error."""
    if options.on_failure == "replicate":
        message = f"no plan ({_why_infeasible(lowered, options, solution)}): everything is replicated"
        logger.warning("%s", message)
        return replace(solution, choice=lowered.replicated, status=Status.FAILED, message=message)
    if solution.status is Status.INFEASIBLE:
        raise InfeasibleError(
            f"no plan fits: {_why_infeasible(lowered, options, solution)}{_what_would_fit(lowered, options)}\n"
            "raise memory_budget, use more devices, donate arguments that are fed back, add jax.checkpoint, or free "
            "fixed shardings"
        )
    raise SolverError(
        f"no plan was found within time_limit_s={options.time_limit_s:g}: "
        f"{_why_infeasible(lowered, options, solution)}; raise time_limit_s or memory_budget, or pass "
        "on_failure='replicate'"
    )


def _why_infeasible(lowered: Lowered, options: PlanningOptions, solution: Solution) -> str:
    """The budget, and what is live at the fullest time if every value takes the least that it can."""
    if options.budget_bytes is None:
        return "the fixed shardings contradict each other"
    held, position = least_peak(lowered)
    op, proven = lowered.graph.ops[min(position, lowered.graph.end - 1)], solution.status is Status.INFEASIBLE
    return (
        f"memory_budget is {nbytes_text(options.budget_bytes)} per device; at {op.primitive} "
        f"{op.source or 'the start'} at least {nbytes_text(held)} is live, with every value split as far as it goes"
        f"{', and no choice keeps all of them so small at once' if proven and held <= options.budget_bytes else ''}"
    )


LEAST_BUDGET_S = 5.0
"""Time to find the budget that something fits, for the message that nothing does."""


def _what_would_fit(lowered: Lowered, options: PlanningOptions) -> str:
    """The least budget that a plan fits, if the budget is to blame and that is found in time."""
    if options.budget_bytes is None:
        return ""
    found = least_budget(lowered.problem, time_limit_s=min(LEAST_BUDGET_S, options.time_limit_s))
    if not found.choice:
        return ""
    nbytes = max(0.0, found.nbytes - on_chip_bytes(lowered.mesh))
    known = "the least budget that a plan fits" if found.nbytes == found.bound else "the least that is known to suffice"
    return f"; {known} is {nbytes_text(nbytes)} ({nbytes:.0f} bytes)"


def least_peak(lowered: Lowered) -> tuple[float, int]:
    """The largest sum over time of the least that each value can take, and its time: no plan holds less."""
    held = live_bytes(least([*lowered.problem.usages, *lowered.problem.edge_usages]), lowered.graph.end)
    held = held - on_chip_bytes(lowered.mesh)
    return float(held.max()), int(np.argmax(held))


def assemble(
    program: Program,
    graph: Graph,
    lowered: Lowered,
    solution: Solution,
    options: PlanningOptions,
    seconds: Mapping[str, float],
    unruled: tuple[str, ...],
) -> Plan:
    """The plan of a choice.

    Args:
        program: The traced program.
        graph: Its graph.
        lowered: The problem and its legend.
        solution: The choice, and how sure the solver is of it.
        options: Mesh, budget and what the caller fixed.
        seconds: Wall time per phase of planning.
        unruled: What runs replicated for want of a rule.

    Returns:
        The plan, not yet bound to devices.
    """
    decoded = decode(lowered, solution.choice, program.argument_names, program.output_names, program.donated)
    summary = SolverSummary(
        status="replicated" if solution.status is Status.FAILED else solution.status.value,
        cost_seconds=solution.cost,
        bound_seconds=solution.bound,
        gap=solution.gap,
        seconds=dict(seconds),
        message=solution.message,
    )
    mesh = lowered.mesh
    return Plan(
        version=PLAN_VERSION,
        function=program.name,
        fingerprint=fingerprint(program, mesh.whole, mesh.parts),
        mesh=mesh.whole,
        axis_parts=mesh.parts,
        memory_budget_bytes=options.budget_bytes,
        arguments=_in_memory(decoded.arguments, options.argument_memory),
        results=_in_memory(decoded.results, options.result_memory),
        decisions=decoded.decisions,
        collectives=decoded.collectives,
        costs=decoded.costs,
        predicted=decoded.totals,
        solver=summary,
        unruled=unruled,
        notes=(
            *_notes(graph),
            *_parts_notes(mesh),
            *_indivisible(graph, mesh.whole),
            *_memory_notes(options),
        ),
        reopened=options.reopen,
    )


def _in_memory(leaves: Sequence[Leaf], kinds: Sequence[str | None]) -> tuple[Leaf, ...]:
    """Leaves with the memory that they live in between calls."""
    if not any(kinds):
        return tuple(leaves)
    return tuple(leaf.model_copy(update={"memory_kind": kind}) for leaf, kind in zip(leaves, kinds, strict=True))


def _memory_notes(options: PlanningOptions) -> tuple[str, ...]:
    kinds = sorted({kind for kind in (*options.argument_memory, *options.result_memory) if kind})
    return tuple(
        f"what lives in {kind} is copied to the devices when a call begins, or back when it ends: the copies take no "
        "time in the prediction, and memory on the devices like every other argument and result"
        for kind in kinds
    )


def _parts_notes(mesh: MeshModel) -> tuple[str, ...]:
    """The axes that values are split over in parts."""
    return tuple(
        f"inside the function, axis {axis} is used in parts, major first: {', '.join(axis_parts(axis, parts))}"
        for axis, parts in mesh.parts.items()
    )


def _notes(graph: Graph) -> tuple[str, ...]:
    """What the prediction assumes."""
    notes = []
    if any(op.primitive == "while_carry" for op in graph.ops):
        notes.append(f"while loops are taken to run {ASSUMED_WHILE_TRIPS} times")
    if any(op.primitive in ("cond_in", "cond_out") for op in graph.ops):
        notes.append(
            "the branches of a cond are taken to be equally likely in the time; the bytes sent are those of all"
        )
    narrow = sorted({v.facts.dtype for v in graph.values if NARROWER_THAN_A_BYTE.match(v.facts.dtype)})
    if narrow:
        notes.append(f"{', '.join(narrow)}: a byte an element, as XLA sends them; it may hold them packed in less")
    return tuple(notes)


NARROWER_THAN_A_BYTE = re.compile(r"u?int[1-7]$|float[1-7]_")

INDIVISIBLE_SHOWN = 4


def _indivisible(graph: Graph, mesh: MeshModel) -> tuple[str, ...]:
    """Dimensions of arguments that no mesh axis divides: they stay whole, which is no choice of the plan's."""
    sizes = sorted({size for size in mesh.sizes.values() if size > 1})
    arguments = [graph.values[number] for number in graph.arguments]
    found = [
        f"{value.name}: dimension {d} stays whole, {extent} is not divisible by {' or '.join(map(str, sizes))}"
        for value in arguments
        for d, extent in enumerate(value.facts.shape)
        if sizes and extent > sizes[0] and all(extent % size for size in sizes)
    ]
    more = len(found) - INDIVISIBLE_SHOWN
    return (
        *found[:INDIVISIBLE_SHOWN],
        *([f"{more} more dimensions of arguments are not divisible"] if more > 0 else []),
    )


def fingerprint(program: Program, mesh: MeshModel, parts: Mapping[str, tuple[int, ...]]) -> str:
    """Hash of what a plan depends on: the program's text, which arguments are donated, the mesh's axes and their parts.

    Addresses of Python objects, which parameters such as callbacks are printed with, differ from process to process.
    """
    text = re.sub(r"\bat 0x[0-9a-f]+", "", str(program.jaxpr))
    facts = [text, repr(program.donated), repr([(a, mesh.size(a)) for a in mesh.axis_names])]
    facts += [repr(sorted(parts.items()))] if parts else []
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def fed_back(program: Program) -> dict[int, int]:
    """Which results are given back as arguments in the next call: flat output number to flat argument number.

    An output is matched with the first argument of the same path below the top level, shape and element type. An
    argument that is one array has no such path: it is matched by shape and type, if it is donated.
    """
    outputs = zip(program.output_keys, (v.aval for v in program.jaxpr.jaxpr.outvars))
    arguments = list(zip(program.argument_keys, (v.aval for v in program.jaxpr.jaxpr.invars), program.donated))
    matched: dict[int, int] = {}
    for output, (keys, aval) in enumerate(outputs):
        for number, (key, other, donated) in enumerate(arguments):
            alike = (aval.shape, aval.dtype) == (other.shape, other.dtype) and bool(aval.shape)
            if alike and key in keys and (key or donated) and number not in matched.values():
                matched[output] = number
                break
    return matched
