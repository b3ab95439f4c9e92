"""A plan that the caller gives: is it for this program, this mesh and these options?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.arguments import Options
from autoshard.errors import PlanMismatchError, raise_all
from autoshard.plan import Leaf, Plan, spec_of
from autoshard.planner import PlanningOptions, fingerprint
from autoshard.shardings import DEVICE_MEMORY, Fixed, agrees
from autoshard.tables import nbytes_text
from autoshard.trace import Program


def given_plan(options: Options, program: Program, planning: PlanningOptions) -> Plan | None:
    """The plan that the caller gave, if it is for this program, mesh and options.

    Args:
        options: The caller's options.
        program: The traced program.
        planning: What the options mean for it.

    Returns:
        The plan, not yet bound; None if none was given.

    Raises:
        PlanMismatchError: It is for another program or mesh, or contradicts the options; all contradictions are told.
    """
    given = options.plan
    if given is None:
        return None
    plan = given if isinstance(given, Plan) else Plan.load(given)
    expected = fingerprint(program, planning.mesh, plan.axis_parts)
    if plan.fingerprint != expected:
        raise PlanMismatchError(_what_differs(plan, program, planning))
    contradictions = [
        *_other_shardings(plan.arguments, planning.fixed_arguments, "in_shardings"),
        *_other_shardings(plan.results, planning.fixed_outputs, "out_shardings"),
        *_not_the_same(plan, planning),
        *_other_memory(plan, planning),
        *(
            f"axis_parts: the plan uses axis {axis!r} in parts, which is not done with axis_parts=False, with axes "
            "that are Explicit or reserved, nor inside of another planned function: plan with axis_parts=False there"
            for axis in sorted({*plan.axis_parts} - planning.cut_axes)
        ),
    ]
    budget = options.memory_budget
    if budget is not None and plan.predicted.peak_memory_bytes > budget:
        needed = nbytes_text(plan.predicted.peak_memory_bytes)
        contradictions.append(f"memory_budget: {nbytes_text(budget)} is asked for, the plan needs {needed}")
    raise_all(PlanMismatchError, f"the plan of {plan.function!r} contradicts the options: plan again", contradictions)
    return plan.model_copy()


def _other_shardings(leaves: Sequence[Leaf], fixed: Mapping[int, Fixed], what: str) -> list[str]:
    """Leaves that a plan shards otherwise than the caller fixed."""
    return [
        f"{what}: {leaves[number].name} is planned as {spec_of(leaves[number].spec)}"
        for number, dims in fixed.items()
        if not agrees(spec_of(leaves[number].spec), dims)
    ]


def _not_the_same(plan: Plan, planning: PlanningOptions) -> list[str]:
    """Arguments that a plan shards differently though the caller wants them alike."""
    pairs = [(plan.arguments[a], plan.arguments[b]) for a, b in planning.same_arguments]
    return [f"same_as: {a.name} is not planned as {b.name}" for a, b in pairs if a.spec != b.spec]


def _other_memory(plan: Plan, planning: PlanningOptions) -> list[str]:
    """What is planned otherwise than it is asked for: memory of arguments and results, constraints in the code."""
    faults = [
        f"memory: {leaf.name} is planned in {leaf.memory_kind or DEVICE_MEMORY}, wanted in {kind or DEVICE_MEMORY}"
        for leaves, kinds in ((plan.arguments, planning.argument_memory), (plan.results, planning.result_memory))
        for leaf, kind in zip(leaves, kinds or [None] * len(leaves))
        if leaf.memory_kind != kind
    ]
    if plan.reopened != planning.reopen:
        faults.append(f"constraints: the plan was made with in_code={'reopen' if plan.reopened else 'keep'!r}")
    return faults


def _what_differs(plan: Plan, program: Program, planning: PlanningOptions) -> str:
    """Why a plan is not for this program."""
    wanted = dict(planning.mesh.sizes)
    if dict(plan.mesh.sizes) != wanted:
        return f"the plan of {plan.function!r} is for a mesh {dict(plan.mesh.sizes)}, this one is {wanted}: plan again"
    names = tuple(leaf.name for leaf in plan.arguments)
    if names != program.argument_names:
        return f"the plan of {plan.function!r} has other arguments than {program.name!r}: plan again"
    return (
        f"the plan of {plan.function!r} was made for another program than this {program.name!r} (its code, argument "
        "shapes, donation or the version of JAX have changed): plan again"
    )
