"""A traced program as values and operations in program order, nested calls inlined, regions kept as boundaries.

Time is the position of an operation in the list. The body of a scan, while or cond is a stretch of that list between
boundary operations, which tie the values outside to those inside:

- ``scan_const``, ``while_const``, ``cond_in``, ``remat_in``: an outer value under the one sharding it has inside.
- ``scan_carry``, ``while_carry``: operands are the initial value and the value after an iteration, results the value
  inside and the value after the loop.
- ``scan_xs``: a scanned input and its slice in an iteration; the scanned dimension stays whole.
- ``scan_ys``: the value of an iteration and the stacked output.
- ``cond_out``: one operand per branch, one result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autoshard.rules.base import Equation, OpRule, TensorFacts
from autoshard.shardings import Fixed

LITERAL = -1
"""Stands for an operand that is a literal (or does not exist): no value, no sharding."""

ASSUMED_WHILE_TRIPS = 16
"""How often the body of a while loop is taken to run, since its trip count is unknown before it runs."""

Path = tuple[int, ...]
"""Where an equation stands: its position in the jaxpr, then the branch and position in a nested one, and so on."""


@dataclass(frozen=True, slots=True)
class Value:
    """One array of the program.

    Attributes:
        facts: Shape and element type.
        name: What a person would call it: an argument path, or primitive and source line.
        constant: It depends on no argument: free in any sharding, computed again where it is used.
        producer: Position of the operation that makes it, and which of its results it is.
    """

    facts: TensorFacts
    name: str
    constant: bool
    producer: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, or one boundary of a region.

    Attributes:
        equation: Primitive, parameters, operand and result facts.
        rule: Its factors.
        path: Where its equation stands; boundaries carry the path of the region's equation.
        slot: Which boundary of that equation it is (position among its operands or results); 0 for ordinary operations.
        operands: Value numbers; ``LITERAL`` for literals.
        results: Value numbers.
        trips: How often it runs per call.
        operand_trips: How often a resharding of each operand runs per call.
        operand_until: Time up to which (inclusive) each operand is needed.
        result_from: Time from which each result occupies memory.
        source: The user's file and line.
        fixed: For arguments and constraints, the sharding asked for: per dimension the mesh axes, None where free.
        likelihood: How likely the branches of conds around it are to be taken; ``trips`` has it as a factor.
    """

    equation: Equation
    rule: OpRule
    path: Path
    slot: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    trips: float
    operand_trips: tuple[float, ...]
    operand_until: tuple[int, ...]
    result_from: tuple[int, ...]
    source: str
    fixed: Fixed | None = None
    likelihood: float = 1.0

    @property
    def primitive(self) -> str:
        """Name of the primitive or boundary."""
        return self.equation.primitive

    @property
    def ending_trips(self) -> float:
        """How often the collectives that end its sums run per call: after a loop, for the loop's carry."""
        return self.operand_trips[0] if self.primitive.endswith("_carry") else self.trips

    @property
    def operand_likelihood(self) -> float:
        """How likely the place is reached where operands are resharded: for the exit of a cond, one of its branches."""
        return self.likelihood / len(self.operands) if self.primitive == "cond_out" else self.likelihood


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a value: the operation, which operand, and until when it needs it."""

    op: int
    operand: int
    until: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced program.

    Attributes:
        values: All arrays.
        ops: Operations and boundaries in program order; the first ones are the arguments.
        arguments: Value numbers of the flat arguments.
        outputs: Value numbers of the flat results (``LITERAL`` for literal results).
        unruled: Positions of operations whose primitive has no rule: they fall back on Shardy's, or run replicated.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    arguments: tuple[int, ...]
    outputs: tuple[int, ...]
    unruled: tuple[int, ...] = ()
    _uses: dict[int, tuple[Use, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        collected: dict[int, list[Use]] = {}
        for position, op in enumerate(self.ops):
            for k, value in enumerate(op.operands):
                if value != LITERAL:
                    collected.setdefault(value, []).append(Use(position, k, op.operand_until[k]))
        self._uses.update({value: tuple(uses) for value, uses in collected.items()})

    def uses(self, value: int) -> tuple[Use, ...]:
        """All uses of a value, in program order of the users."""
        return self._uses.get(value, ())

    @property
    def end(self) -> int:
        """The time after the last operation."""
        return len(self.ops)

    def is_constant(self, op: Op) -> bool:
        """Whether an operation only computes constants."""
        return bool(op.results) and all(self.values[v].constant for v in op.results)

    def verify(self) -> None:
        """Check the invariants that the later passes rely on.

        Raises:
            AssertionError: A value's producer does not list it, a rank differs from its rule, or a value is used
                before it is made by anything but a loop's carry.
        """
        for number, value in enumerate(self.values):
            maker, k = value.producer
            assert self.ops[maker].results[k] == number, f"value {number} is not result {k} of op {maker}"
        for position, op in enumerate(self.ops):
            for slot, (operand, dims) in enumerate(zip(op.operands, op.rule.operands)):
                if operand == LITERAL:
                    continue
                used = self.values[operand]
                assert len(dims) == len(used.facts.shape), f"{op.primitive}: rank of operand {slot}"
                late = used.producer[0] >= position and not op.primitive.endswith("_carry")
                assert not late, f"{op.primitive} at {position} uses {used.name} made at {used.producer[0]}"

    def lines(self) -> Iterator[str]:
        """The graph as text, one operation a line; the same for the same program."""

        def show(number: int) -> str:
            if number == LITERAL:
                return "_"
            facts = self.values[number].facts
            return f"%{number}:{facts.dtype}[{','.join(map(str, facts.shape))}]"

        for op in self.ops:
            results = ", ".join(map(show, op.results))
            operands = ", ".join(map(show, op.operands))
            trips = f" x{op.trips:g}" if op.trips != 1 else ""
            yield f"{results} = {op.primitive}({operands}){trips}"
