"""Operations that cannot be split, each with the reason: calls to the host, one stream of random bits."""

from __future__ import annotations

from autoshard.rules.base import Equation, OpRule, rule_for, whole

REPLICATED = {
    "debug_callback": "the callback expects whole arrays",
    "debug_print": "the callback expects whole arrays",
    "io_callback": "the callback expects whole arrays",
    "pure_callback": "the callback expects whole arrays",
    "rng_bit_generator": "one stream of random bits: a part of it cannot be made alone",
    "rng_uniform": "the backend's own generator has a state that devices do not share",
    "after_all": "a token",
    "create_token": "a token",
    "platform_index": "a number that is known once the program is compiled",
}
"""Primitives that need whole operands, and why."""


@rule_for(*REPLICATED)
def replicated(equation: Equation) -> OpRule:
    """Everything whole."""
    return whole(equation, ruled=True, reason=REPLICATED[equation.primitive])
