"""How few collectives a compiled program would run, if all that can be combined were.

The CPU backend combines all-reduces only; TPU and GPU combine all-gathers and reduce-scatters as well. Two collectives
can be one if they are of one kind, over the same groups, and neither waits for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autoshard import hlo
from autoshard.hlo_text import Computation, Instruction, array_shapes, parse_module

KINDS = frozenset(hlo.KINDS)


def combined(text: str, larger_than_bytes: int = 0) -> Counter[str]:
    """Collectives of every kind in optimised HLO, at best.

    Each is added to the first group that it can join, in program order. Computations are taken one by one: what stands
    in a loop is not combined with what stands outside.

    Args:
        text: Optimised HLO.
        larger_than_bytes: Results of no more are left out.
    """
    counted: Counter[str] = Counter()
    for computation in parse_module(text).computations.values():
        counted.update(kind for kind, _ in _groups(computation, larger_than_bytes))
    return counted


def _groups(computation: Computation, larger_than_bytes: int) -> list[tuple[str, str]]:
    """Kind and device groups of every combined collective."""
    waits = _collectives_before(computation)
    found = [
        instruction
        for instruction in computation.instructions.values()
        if instruction.opcode in KINDS and _nbytes(instruction) > larger_than_bytes
    ]
    groups: list[tuple[tuple[str, str], set[str]]] = []
    for instruction in found:
        key = (instruction.opcode, instruction.attribute("replica_groups") or "")
        for other, members in groups:
            if other == key and not _is_before(members, {instruction.name}, groups, waits):
                members.add(instruction.name)
                break
        else:
            groups.append((key, {instruction.name}))
    return [key for key, _ in groups]


def _is_before(
    members: set[str],
    names: set[str],
    groups: list[tuple[tuple[str, str], set[str]]],
    waits: Mapping[str, frozenset[str]],
) -> bool:
    """Whether any of ``names`` waits for any of ``members``, also through what is combined already."""
    before: set[str] = set()
    new = set(names)
    while new:
        reached = {wait for name in new for wait in waits[name]}
        for _, together in groups:
            if together & reached:
                reached |= together
        new = reached - before
        before |= new
    return bool(before & members)


def _collectives_before(computation: Computation) -> dict[str, frozenset[str]]:
    """Per instruction the nearest collectives whose results it needs."""
    near: dict[str, frozenset[str]] = {}
    for name, instruction in computation.instructions.items():
        near[name] = frozenset(
            before
            for operand in instruction.operands
            for before in ({operand} if _is_collective(computation, operand) else near.get(operand, ()))
        )
    return near


def _is_collective(computation: Computation, name: str) -> bool:
    return name in computation.instructions and computation.instructions[name].opcode in KINDS


def _nbytes(instruction: Instruction) -> int:
    return sum(array.nbytes for array in array_shapes(instruction.shape))
