"""What a backend holds and sends besides, or instead of, the values of the program.

The TPU compiler converts the float32 operands of a contraction at default precision to bfloat16 before it sends them
to where they are needed: such a resharding moves and holds half the bytes. It keeps part of the temporaries in on-chip
vector memory, where they take nothing of the device's memory (both measured on libtpu 0.0.52).

The TPU and GPU compilers compute on bfloat16 as it is. The CPU backend does not (measured on jax 0.10.2):

- outside of loops bfloat16 values are kept in float32, since conversions there and back are dropped;
- a contraction of bfloat16 arrays runs in float32: its operands and its result exist in float32 while it runs;
- a loop that stacks bfloat16 values keeps the stack in float32 while it runs, and converts it at the end;
- a gathered array is copied once more, into row-major order, unless the gathered dimension is the major one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.costs import MeshModel
from autoshard.graph import Op
from autoshard.rules.base import TensorFacts
from autoshard.strategies import SpecColumn, StrategySet

Floats = NDArray[np.float64]

CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
FLOAT32_BYTES = 4
BFLOAT16_BYTES = 2

ON_CHIP_BYTES: Mapping[str, float] = {"tpu-v5e": 40 * 2.0**20, "tpu-v6e": 40 * 2.0**20}
"""Temporaries that a compiler keeps on chip, by device. A TPU v5e has 128 MiB of vector memory; in eight compiled
programs `memory_analysis` reports 26 to 107 MiB less than is live, but in one 38 MiB more (its schedule holds gathered
weights for longer). For a v6e the compiler does likewise, for a v5p it keeps nothing there (libtpu 0.0.52)."""


def on_chip_bytes(mesh: MeshModel) -> float:
    """How many bytes of temporaries at any time take no device memory."""
    return next((nbytes for name, nbytes in ON_CHIP_BYTES.items() if mesh.device.name.startswith(name)), 0.0)


def scratch_bytes(op: Op, strategies: StrategySet, mesh: MeshModel) -> tuple[int, Floats] | None:
    """Memory that an operation holds besides its operands and results.

    Args:
        op: The operation.
        strategies: Its strategies.
        mesh: The mesh model; its platform decides.

    Returns:
        The time from which it is held (until the operation ends) and bytes per strategy; None if there is none.
    """
    position = op.result_from[0] if op.results else 0
    held = np.array([s.scratch_bytes for s in strategies.strategies])
    if mesh.platform == "cpu":
        held = held + _in_float32(op, strategies, mesh)
    return (position, held) if held.any() else None


def _in_float32(op: Op, strategies: StrategySet, mesh: MeshModel) -> Floats:
    """Bytes of the float32 copies that the CPU backend makes of bfloat16 arrays."""
    facts = op.equation
    if op.primitive in CONTRACTIONS:
        arrays = [*zip(facts.operands, strategies.operands), *zip(facts.results, strategies.results)]
    elif op.primitive == "scan_ys":
        arrays = list(zip(facts.results, strategies.results))
    else:
        arrays = []
    total = np.zeros(len(strategies))
    for tensor, column in arrays:
        if tensor.dtype == "bfloat16":
            total += shard_bytes(tensor, column, mesh) * FLOAT32_BYTES / tensor.itemsize
    return total


def shard_bytes(tensor: TensorFacts, column: SpecColumn, mesh: MeshModel) -> Floats:
    """Bytes of a tensor's shard under each strategy."""
    sizes = [spec.shard_bytes(tensor.shape, tensor.itemsize, mesh) for spec in column.specs]
    return np.array(sizes, dtype=np.float64)[column.index]


def sent_as(tensor: TensorFacts, user: Op, mesh: MeshModel) -> TensorFacts:
    """A tensor as it is sent to an operation that uses it.

    Args:
        tensor: Shape and element type.
        user: The operation.
        mesh: The mesh model; its platform decides.

    Returns:
        The tensor's facts, in bfloat16 where the compiler converts before it sends.
    """
    if mesh.platform != "tpu" or tensor.dtype != "float32" or not _multiplies_in_bfloat16(user):
        return tensor
    return replace(tensor, dtype="bfloat16", itemsize=BFLOAT16_BYTES)


def _multiplies_in_bfloat16(op: Op) -> bool:
    if op.primitive not in CONTRACTIONS:
        return False
    asked = op.equation.params.get("precision")
    return all(
        p is None or getattr(p, "name", "") == "DEFAULT" for p in (asked if isinstance(asked, tuple) else (asked,))
    )


def storage_scale(op: Op, tensor: TensorFacts, mesh: MeshModel) -> float:
    """Bytes that a result of an operation takes in memory, per byte of its own."""
    kept_in_float32 = mesh.platform == "cpu" and tensor.dtype == "bfloat16" and op.trips == 1 and bool(op.operands)
    return FLOAT32_BYTES / tensor.itemsize if kept_in_float32 else 1.0


def gathered_copies(mesh: MeshModel) -> int:
    """How many buffers of the gathered size a resharding that communicates holds while it runs."""
    return 2 if mesh.platform == "cpu" else 1
