"""Rules that users register for their own primitives, kernels and custom calls, in one line of einsum-like notation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from autoshard.errors import InputError, raise_all
from autoshard.rules.base import (
    USER_RULES,
    Combine,
    Dims,
    Equation,
    OpRule,
    RuleBuilder,
    TensorFacts,
    called_name,
    ruled_primitives,
)

WHOLE = "_"
"""A dimension that is never split and has no name."""

REST = "..."
"""Leading dimensions, however many."""

Index = tuple[str, ...]
"""The names of one dimension, major first; empty for a dimension that is never split."""

Tensors = tuple[tuple[Index, ...], ...]

Local = Callable[..., Any]
"""From shards of the operands to the shard of the result, or to a sequence of several."""


@dataclass(frozen=True, slots=True)
class CustomRule:
    """A user's rule.

    Attributes:
        operands: Per operand, the names of each dimension.
        results: Per result, the names of each dimension.
        sums: Names over which partial results add up.
        whole: Names that are never split.
        flops: Operations of a call, from the shapes of its operands; None to count one for each element of the results.
        local: What computes the results' shards from the operands' shards; None to bind the primitive to them.
    """

    operands: Tensors
    results: Tensors
    sums: frozenset[str]
    whole: frozenset[str]
    flops: Callable[..., float] | None
    local: Local | None


_CUSTOM: dict[str, CustomRule] = {}


def register_rule(
    name: str,
    notation: str,
    *,
    sums: str = "",
    whole: str = "",
    flops: Callable[..., float] | None = None,
    local: Local | None = None,
) -> None:
    """Say how a primitive, a Pallas kernel or a custom call of yours may be split.

    The notation names the dimensions of all operands and results. Dimensions of one name are split together, and every
    device computes its part of the call alone::

        register_rule("flash_attention", "b t h d, b s h d, b s h d -> b t h d", whole="t s d")
        register_rule("my_matmul", "m k, k n -> m n", sums="k", flops=lambda a, b: 2 * a[0] * a[1] * b[1])
        register_rule("pack", "... (n p) -> ... n _", whole="p")

    ``(n p)`` is a dimension made of several, major first; ``_`` is a dimension that is never split; ``...`` stands for
    any number of leading dimensions, the same ones in every operand and result that has it. Scalars are written ``()``.

    Args:
        name: Name of the primitive, of the Pallas kernel (``pallas_call(..., name=...)``) or of the custom call's
            target (``jax.ffi.ffi_call(target_name, ...)``).
        notation: Dimensions of the operands, ``->``, dimensions of the results.
        sums: Names of operands' dimensions over which partial results add up to the result.
        whole: Names of dimensions that every device needs whole.
        flops: Floating-point operations of a whole call, from the shapes of its operands.
        local: What one device runs, from shards of the operands to shards of the results. Needed where the call's
            parameters hold extents, as a Pallas kernel's grid does; the call itself is repeated on shards otherwise.

    Raises:
        InputError: The notation is not one, a name appears on one side only and is neither in ``sums`` nor in
            ``whole``, or the primitive has a rule already.

    Example:
        >>> from autoshard import register_rule
        >>> register_rule("my_matmul", "m k, k n -> m n", sums="k", flops=lambda a, b: 2.0 * a[0] * a[1] * b[1])
    """
    operands, results = _parse(notation)
    faults = _faults(operands, results, set(sums.split()), set(whole.split()))
    if name in _CUSTOM or name in ruled_primitives():
        faults.append("it has a rule already")
    raise_all(InputError, f"rule of {name!r}, {notation!r}:", faults)
    rule = _CUSTOM[name] = CustomRule(
        operands, results, frozenset(sums.split()), _never_split(operands + results, whole.split()), flops, local
    )
    USER_RULES[name] = partial(_read, rule)


def _read(rule: CustomRule, equation: Equation) -> OpRule:
    return _Reader(rule, equation).read()


def _parse(notation: str) -> tuple[Tensors, Tensors]:
    sides = notation.split("->")
    if len(sides) != 2:
        raise InputError(f"{notation!r} is no rule: write it as 'm k, k n -> m n'")
    before, after = (tuple(_tensor(text) for text in side.split(",")) if side.strip() else () for side in sides)
    return before, after


def _tensor(text: str) -> tuple[Index, ...]:
    """The dimensions of one operand or result."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    if words == ["(", ")"]:
        return ()
    dims: list[Index] = []
    group: list[str] | None = None
    for word in words:
        if (word == "(") == (group is not None) and word in "()":
            raise InputError(f"{text.strip()!r}: parentheses do not match, or are nested")
        if word == "(":
            group = []
        elif word == ")":
            dims.append(tuple(group or ()))
            group = None
        elif group is not None:
            group.append(_name(word, text))
        else:
            dims.append(() if word == WHOLE else (word if word == REST else _name(word, text),))
    if group is not None:
        raise InputError(f"{text.strip()!r}: parentheses do not match, or are nested")
    if (REST,) in dims[1:]:
        raise InputError(f"{text.strip()!r}: '...' stands for leading dimensions only")
    return tuple(dims)


def _name(word: str, text: str) -> str:
    if not word.isidentifier() or word == WHOLE:
        raise InputError(f"{text.strip()!r}: {word!r} is no name of a dimension")
    return word


def _names(tensors: Sequence[Sequence[Index]]) -> set[str]:
    return {name for dims in tensors for index in dims for name in index} - {REST}


def _faults(operands: Tensors, results: Tensors, sums: set[str], whole: set[str]) -> list[str]:
    before, after, declared = _names(operands), _names(results), sums | whole
    faults = [f"{name!r} in sums= or whole= names no dimension" for name in sorted(declared - before - after)]
    faults += [f"{name!r} is in sums= and in a result" for name in sorted(sums & after)]
    faults += [
        f"{name!r} is in the operands only: say sums={name!r} if partial results add up, whole={name!r} otherwise"
        for name in sorted(before - after - declared)
    ]
    faults += [f"{name!r} is in the results only: say whole={name!r}" for name in sorted(after - before - whole)]
    for tensor in operands + results:
        names = [name for index in tensor for name in index]
        faults += [f"{name!r} is twice in one array" for name in sorted({n for n in names if names.count(n) > 1})]
    return faults


def _never_split(tensors: Tensors, whole: Sequence[str]) -> frozenset[str]:
    """The names that are whole, and those minor to a whole one in a dimension: their parts would not be contiguous."""
    found = set(whole)
    while True:
        minor = {name for dims in tensors for index in dims for k, name in enumerate(index) if found & set(index[:k])}
        if minor <= found:
            return frozenset(found)
        found |= minor


class _Reader:
    """Turns the notation of a rule into factors, for one operation's shapes."""

    def __init__(self, rule: CustomRule, equation: Equation) -> None:
        self.rule, self.equation, self.b = rule, equation, RuleBuilder(equation)
        self.sizes: dict[str, int] = {}
        self.factors: dict[str, tuple[int, ...]] = {}
        expanded = self._expanded(rule.operands, equation.operands) + self._expanded(rule.results, equation.results)
        for single in (True, False):  # single names first: they tell the sizes of those in groups
            for dims, facts in expanded:
                for index, extent in zip(dims, facts.shape):
                    if (len(index) == 1) is single:
                        self._measure(index, extent)
        self.dims: list[Dims] = [tuple(self._entry(index) for index in dims) for dims, _ in expanded]

    def _expanded(self, tensors: Tensors, facts: Sequence[TensorFacts]) -> list[tuple[tuple[Index, ...], TensorFacts]]:
        """The dimensions of every array, ``...`` replaced by names that are counted from the last one."""
        if len(tensors) != len(facts):
            raise self._misfit(f"it names {len(tensors)} arrays where there are {len(facts)}")
        found = []
        for dims, tensor in zip(tensors, facts):
            if (REST,) in dims:
                extra = len(tensor.shape) - len(dims) + 1
                dims = (*((f"{REST}{extra - k}",) for k in range(extra)), *dims[1:])
            if len(dims) != len(tensor.shape):
                raise self._misfit(f"it names {len(dims)} dimensions of {list(tensor.shape)}")
            found.append((dims, tensor))
        return found

    def _misfit(self, what: str) -> InputError:
        shapes = ", ".join(str(list(t.shape)) for t in self.equation.operands)
        return InputError(f"the rule registered for {called_name(self.equation)} does not fit {shapes}: {what}")

    def _measure(self, index: Index, extent: int) -> None:
        """Learn or check the sizes of the names of one dimension."""
        unknown = [name for name in index if name not in self.sizes]
        known = math.prod(self.sizes[name] for name in index if name in self.sizes)
        if len(unknown) > 1:
            raise self._misfit(f"the sizes of {' and '.join(unknown)} are nowhere to be seen")
        if index and (extent % known or (not unknown and known != extent)):
            raise self._misfit(f"{' '.join(index)!r} is {known} in one place and {extent} in another")
        self.sizes |= {name: extent // known for name in unknown}

    def _entry(self, index: Index) -> tuple[int, ...]:
        return tuple(f for name in index for f in self._factor(name))

    def _factor(self, name: str) -> tuple[int, ...]:
        if name in self.rule.whole:
            return ()
        if name not in self.factors:
            combine = Combine.SUM if name in self.rule.sums else Combine.PARALLEL
            self.factors[name] = self.b.factor(self.sizes[name], combine)
        return self.factors[name]

    def read(self) -> OpRule:
        """The operation's rule; a split call is always a per-shard region, since XLA cannot look into it."""
        equation, count = self.equation, len(self.equation.operands)
        if self.rule.flops is None:
            flops = float(sum(t.elements for t in equation.results))
        else:
            flops = float(self.rule.flops(*(t.shape for t in equation.operands)))
        return self.b.build(self.dims[:count], self.dims[count:], flops=flops, pinned=True, local_factors=self.b.every)


def local_function(equation: Equation) -> Local | None:
    """What a user gave to run on the shards of an operation."""
    rule = _CUSTOM.get(called_name(equation)) or _CUSTOM.get(equation.primitive)
    return rule.local if rule else None
