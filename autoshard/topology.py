"""The TPU compiler without a TPU: meshes of devices that are not there, for ahead-of-time compilation.

libtpu, a wheel of its own (`pip install 'autoshard[tpu]'`), holds the compiler and the shapes of all slices.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping

from jax.experimental import topologies
from jax.sharding import Mesh

from autoshard.compiler_log import captured_stderr
from autoshard.errors import MeshError

_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # no cloud metadata server is asked what slice this machine belongs to
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes may compile at a time; libtpu guards devices with a lock file
    "TPU_LOG_DIR": "disabled",  # the log goes to standard error, where verification looks for it
    "TPU_STDERR_LOG_LEVEL": "1",  # warnings and above
}


def tpu_mesh(topology: str, axes: Mapping[str, int]) -> Mesh:
    """A mesh over the devices of a TPU slice, to lower and compile for; nothing can run on it.

    `jax.jit(fn, in_shardings=...).lower(shapes).compile()` then compiles for that slice, with shardings on this mesh
    and `jax.ShapeDtypeStruct`s for arguments. libtpu reads its environment once, when it is first used in a process;
    variables that are set already are kept.

    Args:
        topology: Kind and shape of the slice, such as `v5e:2x4`, `v5e:16x16`, `v5p:4x4x4` or `v6e:4x4`.
        axes: Axis names and sizes, whose product is the number of devices of the slice.

    Raises:
        ImportError: libtpu is not installed.
        MeshError: The topology is unknown, or the axes do not multiply to its number of devices.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            f"compiling for {topology} without a TPU needs the TPU compiler: pip install 'autoshard[tpu]' (Linux only)"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    slice_ = _description(topology)
    present, wanted = len(slice_.devices), math.prod(axes.values())
    if present != wanted:
        sizes = " x ".join(f"{name}={size}" for name, size in axes.items())
        raise MeshError(
            f"topology {topology!r} has {present} devices, the axes {sizes} need {wanted}; "
            "give axes whose sizes multiply to the number of devices"
        )
    return topologies.make_mesh(slice_, tuple(axes.values()), tuple(axes))


def _description(topology: str) -> topologies.TopologyDescription:
    try:
        with captured_stderr(replay=False):  # libtpu complains that this machine is no TPU worker
            return topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except RuntimeError as error:
        hint = "write it like 'v5e:2x4' or 'v5p:4x4x4'"
        raise MeshError(f"unknown TPU topology {topology!r}, {hint}: {error}") from error
