"""What the library examples share: eight virtual devices, a regression task, two runs side by side."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # both are read when jax starts its backend
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import math
from collections.abc import Sequence

import jax
import numpy as np

from autoshard import Plan

RTOL = 1e-5  # float32: the same sums, taken in another order, and fed back by the optimizer


def device_mesh() -> jax.sharding.Mesh:
    """Eight devices, 4 by 2."""
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def regression(inputs: int, outputs: int, rows: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """A batch that a small network can learn: x of shape (rows, inputs), y of shape (rows, outputs)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    return x, np.tanh(x @ rng.normal(size=(inputs, outputs)).astype(np.float32) / math.sqrt(inputs))


def report(what: str, expected: Sequence[float], actual: Sequence[float], plan: Plan) -> bool:
    """Print both runs' losses; returns whether they agree, and the second was sharded at all."""
    worst = max(abs(a - e) / abs(e) for e, a in zip(expected, actual, strict=True))
    agree = all(math.isclose(e, a, rel_tol=RTOL) for e, a in zip(expected, actual, strict=True))
    split = sum(any(leaf.spec) for leaf in plan.arguments)
    print(f"{what}: {split} of {len(plan.arguments)} arguments split, {plan.predicted.wire_bytes / 1024:,.0f} KiB sent")
    print(f"  unsharded {'  '.join(f'{loss:.6f}' for loss in expected)}")
    print(f"  autoshard {'  '.join(f'{loss:.6f}' for loss in actual)}")
    print(f"  {'they agree' if agree else 'THEY DIFFER'}: worst relative difference {worst:.1e}")
    return agree and split > 0
