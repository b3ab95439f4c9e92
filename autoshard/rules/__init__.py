"""Sharding rules: one per primitive, as factors. `autoshard.rules.base` says how to add one."""

from autoshard.rules import contraction as contraction
from autoshard.rules import custom as custom
from autoshard.rules import elementwise as elementwise
from autoshard.rules import indexing as indexing
from autoshard.rules import linalg as linalg
from autoshard.rules import opaque as opaque
from autoshard.rules import random as random
from autoshard.rules import reduction as reduction
from autoshard.rules import shape as shape
from autoshard.rules import windows as windows
from autoshard.rules.base import Combine as Combine
from autoshard.rules.base import Equation as Equation
from autoshard.rules.base import Factor as Factor
from autoshard.rules.base import OpRule as OpRule
from autoshard.rules.base import RuleBuilder as RuleBuilder
from autoshard.rules.base import TensorFacts as TensorFacts
from autoshard.rules.base import rule_for as rule_for
from autoshard.rules.base import rule_of as rule_of
from autoshard.rules.base import ruled_primitives as ruled_primitives
from autoshard.rules.base import whole as whole
from autoshard.rules.custom import register_rule as register_rule

__all__ = [
    "Combine",
    "Equation",
    "Factor",
    "OpRule",
    "RuleBuilder",
    "TensorFacts",
    "register_rule",
    "rule_for",
    "rule_of",
    "ruled_primitives",
    "whole",
]
