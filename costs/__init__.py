"""Meshes, hardware, collectives, shardings and what they cost, in seconds and bytes."""

from .collectives import all_gather as all_gather
from .collectives import all_reduce as all_reduce
from .collectives import all_to_all as all_to_all
from .collectives import collective_permute as collective_permute
from .collectives import reduce_scatter as reduce_scatter
from .compute import compute_cost as compute_cost
from .compute import memory_cost as memory_cost
from .cost import ZERO_COST as ZERO_COST
from .cost import Cost as Cost
from .fitting import Measurement as Measurement
from .fitting import fit_collective as fit_collective
from .fitting import relative_errors as relative_errors
from .hardware import PRESET_NAMES as PRESET_NAMES
from .links import CollectiveFit as CollectiveFit
from .links import Link as Link
from .mesh import DeviceModel as DeviceModel
from .mesh import MeshAxis as MeshAxis
from .mesh import MeshModel as MeshModel
from .planner import ReshardingPlan as ReshardingPlan
from .planner import ReshardStep as ReshardStep
from .refine import joined_spec as joined_spec
from .refine import refined_axes as refined_axes
from .refine import refined_spec as refined_spec
from .reshard import ReshardTable as ReshardTable
from .reshard import communication_resharding_cost_vector as communication_resharding_cost_vector
from .reshard import memory_resharding_cost_vector as memory_resharding_cost_vector
from .reshard import plan_resharding as plan_resharding
from .reshard import reshard_table as reshard_table
from .spec import ShardingSpec as ShardingSpec

if __name__ != "autoshard.costs":
    raise ImportError(
        f"this folder was imported as {__name__!r}, but it is the package 'autoshard.costs': "
        "write 'import autoshard.costs' (a second import under another name would make unequal classes)"
    )

__all__ = [
    "PRESET_NAMES",
    "ZERO_COST",
    "CollectiveFit",
    "Cost",
    "DeviceModel",
    "Link",
    "Measurement",
    "MeshAxis",
    "MeshModel",
    "ReshardStep",
    "ReshardTable",
    "ReshardingPlan",
    "ShardingSpec",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_permute",
    "communication_resharding_cost_vector",
    "compute_cost",
    "fit_collective",
    "joined_spec",
    "memory_cost",
    "memory_resharding_cost_vector",
    "plan_resharding",
    "reduce_scatter",
    "refined_axes",
    "refined_spec",
    "relative_errors",
    "reshard_table",
]
