"""Calibration: measures, fits, says how far it is off, and gives a model that plans."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from autoshard import calibrate
from autoshard.calibration import Calibration
from autoshard.costs import CollectiveFit, Measurement, MeshModel, ShardingSpec, all_gather, plan_resharding
from autoshard.errors import MeshError, OptionError

KINDS = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "permute"}
SMALL = tuple(1 << power for power in (10, 12, 14, 16))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(jax.make_mesh((4, 2), ("x", "y")), sizes_bytes=SMALL, repeats=3)


def test_every_collective_of_every_axis_is_measured(calibration: Calibration) -> None:
    assert {(found.axis, found.fit.kind) for found in calibration.collectives} == {(a, k) for a in "xy" for k in KINDS}
    for found in calibration.collectives:
        assert [point.nbytes for point in found.measurements] == list(SMALL)
        assert {point.size for point in found.measurements} == {{"x": 4, "y": 2}[found.axis]}
        assert all(point.seconds > 0 for point in found.measurements)


def test_the_model_tells_the_measured_times(calibration: Calibration) -> None:
    mesh = calibration.model
    assert (mesh.sizes, mesh.platform) == ({"x": 4, "y": 2}, "cpu")
    found = next(one for one in calibration.collectives if (one.axis, one.fit.kind) == ("x", "all-gather"))
    sent_bytes = SMALL[-1] * 3 / 4
    assert all_gather(SMALL[-1], ("x",), mesh).seconds == pytest.approx(found.fit.seconds(4, sent_bytes))
    plan = plan_resharding(ShardingSpec.of("x", None), ShardingSpec.of(None, ("x", "y")), (64, 64), 4, mesh)
    assert plan.seconds > 0


def test_the_errors_are_those_of_the_law(calibration: Calibration) -> None:
    for found in calibration.collectives:
        errors = [abs(found.fit.seconds(m.size, m.sent_bytes) / m.seconds - 1) for m in found.measurements]
        assert found.median_error_ratio == pytest.approx(np.median(errors))
        assert found.worst_error_ratio == pytest.approx(max(errors))


def test_virtual_devices_are_not_trusted(calibration: Calibration) -> None:
    assert calibration.virtual and not calibration.trustworthy
    report = str(calibration)
    assert "Collectives measured on a mesh x=4 x y=2 of cpu-virtual" in report
    assert "virtual devices that share the cores of one host" in report and "noisy" in report
    assert all(f"{found.axis:9} {found.fit.kind}" in report for found in calibration.collectives)


def test_laws_that_miss_are_counted(calibration: Calibration) -> None:
    found = calibration.collectives[0]
    loose = dataclasses.replace(found, unseen_error_ratio=0.5)
    real = Calibration(model=calibration.model, collectives=(loose, found), virtual=False)
    assert not real.trustworthy
    assert "1 of 2 laws miss sizes they were not fitted to by more than 25%" in str(
        dataclasses.replace(real, collectives=(loose, dataclasses.replace(found, unseen_error_ratio=0.0)))
    )
    good = dataclasses.replace(real, collectives=(dataclasses.replace(found, unseen_error_ratio=0.1),))
    assert good.trustworthy and "noisy" not in str(good)


def test_a_saved_model_reads_back(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path / "mesh.json")
    assert MeshModel.model_validate_json((tmp_path / "mesh.json").read_text()) == calibration.model


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(MeshError, match="an AbstractMesh has no devices to measure"):
        calibrate(AbstractMesh((4, 2), ("x", "y")))  # type: ignore[arg-type]
    with pytest.raises(MeshError, match=r"mesh must be a jax.sharding.Mesh or AbstractMesh, not dict"):
        calibrate({"x": 4})  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="no axis above 1"):
        calibrate(jax.make_mesh((1,), ("x",), devices=jax.devices()[:1]))
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    for sizes in ((1024, 2048, 1024), (1, 2, 3, 16, 32), (-1024, 0, 1024, 2048, 4096)):
        with pytest.raises(OptionError, match=r"at least 4 message sizes, these make [23] that split over 4 devices"):
            calibrate(mesh, sizes_bytes=sizes)
    with pytest.raises(OptionError, match="repeats=0: a time needs at least 1 run"):
        calibrate(mesh, repeats=0)
    with pytest.raises(OptionError, match="hardware='gpu' is not a preset"):
        calibrate(mesh, hardware="gpu")


def test_measurements_and_laws_are_public() -> None:
    fit = CollectiveFit(kind="permute", base_s=1e-6, bytes_per_s=1e9)
    point = Measurement(kind="permute", size=2, nbytes=1e6, seconds=2e-3)
    assert fit.seconds(2, point.sent_bytes) == pytest.approx(1e-6 + 1e-3)
