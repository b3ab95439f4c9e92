"""Which hardware a JAX mesh is made of."""

from __future__ import annotations

from collections.abc import Mapping

from jax.sharding import AbstractMesh, Mesh

from autoshard.costs import PRESET_NAMES, MeshModel
from autoshard.errors import MeshError, OptionError, did_you_mean

DEVICE_KINDS: Mapping[str, str] = {
    "cpu": "cpu-virtual",
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5e": "tpu-v5e",
    "TPU v5": "tpu-v5p",
    "TPU v5p": "tpu-v5p",
    "TPU v6 lite": "tpu-v6e",
    "TPU v6e": "tpu-v6e",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA A100-SXM4-80GB": "a100-80-sxm",
    "NVIDIA A100-SXM4-40GB": "a100-40-sxm",
}
"""`jax.Device.device_kind` to the name of a preset."""


def mesh_model(mesh: Mesh | AbstractMesh, hardware: str | MeshModel | None) -> MeshModel:
    """The cost model of a JAX mesh.

    Args:
        mesh: The mesh.
        hardware: A preset's name, a model with the mesh's axes, or None to follow the devices' kind.

    Returns:
        The model.

    Raises:
        MeshError: The model has other axes than the mesh.
        OptionError: The preset is unknown, or the devices' kind has none.
    """
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes))
    if isinstance(hardware, MeshModel):
        if dict(hardware.sizes) != sizes:
            raise MeshError(f"hardware= is a model of a mesh {dict(hardware.sizes)}, the mesh given is {sizes}")
        return hardware
    name = hardware if hardware is not None else _preset_of(mesh)
    if name not in PRESET_NAMES:
        raise OptionError(
            f"hardware={name!r} is not a preset{did_you_mean(name, PRESET_NAMES)}; known are "
            f"{', '.join(PRESET_NAMES)}, or pass a MeshModel"
        )
    return MeshModel.preset(name, sizes)


def _preset_of(mesh: Mesh | AbstractMesh) -> str:
    kind = _device_kind(mesh)
    if kind is None:
        raise OptionError("an AbstractMesh has no devices to tell the hardware: pass hardware=, such as 'tpu-v5e'")
    if kind not in DEVICE_KINDS:
        raise OptionError(
            f"no preset for devices of kind {kind!r}: pass hardware= (a preset's name, a MeshModel, or what "
            "autoshard.calibrate(mesh) measured)"
        )
    return DEVICE_KINDS[kind]


def _device_kind(mesh: Mesh | AbstractMesh) -> str | None:
    """What the devices are; an abstract mesh may know it of the mesh that it was made from."""
    if isinstance(mesh, AbstractMesh):
        return None if mesh.abstract_device is None else mesh.abstract_device.device_kind
    device = mesh.devices.flat[0]
    return "cpu" if device.platform == "cpu" else device.device_kind
