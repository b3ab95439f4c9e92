"""Operations that compute every element of the result from the same element of the operands."""

from __future__ import annotations

from autoshard.rules.base import Dims, Equation, OpRule, RuleBuilder, rule_for, whole

ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp
clz complex conj convert_element_type copy cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt
igamma igamma_grad_a igammac imag integer_pow is_finite layout_constraint le le_to lgamma log log1p log2 logistic lt
lt_to max min mul mulhi name ne neg nextafter not one_minus_square or philox2x32 philox4x32 polygamma polynomial
population_count pow real reduce_precision regularized_incomplete_beta rem reshard round rsqrt select_n shard_alike
shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32
threefry4x32 with_memory_space_constraint xla_metadata_value xor zeros_like zeta
""".split()


@rule_for(*ELEMENTWISE)
def elementwise(equation: Equation) -> OpRule:
    """One parallel factor per dimension; scalars and dimensions of size one are the same for all elements."""
    b = RuleBuilder(equation)
    dims = b.factors_of(equation.results[0].shape)
    if any(len(t.shape) not in (0, len(dims)) for t in (*equation.operands, *equation.results)):
        return _different_ranks(equation)
    operands = [_project(dims, t.shape) for t in equation.operands]
    results = [_project(dims, t.shape) for t in equation.results]
    return b.build(operands, results, flops=float(equation.results[0].elements), fusible=True)


def _project(dims: Dims, shape: tuple[int, ...]) -> Dims:
    """The factors of an operand of this shape: none along dimensions of size one."""
    return tuple(() if size == 1 else factor for factor, size in zip(dims, shape))


def _different_ranks(equation: Equation) -> OpRule:
    """Bitcasts between element types of different sizes add or drop a last dimension, which stays whole."""
    b = RuleBuilder(equation)
    (operand,), (result,) = equation.operands, equation.results
    rank = min(len(operand.shape), len(result.shape))
    dims = b.factors_of(result.shape[:rank])
    return b.build([dims + ((),) * (len(operand.shape) - rank)], [dims + ((),) * (len(result.shape) - rank)])


@rule_for("optimization_barrier")
def optimization_barrier(equation: Equation) -> OpRule:
    """Every operand is its own result."""
    b = RuleBuilder(equation)
    dims = [b.factors_of(t.shape) for t in equation.operands]
    return b.build(dims, dims, aliases=True)


@rule_for("tie")
def tie(equation: Equation) -> OpRule:
    """The second operand, once the first is there."""
    first, second = equation.operands
    b = RuleBuilder(equation)
    dims = b.factors_of(second.shape)
    return b.build([b.factors_of(first.shape), dims], [dims], aliases=True)


@rule_for("dce_sink")
def dce_sink(equation: Equation) -> OpRule:
    """A use without a result."""
    b = RuleBuilder(equation)
    return b.build([b.factors_of(t.shape) for t in equation.operands], [])


@rule_for("device_put")
def device_put(equation: Equation) -> OpRule:
    """Without a place to put them the operands pass through; with one, that place is the user's decision."""
    if any(place is not None for place in equation.params["devices"]):
        return whole(equation, ruled=True, reason="put on devices by the program itself")
    b = RuleBuilder(equation)
    dims = [b.factors_of(t.shape) for t in equation.operands]
    return b.build(dims, dims, aliases=True)


@rule_for("iota", "iota_2x32_shape", "empty", "empty2")
def iota(equation: Equation) -> OpRule:
    """No operand; any sharding of the result is free."""
    b = RuleBuilder(equation)
    dims = b.factors_of(equation.results[0].shape)
    operands = [_scalar(t.shape) for t in equation.operands]
    return b.build(operands, [dims] * len(equation.results), fusible=True)


def _scalar(shape: tuple[int, ...]) -> Dims:
    return ((),) * len(shape)
