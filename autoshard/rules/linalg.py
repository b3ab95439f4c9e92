"""Transforms and factorisations: their leading dimensions are a batch, computed shard by shard."""

from __future__ import annotations

import math

from autoshard.rules.base import Dims, Equation, OpRule, RuleBuilder, rule_for

CORE_RANKS = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "geqp3": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "lu_pivots_to_permutation": 1,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "tridiagonal": 2,
    "cholesky_update": 2,
}
"""Trailing dimensions of the first operand that one problem needs whole; what comes before them is the batch."""


@rule_for(*CORE_RANKS)
def factorisation(equation: Equation) -> OpRule:
    """Batch dimensions are parallel and come first in every operand and result; about n^3 operations a matrix."""
    shape = equation.operands[0].shape
    core = CORE_RANKS[equation.primitive]
    b = RuleBuilder(equation)
    batch = b.factors_of(shape[: len(shape) - core])
    flops = float(equation.operands[0].elements * shape[-1])
    return _batched(b, batch, equation, flops=flops)


def _batched(b: RuleBuilder, batch: Dims, equation: Equation, *, flops: float) -> OpRule:
    """Every operand and result has the batch first; as a region, since XLA gathers what it has no kernel for."""
    operands = [batch + ((),) * (len(t.shape) - len(batch)) for t in equation.operands]
    results = [batch + ((),) * (len(t.shape) - len(batch)) for t in equation.results]
    return b.build(operands, results, flops=flops, pinned=True, local_factors=b.every)


@rule_for("fft")
def fft(equation: Equation) -> OpRule:
    """Whole along the transformed dimensions."""
    lengths = equation.params["fft_lengths"]
    (operand,) = equation.operands
    b = RuleBuilder(equation)
    batch = b.factors_of(operand.shape[: len(operand.shape) - len(lengths)])
    size = math.prod(lengths)
    transforms = math.prod(operand.shape[: len(batch)])
    return _batched(b, batch, equation, flops=5.0 * transforms * size * max(1.0, math.log2(max(1, size))))


@rule_for("triangular_solve")
def triangular_solve(equation: Equation) -> OpRule:
    """Batch dimensions and right-hand sides are parallel."""
    matrix, sides = equation.operands
    b = RuleBuilder(equation)
    batch = b.factors_of(matrix.shape[:-2])
    free = b.factor(sides.shape[-1 if equation.params["left_side"] else -2])
    dims = (*batch, (), free) if equation.params["left_side"] else (*batch, free, ())
    flops = float(matrix.shape[-1] * sides.elements)
    return b.build([(*batch, (), ()), dims], [dims], flops=flops, pinned=True, local_factors=b.every)


@rule_for("tridiagonal_solve")
def tridiagonal_solve(equation: Equation) -> OpRule:
    """Batch dimensions and right-hand sides are parallel."""
    *diagonals, sides = equation.operands
    b = RuleBuilder(equation)
    batch = b.factors_of(sides.shape[:-2])
    dims = (*batch, (), b.factor(sides.shape[-1]))
    flops = 8.0 * sides.elements
    operands = [*((*batch, ()) for _ in diagonals), dims]
    return b.build(operands, [dims], flops=flops, pinned=True, local_factors=b.every)


@rule_for("symmetric_product")
def symmetric_product(equation: Equation) -> OpRule:
    """``alpha a a^T + beta c``: batch dimensions are parallel, the rest stays whole."""
    a, c = equation.operands
    b = RuleBuilder(equation)
    batch = b.factors_of(a.shape[:-2])
    return _batched(b, batch, equation, flops=2.0 * a.elements * c.shape[-1])
