"""What a person would try first, priced by the same model: replication, data parallelism, full sharding, own specs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import jax.numpy as jnp
from jax.sharding import AbstractMesh

from autoshard.decode import decode
from autoshard.errors import SolverError
from autoshard.graph import LITERAL, Graph
from autoshard.inferring import RuleLeaf, fsdp_sharding, stacked_sharding
from autoshard.parts import refined_fixed
from autoshard.plan import Totals
from autoshard.planner import PlanningOptions, fix_arguments, lower_program, planned_graph
from autoshard.shardings import Fixed, fixed_dims, without_axes_of_one
from autoshard.solver import solve
from autoshard.trace import Program


def price_baselines(program: Program, options: PlanningOptions) -> dict[str, Totals]:
    """Totals of plans that a person would try first, by name, without a memory budget.

    "replicated" runs everything on every device. "data parallel" splits the leading dimension of the arguments that
    are not fed back over the whole mesh and replicates those that are; "fully sharded" splits those, too, each along
    the dimension that `fsdp_sharding` chooses. What happens in between is optimised.
    """
    free = _free(options)
    graph = planned_graph(program, free)
    lowered = lower_program(program, graph, free)
    names = (program.argument_names, program.output_names, program.donated)
    found = {"replicated": decode(lowered, lowered.replicated, *names).totals}
    batch = data_parallel(program, options)
    if batch is None:
        return found
    state = set(options.ties.values())
    sharded = fully_sharded(program, graph, options)
    columns = {
        "data parallel": batch,
        "fully sharded": {number: (sharded if number in state else batch)[number] for number in batch},
    }
    priced = {name: _cheapest(program, options, fixed) for name, fixed in columns.items()}
    return found | {name: totals for name, totals in priced.items() if totals is not None}


def price_fixed(program: Program, options: PlanningOptions, fixed: Mapping[int, Fixed]) -> Totals:
    """Totals of the best plan, without a memory budget, whose arguments are sharded as given.

    Args:
        program: The traced program.
        options: Mesh, ties and time limit; what the caller fixed otherwise does not count.
        fixed: Flat argument number to its sharding; other arguments are free.

    Returns:
        Its totals.

    Raises:
        SolverError: The solver found none within its time limit.
    """
    totals = _cheapest(program, options, {k: refined_fixed(dims, options.mesh) for k, dims in fixed.items()})
    if totals is None:
        raise SolverError(
            f"no plan with the given shardings was found within time_limit_s={options.time_limit_s:g}: raise it"
        )
    return totals


def _cheapest(program: Program, options: PlanningOptions, fixed: Mapping[int, Fixed]) -> Totals | None:
    """Totals of the best plan that keeps to ``fixed``; None if none was found in time."""
    free = _free(options)
    split = {number: without_axes_of_one(dims, options.mesh.sizes) for number, dims in fixed.items()}
    lowered = lower_program(program, fix_arguments(planned_graph(program, free), split), free)
    solution = solve(lowered.problem, time_limit_s=options.time_limit_s)
    if lowered.problem.costs and not solution.choice:
        return None
    names = (program.argument_names, program.output_names, program.donated)
    return decode(lowered, solution.choice, *names).totals


def _free(options: PlanningOptions) -> PlanningOptions:
    """The same options without budget and without what the caller demanded."""
    return replace(
        options, budget_bytes=None, fixed_arguments={}, fixed_outputs={}, hinted_arguments={}, same_arguments=(),
        on_failure="replicate", on_progress=None,
    )  # fmt: skip


def data_parallel(program: Program, options: PlanningOptions) -> dict[int, Fixed] | None:
    """Arguments as data parallelism has them; None if no argument's leading dimension divides by the mesh."""
    fed_back = set(options.ties.values())
    axes, devices = options.mesh.axis_names, options.mesh.num_devices
    fixed: dict[int, Fixed] = {}
    split = False
    for number, var in enumerate(program.jaxpr.jaxpr.invars):
        shape = tuple(getattr(var.aval, "shape", ()))
        rows = shape[0] if math.prod(shape) > 0 and shape else 1
        batch = number not in fed_back and rows > 1 and rows % devices == 0
        split |= batch
        fixed[number] = tuple(axes if batch and d == 0 else () for d in range(len(shape)))
    return fixed if split else None


def fully_sharded(program: Program, graph: Graph, options: PlanningOptions) -> dict[int, Fixed]:
    """Every argument split over the whole mesh by `fsdp_sharding`; the layers of what is scanned over stay together."""
    sizes = options.mesh.sizes
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    rule = fsdp_sharding(options.mesh.axis_names, min_size_to_shard_mb=0)
    avals = [var.aval for var in program.jaxpr.jaxpr.invars]
    stacked = {avals[number].shape for number in scanned_arguments(graph)}
    fixed: dict[int, Fixed] = {}
    for number, (aval, name) in enumerate(zip(avals, program.argument_names)):
        shape = tuple(getattr(aval, "shape", ()))
        if math.prod(shape) == 0:
            fixed[number] = ((),) * len(shape)
            continue
        leaf = RuleLeaf(shape=shape, dtype=jnp.float32, nbytes=1, preconditioner=False)
        chosen = (stacked_sharding(rule) if shape in stacked else rule)((None,) * len(shape), mesh, name, leaf)
        fixed[number] = tuple(dim or () for dim in fixed_dims(chosen, len(shape)))
    return fixed


def scanned_arguments(graph: Graph) -> set[int]:
    """Flat numbers of the arguments that a scan slices, as they are or after operations that keep their shape."""
    numbers = {value: number for number, value in enumerate(graph.arguments)}
    found: set[int] = set()
    for op in graph.ops:
        value = op.operands[0] if op.primitive == "scan_xs" else LITERAL
        while value != LITERAL and value not in numbers:
            value = _same_shape_operand(graph, value)
        if value != LITERAL:
            found.add(numbers[value])
    return found


def _same_shape_operand(graph: Graph, value: int) -> int:
    """The one operand of a value's producer, if it has the value's shape; else LITERAL."""
    operands = graph.ops[graph.values[value].producer[0]].operands
    if len(operands) != 1 or operands[0] == LITERAL:
        return LITERAL
    same = graph.values[operands[0]].facts.shape == graph.values[value].facts.shape
    return operands[0] if same else LITERAL
