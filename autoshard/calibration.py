"""Measure collectives on real devices and fit the cost model to them, saying how well the fit holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.costs import CollectiveFit, Link, Measurement, MeshAxis, MeshModel, fit_collective, relative_errors
from autoshard.costs.links import CollectiveKind
from autoshard.errors import MeshError, OptionError
from autoshard.hardware import mesh_model
from autoshard.shardings import planning_mesh

SIZES_BYTES = tuple(1 << power for power in range(14, 25, 2))
"""Message sizes measured unless others are asked for: 16 KiB to 16 MiB."""

_FABRIC = "measured"
_TRUSTED_ERROR = 0.25
_ITEMSIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedCollective:
    """One collective along one mesh axis: what was measured, the law fitted to it, and how far that is off.

    Attributes:
        axis: The mesh axis.
        fit: The law.
        measurements: What it was fitted to, ascending in bytes.
        median_error_ratio: Half of the measurements are within this relative error of the law.
        worst_error_ratio: All of them are.
        unseen_error_ratio: The median relative error on every other size, of a law fitted to the sizes in between.
    """

    axis: str
    fit: CollectiveFit
    measurements: tuple[Measurement, ...]
    median_error_ratio: float
    worst_error_ratio: float
    unseen_error_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A mesh model with measured collectives, and how far to trust it.

    Print it for the report. Arithmetic and memory are those of the preset: only collectives are measured.

    Attributes:
        model: The mesh model; pass it as `hardware=`.
        collectives: Every collective along every axis.
        virtual: Whether the devices are virtual ones that share a host's cores.
    """

    model: MeshModel
    collectives: tuple[CalibratedCollective, ...]
    virtual: bool

    @property
    def trustworthy(self) -> bool:
        """Whether the devices are real and every law predicts sizes that it has not seen within 25 %."""
        return not self.virtual and all(found.unseen_error_ratio <= _TRUSTED_ERROR for found in self.collectives)

    def save(self, path: str | Path) -> None:
        """Writes the mesh model as JSON; `MeshModel.model_validate_json(text)` reads it back."""
        Path(path).write_text(self.model.model_dump_json(indent=2) + "\n")

    def __str__(self) -> str:
        sizes = " x ".join(f"{name}={size}" for name, size in self.model.sizes.items())
        lines = [f"Collectives measured on a mesh {sizes} of {self.model.device.name}", _HEADER]
        lines.extend(_row(found) for found in self.collectives)
        return "\n".join([*lines, *self._warnings()])

    def _warnings(self) -> list[str]:
        warnings = []
        loose = [f for f in self.collectives if f.unseen_error_ratio > _TRUSTED_ERROR]
        if loose:
            warnings.append(
                f"{len(loose)} of {len(self.collectives)} laws miss sizes they were not fitted to by more than "
                f"{_TRUSTED_ERROR:.0%} (median): those times are noisy, measure again on quiet devices."
            )
        if self.virtual:
            warnings.append(
                "These are virtual devices that share the cores of one host. Their times are noisy and rank nothing on "
                "an accelerator: use this model to try calibration out, not to plan."
            )
        return warnings


_HEADER = "axis      collective          latency      bandwidth   error: median   worst   unseen sizes"


def _row(found: CalibratedCollective) -> str:
    latency_us, rate = found.fit.latency_s(found.measurements[0].size) * 1e6, found.fit.bytes_per_s / 1e9
    return (
        f"{found.axis:9} {found.fit.kind:15} {latency_us:8.1f} us {rate:9.3g} GB/s {found.median_error_ratio:14.0%}"
        f"{found.worst_error_ratio:8.0%}{found.unseen_error_ratio:15.0%}"
    )


def calibrate(
    mesh: Mesh,
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 7,
    hardware: str | MeshModel | None = None,
) -> Calibration:
    """Measures every collective along every axis of a mesh and fits latency and bandwidth to the times.

    Each is run at several sizes, by all groups of the axis at the same time; the median over the repeats counts.

    Args:
        mesh: A mesh of devices that are there.
        sizes_bytes: At least 4 sizes to measure, as the cost functions count them; rounded up to what splits evenly.
        repeats: Timed runs of each, after one to warm up.
        hardware: Preset or model for arithmetic and memory; None follows the devices' kind.

    Returns:
        The fitted model with its errors; `calibration.model` goes into `autoshard(fn, mesh, hardware=...)`.

    Raises:
        MeshError: The mesh has no devices, or no axis above 1.
        OptionError: There are fewer than 4 sizes, or no repeats.

    Example:
        >>> import jax
        >>> from autoshard import autoshard, calibrate
        >>> mesh = jax.make_mesh((8,), ("x",))
        >>> measured = calibrate(mesh, sizes_bytes=(4096, 16384, 65536, 262144), repeats=1)
        >>> step = autoshard(lambda x: x * 2, mesh, hardware=measured.model)
        >>> dict(measured.model.sizes)
        {'x': 8}
    """
    twin = _measurable(mesh)
    axes = [name for name, size in twin.shape.items() if size > 1]
    rounded = {axis: _rounded(sizes_bytes, twin.shape[axis]) for axis in axes}
    if repeats < 1:
        raise OptionError(f"repeats={repeats}: a time needs at least 1 run")
    base = mesh_model(twin, hardware)
    found = [
        _calibrated(axis, [_measured(kind, axis, nbytes, twin, repeats) for nbytes in rounded[axis]])
        for axis in axes
        for kind in _COLLECTIVES
    ]
    links = {axis: _measured_link(base.size(axis), [f.fit for f in found if f.axis == axis]) for axis in axes}
    model = base.model_copy(
        update={
            "axes": tuple(
                MeshAxis(name=axis.name, links=(links[axis.name],)) if axis.name in links else axis
                for axis in base.axes
            )
        }
    )
    return Calibration(model=model, collectives=tuple(found), virtual=base.platform == "cpu")


def _measurable(mesh: Mesh) -> Mesh:
    """The mesh with Auto axes."""
    twin = planning_mesh(mesh)
    if not isinstance(twin, Mesh):
        raise MeshError("an AbstractMesh has no devices to measure: give a mesh of real ones, as jax.make_mesh makes")
    if twin.size == 1:
        raise MeshError("the mesh has no axis above 1: there is no collective to measure")
    return twin


def _rounded(sizes_bytes: Sequence[int], devices: int) -> list[int]:
    """The sizes, ascending, rounded up to what splits evenly over so many devices."""
    whole = _ITEMSIZE * devices
    rounded = sorted({-(-nbytes // whole) * whole for nbytes in sizes_bytes if nbytes > 0})
    if len(rounded) < 4:
        raise OptionError(
            f"sizes_bytes={tuple(sizes_bytes)}: a law and its error need at least 4 message sizes, these make "
            f"{len(rounded)} that split over {devices} devices"
        )
    return rounded


def _calibrated(axis: str, measurements: list[Measurement]) -> CalibratedCollective:
    errors = np.abs(relative_errors(fit := fit_collective(measurements), measurements))
    unseen = np.abs(relative_errors(fit_collective(measurements[::2]), measurements[1::2]))
    return CalibratedCollective(
        axis=axis,
        fit=fit,
        measurements=tuple(measurements),
        median_error_ratio=float(np.median(errors)),
        worst_error_ratio=float(errors.max()),
        unseen_error_ratio=float(np.median(unseen)),
    )


def _measured_link(size: int, fits: list[CollectiveFit]) -> Link:
    """One link for all that lies along the axis: its laws already hold the whole way."""
    gather = next(fit for fit in fits if fit.kind == "all-gather")
    return Link(
        topology="switch",
        size=size,
        bytes_per_s=gather.bytes_per_s,
        latency_s=gather.latency_s(size),
        fabric=_FABRIC,
        fits=tuple(fits),
    )


_COLLECTIVES: dict[CollectiveKind, Callable[[jax.Array, str, int], jax.Array]] = {
    "all-gather": lambda x, axis, size: lax.all_gather(x, axis, tiled=True),
    "all-reduce": lambda x, axis, size: lax.psum(x, axis),
    "reduce-scatter": lambda x, axis, size: lax.psum_scatter(x, axis, tiled=True),
    "all-to-all": lambda x, axis, size: lax.all_to_all(x, axis, 0, 0, tiled=True),
    "permute": lambda x, axis, size: lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)]),
}
"""What one device of `size` along the axis does with its own part, a vector."""


def _measured(kind: CollectiveKind, axis: str, nbytes: int, mesh: Mesh, repeats: int) -> Measurement:
    """The median time of one collective."""
    size = mesh.shape[axis]
    elements = nbytes // _ITEMSIZE
    local = elements // size if kind == "all-gather" else elements
    spec = PartitionSpec(mesh.axis_names)
    run = jax.jit(
        jax.shard_map(
            lambda x: _COLLECTIVES[kind](x, axis, size), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
    )
    argument = jax.device_put(np.zeros(local * mesh.size, np.float32), NamedSharding(mesh, spec))
    return Measurement(kind=kind, size=size, nbytes=nbytes, seconds=_median_seconds(run, argument, repeats))


def _median_seconds(run: Callable[[jax.Array], jax.Array], argument: jax.Array, repeats: int) -> float:
    jax.block_until_ready(run(argument))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run(argument))
        times.append(time.perf_counter() - start)
    return statistics.median(times)
