"""Time laws of collectives on NVIDIA GPUs within a host or rack, fitted to XLA's published measurements.

Source: the table of collective times that XLA ships for its own cost model, as text in the wheel jax-cuda12-pjrt 0.10.2
(2026): medians of 20 runs in float32 over NVLink, groups of 2, 4 and 8 GPUs on H100 and B200, of 4 to 72 on GB200 and
GB300. Fitted to the points of 256 KiB and more; `benchmarks/measured_collectives.py --fits` prints this table.
"""

from __future__ import annotations

from .links import CollectiveFit, CollectiveKind


def _fit(
    kind: CollectiveKind, base_s: float, hop_s: float, bytes_per_s: float, small_group_ratio: float, fill_s: float
) -> CollectiveFit:
    return CollectiveFit(
        kind=kind,
        base_s=base_s,
        hop_s=hop_s,
        bytes_per_s=bytes_per_s,
        small_group_ratio=small_group_ratio,
        fill_s=fill_s,
    )


H100 = (
    _fit("all-gather", 9.11e-06, 1.28e-06, 4.47e11, 1.01, 5.9e-06),
    _fit("all-reduce", 7.41e-06, 3.31e-06, 5.62e11, 2.32, 1.1e-05),
    _fit("all-to-all", 2.58e-05, 0.0, 4e11, 0.311, 6.49e-06),
    _fit("permute", 1.66e-05, 0.0, 3.41e11, 0.0, 2.89e-05),
    _fit("reduce-scatter", 1.51e-05, 1.31e-06, 4.49e11, 2.41, 1.59e-06),
)
B200 = (
    _fit("all-gather", 2.08e-05, 1.53e-06, 7.87e11, 1.39, 2.28e-06),
    _fit("all-reduce", 1.64e-05, 4.66e-06, 7.55e11, 0.996, 5.7e-06),
    _fit("all-to-all", 3.3e-05, 0.0, 9.14e11, 2.15, 9.93e-06),
    _fit("permute", 1.32e-05, 0.0, 8.16e11, 0.0, 0.000159),
    _fit("reduce-scatter", 2.63e-05, 1.28e-06, 7.81e11, 1.42, 8.06e-07),
)
GB200 = (
    _fit("all-gather", 1.13e-05, 1.23e-06, 7.08e11, 0.433, 1.34e-06),
    _fit("all-reduce", 1.04e-05, 6.63e-07, 9.74e11, 0.594, 3.1e-05),
    _fit("all-to-all", 6.92e-06, 5e-07, 6.87e11, 0.191, 6.2e-06),
    _fit("permute", 5.19e-05, 0.0, 8.21e11, 0.0, 6.14e-05),
    _fit("reduce-scatter", 1.26e-05, 1.3e-06, 7.35e11, 0.374, 1.94e-06),
)
GB300 = (
    _fit("all-gather", 1.2e-05, 1.19e-06, 7e11, 0.417, 8.95e-07),
    _fit("all-reduce", 9.3e-06, 6.69e-07, 9.8e11, 0.605, 3.11e-05),
    _fit("all-to-all", 7.01e-06, 4.7e-07, 6.64e11, 0.0721, 5.4e-06),
    _fit("permute", 5.05e-05, 0.0, 8.23e11, 0.0, 5.98e-05),
    _fit("reduce-scatter", 1.29e-05, 1.28e-06, 7.17e11, 0.302, 1.44e-06),
)
