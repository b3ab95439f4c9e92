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
4. Name in ``local_factors`` the factors whose split XLA would not carry out locally: they run as per-shard regions.
5. Run ``pytest tests/autoshard/test_rules.py``: it executes every strategy of every rule on eight devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Dims = tuple[tuple[int, ...], ...]
"""Per dimension of one tensor, the factors it is made of, major first."""


class Combine(StrEnum):
    """How the shards' contributions to a result are combined when a factor is split."""

    PARALLEL = "parallel"  # every shard has its own part of the result
    SUM = "sum"  # partial sums: an all-reduce, or a reduce-scatter
    EXTREME = "extreme"  # partial maxima, minima, products or logical folds: an all-reduce
    ARG = "arg"  # (value, index) pairs: small gathers, then a local choice


@dataclass(frozen=True, slots=True)
class Factor:
    """One index of a computation: its extent and what splitting it does to the result."""

    size: int
    combine: Combine = Combine.PARALLEL


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
        ruled: False if this is the fallback "everything whole" of a primitive that has no rule.
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    flops: float = 0.0
    fusible: bool = False
    pinned: bool = False
    local_factors: frozenset[int] = frozenset()
    aliases: bool = False
    ruled: bool = True


class RuleBuilder:
    """Collects the factors of a rule; dimensions of size one get none."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self._factors: list[Factor] = []

    def factor(self, size: int, combine: Combine = Combine.PARALLEL) -> tuple[int, ...]:
        """A new factor as a dimension's entry; the empty entry for an extent of one."""
        if size <= 1:
            return ()
        self._factors.append(Factor(size, combine))
        return (len(self._factors) - 1,)

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


def rule_of(equation: Equation) -> OpRule:
    """The rule of an operation; the replicated fallback, marked ``ruled=False``, if its primitive has none."""
    function = _RULES.get(equation.primitive)
    if function is None:
        return whole(equation)
    return function(equation)


def whole(equation: Equation, *, ruled: bool = False) -> OpRule:
    """The fallback rule: every dimension of every operand and result stays whole."""

    def empty(tensor: TensorFacts) -> Dims:
        return ((),) * len(tensor.shape)

    return OpRule(
        (), tuple(map(empty, equation.operands)), tuple(map(empty, equation.results)), pinned=not ruled, ruled=ruled
    )
