"""Every rule is proven by execution: sampled strategies run on eight devices, values and collectives compared."""

from __future__ import annotations

import pytest

from autoshard.costs import MeshModel
from autoshard.rules import Combine, Equation, RuleBuilder, TensorFacts, rule_for, rule_of, ruled_primitives
from autoshard.rules.opaque import REPLICATED
from tests.helpers_rules import MESHES, Case, execute, sampled
from tests.rule_zoo import FAMILIES

CASES = [case for family in FAMILIES.values() for case in family()]
SAMPLE = 3


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_strategies_compute_the_same_and_communicate_as_priced(case: Case, mesh: str) -> None:
    sizes = MESHES[mesh]
    strategies = case.op.strategies(MeshModel.preset("cpu-virtual", sizes)).strategies
    outcomes = [execute(case, strategy, sizes) for strategy in sampled(strategies, SAMPLE)]
    wrong = [str(outcome) for outcome in outcomes if outcome.wrong_values or not outcome.as_priced]
    assert not wrong, "\n".join(wrong)


def test_the_cases_have_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_every_rule_has_a_case() -> None:
    from autoshard.rules.elementwise import ELEMENTWISE

    tried = {case.primitive for case in CASES}
    assert ruled_primitives() - tried - set(ELEMENTWISE) - UNTRIED.keys() == set()


UNTRIED = {
    **{name: "whole: there is nothing to compare" for name in REPLICATED},
    "cholesky_update": "it has no batch",
    "dce_sink": "it has no result",
    "device_put": "jit removes it",
    "empty": "its values are not defined",
    "empty2": "its values are not defined",
    "iota_2x32_shape": "it has no operands; made when keys are lowered",
    "from_edtype": "JAX uses it for its own key types only",
    "shard_map": "its strategy is the user's own; tests/autoshard/test_api.py runs one",
    "roll": "no primitive of its own: tests/autoshard/test_rolling.py has the calls that it stands for",
    "select_and_scatter": "no public function binds it",
    "tie": "no public function binds it",
    "to_edtype": "JAX uses it for its own key types only",
}


def test_a_primitive_is_registered_once() -> None:
    with pytest.raises(ValueError, match="primitive 'add' already has the rule elementwise"):
        rule_for("add")(rule_of)


def test_a_rule_with_a_missing_dimension_is_refused() -> None:
    facts = TensorFacts((4, 8), "float32", 4)
    builder = RuleBuilder(Equation("mine", {}, (facts,), (facts,)))
    with pytest.raises(AssertionError, match="rule of mine: operand 0 has rank 2"):
        builder.build([((),)], [((), ())])


def test_a_rule_with_a_missing_operand_is_refused() -> None:
    facts = TensorFacts((4, 8), "float32", 4)
    builder = RuleBuilder(Equation("mine", {}, (facts, facts), (facts,)))
    with pytest.raises(AssertionError, match="rule of mine: 1 operands given, it has 2"):
        builder.build([((), ())], [((), ())])


def test_dimensions_of_size_one_have_no_factor() -> None:
    builder = RuleBuilder(Equation("mine", {}, (), ()))
    assert builder.factors_of((1, 4, 1, 2)) == ((), (0,), (), (1,))
    assert builder.factor(8, Combine.SUM) == (2,)


def test_an_unknown_primitive_is_whole_and_says_so() -> None:
    facts = TensorFacts((4, 8), "float32", 4)
    rule = rule_of(Equation("nobody_knows_this", {}, (facts,), (facts,)))
    assert not rule.ruled
    assert rule.reason == "replicated"
    assert rule.factors == ()
