"""Time laws: they find what generated the data, and hold on published measurements that they have not seen."""

import math

import numpy as np
import pytest

from autoshard.costs import CollectiveFit, MeshModel, all_gather
from autoshard.costs.fitting import Measurement, fit_collective, relative_errors
from autoshard.costs.links import CollectiveKind
from tests.costs.measurements import held_out, published

DEVICES = ("sm_90", "sm_100_B200", "sm_100_GB200", "sm_103")
COUNTED: tuple[CollectiveKind, ...] = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
MIB = 2**20


def measured(law: CollectiveFit, sizes: tuple[int, ...]) -> list[Measurement]:
    points = [
        Measurement(kind=law.kind, size=size, nbytes=2.0**power, seconds=1.0)
        for size in sizes
        for power in range(10, 34)
    ]
    return [
        Measurement(kind=law.kind, size=p.size, nbytes=p.nbytes, seconds=law.seconds(p.size, p.sent_bytes))
        for p in points
    ]


@pytest.mark.parametrize("kind", COUNTED)
def test_a_law_is_found_again(kind: CollectiveKind) -> None:
    law = CollectiveFit(kind=kind, base_s=2e-5, hop_s=1e-6, bytes_per_s=400e9, small_group_ratio=1.5, fill_s=3e-6)
    found = fit_collective(measured(law, (2, 4, 8, 16)))
    assert found.bytes_per_s == pytest.approx(law.bytes_per_s, rel=1e-4)
    assert found.base_s == pytest.approx(law.base_s, rel=1e-4) and found.hop_s == pytest.approx(law.hop_s, rel=1e-4)
    assert found.small_group_ratio == pytest.approx(law.small_group_ratio, rel=1e-3)
    assert found.fill_s == pytest.approx(law.fill_s, rel=1e-3)


def test_one_outlier_does_not_bend_a_law() -> None:
    law = CollectiveFit(kind="all-gather", base_s=2e-5, bytes_per_s=400e9)
    points = measured(law, (8,))
    points[10] = Measurement(kind="all-gather", size=8, nbytes=points[10].nbytes, seconds=points[10].seconds * 20)
    found = fit_collective(points)
    assert found.bytes_per_s == pytest.approx(law.bytes_per_s, rel=0.02)
    assert found.base_s == pytest.approx(law.base_s, rel=0.02)


def test_one_group_size_says_nothing_about_others() -> None:
    law = CollectiveFit(kind="all-gather", base_s=2e-5, hop_s=1e-6, bytes_per_s=400e9, small_group_ratio=1.0)
    found = fit_collective(measured(law, (8,)))
    assert (found.hop_s, found.small_group_ratio) == (0.0, 0.0)
    assert np.abs(relative_errors(found, measured(law, (8,)))).max() < 1e-3


def test_too_little_or_mixed_data_is_refused() -> None:
    gather = Measurement(kind="all-gather", size=4, nbytes=1e6, seconds=1e-3)
    reduce = Measurement(kind="all-reduce", size=4, nbytes=1e6, seconds=1e-3)
    with pytest.raises(ValueError, match="needs at least 2 measurements, got 1"):
        fit_collective([gather])
    with pytest.raises(ValueError, match="measurements of all-gather, all-reduce"):
        fit_collective([gather, reduce])


def test_laws_hold_on_sizes_and_groups_they_have_not_seen() -> None:
    """Every point above 1 MiB, by a law fitted to other group sizes only, and of those to every other message size."""
    errors: list[float] = []
    for by_kind in map(published, DEVICES):
        for kind in COUNTED:
            for seen, unseen in held_out(by_kind[kind]):
                assert not {point.nbytes for point in seen} & {point.nbytes for point in unseen}
                assert not {point.size for point in seen} & {point.size for point in unseen}
                errors.extend(relative_errors(fit_collective(seen), [p for p in unseen if p.nbytes > MIB]))
    assert len(errors) > 1400
    assert np.mean(np.abs(errors) <= 0.25) >= 0.80


def test_presets_carry_the_fits_of_the_published_measurements() -> None:
    mesh = MeshModel.preset("h100-sxm", {"x": 8})
    point = published("sm_90")["all-gather"][8][-1]
    assert all_gather(point.nbytes, ("x",), mesh).seconds == pytest.approx(point.seconds, rel=0.25)
    fits = {fit.kind: fit for fit in mesh.links("x")[0].fits}
    assert set(fits) == {*COUNTED, "permute"}
    for kind in COUNTED:
        again = fit_collective([point for points in published("sm_90")[kind].values() for point in points])
        assert math.isclose(fits[kind].bytes_per_s, again.bytes_per_s, rel_tol=0.01)
