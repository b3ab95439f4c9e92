"""What a sharding rule is: a map from every dimension of an operation to named factors.

A rule says, like an einsum, which index ("factor") of the computation runs along each dimension of each operand and
result. A matrix product ``ik,kj->ij`` has the factors i, j (parallel) and k (a reduction). A dimension may be made of
several factors, major first: the reshape ``[32, 16, k] -> [512, k]`` is ``a b k -> (a b) k``. A dimension without a
factor is never split: it has size one, or the operation needs it whole.

Splitting a factor over mesh axes splits every dimension it appears in, and divides the work by the axes' sizes. So a
rule is all that a new primitive needs: strategies, shardings and costs follow from it (`autoshard.strategies`).

To add a rule:

1. Find its family among the files of this package and add a line to the family's table, or
2. write a function ``(Equation) -> OpRule`` beside its relatives and register it with ``@rule_for("primitive")``.
3. Build the rule with `RuleBuilder`; give ``flops`` if the operation does more than move and map elements.
4. Name in ``local_factors`` the factors whose split XLA would not carry out locally: they run as per-shard regions
   (`autoshard.local`, which needs a body of its own where parameters hold extents).
5. Add a case to ``tests/rule_zoo.py`` and run ``pytest tests/autoshard/test_rules.py``: it executes strategies of every
   rule on eight devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from autoshard.costs import ShardingSpec

Dims = tuple[tuple[int, ...], ...]
"""Per dimension of one tensor, the factors it is made of, major first."""


class Combine(StrEnum):
    """How the shards' contributions to a result are combined when a factor is split."""

    PARALLEL = "parallel"  # every shard has its own part of the result
    SUM = "sum"  # partial sums: an all-reduce, or a reduce-scatter
    EXTREME = "extreme"  # partial maxima, minima, products or logical folds: an all-reduce
    ARG = "arg"  # the best candidates of every shard, with their indices: small gathers, then a local choice
    PREFIX = "prefix"  # running folds: the totals of all shards are gathered, the rest is local
    HALO = "halo"  # sliding windows: shards send their borders to their neighbours
    MOVE = "move"  # rows of operands in other places of results: those that change shards are sent


REDUCTIONS = frozenset({Combine.SUM, Combine.EXTREME, Combine.ARG})
"""What leaves the result without the factor."""

EXCHANGES = frozenset({Combine.ARG, Combine.PREFIX, Combine.HALO, Combine.MOVE})
"""What only a per-shard region carries out as priced."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of an operand that become rows of a result, along one dimension.

    Row ``source + i * source_step`` of the operand is row ``target + i * target_step`` of the result, for i < count.
    """

    operand: int
    result: int
    count: int
    source: int = 0
    target: int = 0
    source_step: int = 1
    target_step: int = 1


@dataclass(frozen=True, slots=True)
class Factor:
    """One index of a computation: its extent and what splitting it does to the result.

    Attributes:
        size: Its extent; the number of parts must divide it.
        combine: What splitting it does to the result.
        halo: For windows, how many elements of the operand a shard needs from the neighbours before and after it.
        least: Smallest extent of the operand that a shard may be left with.
        segments: For rows that change places, which become which.
    """

    size: int
    combine: Combine = Combine.PARALLEL
    halo: tuple[int, int] = (0, 0)
    least: int = 1
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Shape and element type of one operand or result."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Equation:
    """What a rule may know of an operation: its name, parameters, operands and results; no tracers, no mesh."""

    primitive: str
    params: Mapping[str, Any]
    operands: tuple[TensorFacts, ...]
    results: tuple[TensorFacts, ...]


@dataclass(frozen=True, slots=True)
class InnerCollective:
    """One collective that an operation runs whatever is decided.

    Attributes:
        kind: What it does.
        axes: Mesh axes it runs over.
        nbytes: Bytes, as `autoshard.costs` counts them for its kind.
        trips: Executions per execution of the operation.
    """

    kind: str
    axes: tuple[str, ...]
    nbytes: float
    trips: float


@dataclass(frozen=True, slots=True)
class OpRule:
    """The factors of one operation and where they appear.

    Attributes:
        factors: The indices of the computation.
        operands: Per operand, per dimension, the factors (positions in ``factors``), major first.
        results: The same for the results.
        flops: Floating-point operations of the whole, unsplit operation.
        fusible: XLA computes it inside its consumers' loops (elementwise, broadcasts): no memory traffic of its own.
        pinned: XLA must be told the sharding of its results (contractions, gathers, scatters).
        local_factors: Factors whose split is carried out as a per-shard region, since XLA would gather.
        aliases: The results are the operands under another name (boundaries of regions): no memory, no traffic.
        merges: Partial results over several factors end in one collective; otherwise in one for each factor.
        touches: Share of the bytes of each operand, then of each result, that is really read or written (a look-up
            reads no more of its table than it returns); everything if not given.
        fixed: The only shardings it can have, of all operands and then all results (a `shard_map` of the user's).
        inner: Collectives that it runs inside, with such shardings.
        open_operands: Operands that arrive as partial sums over the axes of the last factor (see `left_open`).
        leaves_open: Its own sums may be left to a later operation.
        carries_open: It is a loop's carry: the sum is open in its first result and ended in its second.
        ruled: False if this is the fallback of a primitive that has no rule.
        reason: Why everything is whole, or, if not ruled, what it falls back on; for the report.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    flops: float = 0.0
    fusible: bool = False
    pinned: bool = False
    local_factors: frozenset[int] = frozenset()
    aliases: bool = False
    merges: bool = True
    touches: tuple[float, ...] | None = None
    fixed: tuple[ShardingSpec, ...] | None = None
    inner: tuple[InnerCollective, ...] = ()
    open_operands: frozenset[int] = frozenset()
    leaves_open: bool = False
    carries_open: bool = False
    ruled: bool = True
    reason: str = ""


NO_EXTENT = 0
"""Size of the factor that stands for the open sums of operands: any number of parts divides it."""


def left_open(rule: OpRule, operands: Iterable[int], leaves_open: bool = False, carries_open: bool = False) -> OpRule:
    """The rule of an operation among others that pass partial sums on.

    Args:
        rule: The rule.
        operands: Operands that may arrive as partial sums, all over the same axes; the operation is linear in them.
        leaves_open: Whether the result may be passed on as a partial sum.
        carries_open: Whether it is the carry of a loop that adds to it.

    Returns:
        The rule, with one more summing factor if there are such operands.
    """
    opened = frozenset(operands)
    factors = (*rule.factors, Factor(NO_EXTENT, Combine.SUM)) if opened else rule.factors
    return replace(rule, factors=factors, open_operands=opened, leaves_open=leaves_open, carries_open=carries_open)


class RuleBuilder:
    """Collects the factors of a rule; dimensions of size one get none."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self._factors: list[Factor] = []

    def factor(
        self, size: int, combine: Combine = Combine.PARALLEL, *, halo: tuple[int, int] = (0, 0), least: int = 1
    ) -> tuple[int, ...]:
        """A new factor as a dimension's entry; the empty entry for an extent of one."""
        return self._add(Factor(size, combine, halo, least))

    def moved(self, extents: Iterable[int], segments: Iterable[Segment]) -> tuple[int, ...]:
        """The factor of a dimension whose rows change places between operands and results of these extents."""
        return self._add(Factor(math.gcd(*extents), Combine.MOVE, segments=tuple(segments)))

    def _add(self, factor: Factor) -> tuple[int, ...]:
        if factor.size <= 1:
            return ()
        self._factors.append(factor)
        return (len(self._factors) - 1,)

    @property
    def every(self) -> frozenset[int]:
        """All factors made so far."""
        return frozenset(range(len(self._factors)))

    def factors_of(self, shape: Sequence[int]) -> Dims:
        """A new parallel factor for every dimension of a shape."""
        return tuple(self.factor(size) for size in shape)

    def build(self, operands: Sequence[Dims], results: Sequence[Dims], **attributes: Any) -> OpRule:
        """The rule; checks that every operand and result has an entry per dimension."""
        facts = self.equation
        for what, dims, tensors in (("operand", operands, facts.operands), ("result", results, facts.results)):
            if len(dims) != len(tensors):
                raise AssertionError(f"rule of {facts.primitive}: {len(dims)} {what}s given, it has {len(tensors)}")
            for i, (entry, tensor) in enumerate(zip(dims, tensors)):
                if len(entry) != len(tensor.shape):
                    raise AssertionError(f"rule of {facts.primitive}: {what} {i} has rank {len(tensor.shape)}")
        return OpRule(tuple(self._factors), tuple(operands), tuple(results), **attributes)


RuleFunction = Callable[[Equation], OpRule]

_RULES: dict[str, RuleFunction] = {}

USER_RULES: dict[str, RuleFunction] = {}
"""Rules that users registered (`autoshard.register_rule`), by the name of the primitive or of the code it calls."""


def rule_for(*primitives: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule of the named primitives; a name can be registered once."""

    def register(function: RuleFunction) -> RuleFunction:
        for name in primitives:
            if name in _RULES:
                raise ValueError(f"primitive {name!r} already has the rule {_RULES[name].__name__}")
            _RULES[name] = function
        return function

    return register


def ruled_primitives() -> frozenset[str]:
    """Names of all primitives that have a rule."""
    return frozenset(_RULES)


TARGETS = {"ffi_call": "target_name", "pallas_call": "name"}
"""Primitives that call foreign code, and the parameter that holds the name of that code."""


def called_name(equation: Equation) -> str:
    """Name of the foreign code that an operation calls; of its primitive if it calls none."""
    return str(equation.params.get(TARGETS.get(equation.primitive, ""), equation.primitive))


def rule_of(equation: Equation) -> OpRule:
    """The rule of an operation; the replicated fallback, marked ``ruled=False``, if its primitive has none."""
    name = equation.primitive
    function = USER_RULES.get(called_name(equation)) or USER_RULES.get(name) or _RULES.get(name)
    if function is None:
        return whole(equation)
    return function(equation)


REPLICATED = "replicated"
"""What the fallback of a primitive without any rule is called."""


def unsplit(tensor: TensorFacts) -> Dims:
    """No factor along any dimension."""
    return ((),) * len(tensor.shape)


def whole(equation: Equation, *, ruled: bool = False, reason: str = REPLICATED) -> OpRule:
    """Every dimension of every operand and result stays whole: the fallback, or the rule of what cannot be split."""
    operands, results = (tuple(map(unsplit, ts)) for ts in (equation.operands, equation.results))
    return OpRule((), operands, results, pinned=not ruled, ruled=ruled, reason=reason)
