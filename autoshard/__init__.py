"""Shard a plain JAX function over a device mesh, as well as a cost model and an integer program can.

``autoshard(fn, mesh)`` returns the same function, sharded. `autoshard.costs` prices meshes, collectives and
reshardings; `autoshard.solver` chooses one strategy per node. Neither needs JAX, so nothing here is imported before it
is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.adapters import filter_autoshard as filter_autoshard
    from autoshard.adapters import nnx_autoshard as nnx_autoshard
    from autoshard.api import autoshard as autoshard
    from autoshard.auditing import audit as audit
    from autoshard.calibration import calibrate as calibrate
    from autoshard.constraints import Constraints as Constraints
    from autoshard.exploring import explore as explore
    from autoshard.inferring import chain_sharding as chain_sharding
    from autoshard.inferring import dim_sharding as dim_sharding
    from autoshard.inferring import fsdp_sharding as fsdp_sharding
    from autoshard.inferring import infer_sharding as infer_sharding
    from autoshard.inferring import prefer_sharding as prefer_sharding
    from autoshard.inferring import stacked_sharding as stacked_sharding
    from autoshard.inferring import state_sharding as state_sharding
    from autoshard.inferring import where_named as where_named
    from autoshard.plan import Plan as Plan
    from autoshard.rules.custom import register_rule as register_rule

_HOMES = {
    "Constraints": "autoshard.constraints",
    "Plan": "autoshard.plan",
    "audit": "autoshard.auditing",
    "autoshard": "autoshard.api",
    "calibrate": "autoshard.calibration",
    "chain_sharding": "autoshard.inferring",
    "dim_sharding": "autoshard.inferring",
    "explore": "autoshard.exploring",
    "filter_autoshard": "autoshard.adapters",
    "fsdp_sharding": "autoshard.inferring",
    "infer_sharding": "autoshard.inferring",
    "nnx_autoshard": "autoshard.adapters",
    "prefer_sharding": "autoshard.inferring",
    "register_rule": "autoshard.rules.custom",
    "stacked_sharding": "autoshard.inferring",
    "state_sharding": "autoshard.inferring",
    "where_named": "autoshard.inferring",
}

__all__ = [
    "Constraints",
    "Plan",
    "audit",
    "autoshard",
    "calibrate",
    "chain_sharding",
    "dim_sharding",
    "explore",
    "filter_autoshard",
    "fsdp_sharding",
    "infer_sharding",
    "nnx_autoshard",
    "prefer_sharding",
    "register_rule",
    "stacked_sharding",
    "state_sharding",
    "where_named",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
