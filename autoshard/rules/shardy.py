"""Shardy's sharding rules, read from jaxlib: what a primitive without a rule of ours falls back on.

Shardy has a rule for most operations of StableHLO, in the same terms as ours: factors per dimension. A primitive is
lowered alone, and the rules of the operations it becomes are joined: dimensions that share a factor in any of them are
one class. A class that only passes through, from arguments to results, is a factor of the primitive. A reduction is one
if the primitive becomes a single operation; whatever else touches a class leaves it whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy

from autoshard.rules.base import Combine, Equation, Factor, OpRule

_PIPELINE = "builtin.module(inline,func.func(sdy-populate-op-sharding-rules))"
_ATTRIBUTE = "sdy.sharding_rule"

Place = tuple[int, ...]
"""A dimension of a value: (value, dimension), or (value, dimension, product of the factors before, size) of a part."""


@dataclass(frozen=True, slots=True)
class ShardyClass:
    """Dimensions that Shardy splits together.

    Attributes:
        arguments: Dimensions of arguments, as places.
        results: Dimensions of results, as places.
        size: Extent.
        reduced: Some operation reduces it.
        moved: Some operation needs neighbours' elements of it.
        whole: Some operation needs it whole, or has no rule.
    """

    arguments: frozenset[Place]
    results: frozenset[Place]
    size: int
    reduced: bool
    moved: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class ShardyRule:
    """The joined rules of what a primitive becomes, and how many operations that are."""

    classes: tuple[ShardyClass, ...]
    operations: int


def fallback_rule(eqn: core.JaxprEqn, equation: Equation) -> OpRule | None:
    """The rule of a primitive from Shardy's; None if no dimension can be split by it."""
    try:
        shardy = shardy_rule(eqn)
    except Exception:  # whatever stops a primitive from being lowered alone, on this backend
        return None
    return _as_rule(shardy, equation)


def _as_rule(shardy: ShardyRule, equation: Equation) -> OpRule | None:
    factors: list[Factor] = []
    tensors = [*equation.operands, *equation.results]
    entries: list[list[tuple[int, ...]]] = [[()] * len(t.shape) for t in tensors]
    for found in shardy.classes:
        places = [(k, d) for k, d, *_ in found.arguments]
        places += [(len(equation.operands) + k, d) for k, d, *_ in found.results]
        passes = bool(found.results) and not found.reduced
        folds = shardy.operations == 1 and found.reduced and not found.results
        even = all(tensors[k].shape[d : d + 1] == (found.size,) for k, d in places)  # a key has words besides
        in_parts = any(len(place) > 2 for place in (*found.arguments, *found.results))
        if found.size <= 1 or found.whole or found.moved or in_parts or not even or not (passes or folds):
            continue
        for k, d in places:
            entries[k][d] = (len(factors),)
        factors.append(Factor(found.size, Combine.PARALLEL if passes else Combine.EXTREME))
    if not factors:
        return None
    dims = tuple(map(tuple, entries))
    return OpRule(
        tuple(factors),
        dims[: len(equation.operands)],
        dims[len(equation.operands) :],
        flops=float(sum(t.elements for t in equation.results)),
        pinned=True,
        merges=False,
        ruled=False,
        reason="split by Shardy's rule",
    )


def shardy_rule(eqn: core.JaxprEqn) -> ShardyRule:
    """Lower an equation alone and join the rules of what it becomes."""
    avals: list[Any] = [v.aval for v in eqn.invars]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    params = eqn.primitive.get_bind_params(dict(eqn.params))
    lowered = jax.jit(lambda *arrays: eqn.primitive.bind(*arrays, **params), keep_unused=True).lower(*shapes)
    return joined_rules(lowered.compiler_ir("stablehlo"))


def joined_rules(module: Any) -> ShardyRule:
    """Annotate a StableHLO module with Shardy's rules and join those of its main function."""
    with module.context:
        passmanager.PassManager.parse(_PIPELINE).run(module.operation)
        main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
        block = main.regions[0].blocks[0]
        joined = _Joined()
        for argument in block.arguments:
            joined.name(argument)
        results: list[int] = []
        count = 0
        for op in block.operations:
            operation = op.operation
            if operation.name in ("func.return", "return"):
                results = [joined.name(value) for value in operation.operands]
            elif operation.operands or _ATTRIBUTE in operation.attributes:
                count += 1
                joined.add(operation)
        return ShardyRule(tuple(joined.classes(len(block.arguments), results)), count)


class _Joined:
    """Classes of dimensions while the operations of a function are walked."""

    def __init__(self) -> None:
        self.names: dict[Any, int] = {}
        self.ranks: dict[int, int] = {}
        self.parent: dict[Place, Place] = {}
        self.sizes: dict[Place, int] = {}
        self.marks: dict[str, set[Place]] = defaultdict(set)

    def name(self, value: Any) -> int:
        """The number of a value; a new one gets a class for every dimension."""
        if value not in self.names:
            number = self.names[value] = len(self.names)
            shape = value.type.shape if isinstance(value.type, ir.RankedTensorType) else []
            self.ranks[number] = len(shape)
            for d, extent in enumerate(shape):
                self.parent[number, d] = (number, d)
                self.sizes[number, d] = extent
        return self.names[value]

    def root(self, place: Place) -> Place:
        """The representative of a place's class."""
        self.parent.setdefault(place, place)
        while self.parent[place] != place:
            place = self.parent[place]
        return place

    def add(self, operation: Any) -> None:
        """Join the dimensions that share a factor of an operation; without a rule all of them must be whole."""
        values = [self.name(v) for v in (*operation.operands, *operation.results)]
        if _ATTRIBUTE not in operation.attributes:
            self.marks["whole"].update((v, d) for v in values for d in range(self.ranks[v]))
            return
        rule = sdy.OpShardingRuleAttr(operation.attributes[_ATTRIBUTE])
        sizes = list(rule.factor_sizes)
        members: dict[int, list[Place]] = defaultdict(list)
        for value, mapping in zip(values, [*rule.operand_mappings, *rule.result_mappings]):
            for place, factor in _places(value, mapping, sizes):
                members[factor].append(place)
                self.sizes.setdefault(place, sizes[factor])
        for places in members.values():
            for place in places:
                self.parent[self.root(place)] = self.root(places[0])
        for mark, marked in (
            ("reduced", rule.reduction_factors),
            ("moved", rule.permutation_factors),
            ("whole", rule.need_replication_factors),
        ):
            self.marks[mark].update(place for factor in marked for place in members[factor])

    def classes(self, arguments: int, results: Sequence[int]) -> Iterator[ShardyClass]:
        """The classes that reach an argument or a result."""
        members: dict[Place, list[Place]] = defaultdict(list)
        for place in self.parent:
            members[self.root(place)].append(place)
        marked = {mark: {self.root(place) for place in places} for mark, places in self.marks.items()}
        for root, places in members.items():
            into = frozenset(place for place in places if place[0] < arguments)
            out = frozenset((k, *place[1:]) for place in places for k, v in enumerate(results) if v == place[0])
            if into or out:
                size = max(self.sizes[place] for place in places)
                flags = (root in marked.get(mark, ()) for mark in ("reduced", "moved", "whole"))
                yield ShardyClass(into, out, size, *flags)


def _places(value: int, mapping: Any, sizes: Sequence[int]) -> Iterator[tuple[Place, int]]:
    """Where the factors of one tensor are; a dimension of one factor is that factor."""
    for d, dimension in enumerate(sdy.TensorMappingAttr(mapping).dim_mappings):
        factors = list(sdy.DimMappingAttr(dimension).factor_indices)
        before = 1
        for factor in factors:
            yield ((value, d) if len(factors) == 1 else (value, d, before, sizes[factor])), factor
            before *= sizes[factor]
