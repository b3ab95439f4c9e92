"""Several processes with one program: they must have made the same plan before they run it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh

from autoshard.errors import PlanMismatchError
from autoshard.plan import Plan

DIGEST_NBYTES = 32


def spans_processes(mesh: Mesh | AbstractMesh) -> bool:
    """Whether devices of other processes belong to a mesh."""
    if isinstance(mesh, AbstractMesh) or jax.process_count() == 1:
        return False
    return any(device.process_index != jax.process_index() for device in mesh.devices.flat)


def check_agreement(plan: Plan) -> None:
    """Compare a plan with those of the other processes; every process has to call this.

    Raises:
        PlanMismatchError: In all processes, if one has another program or has decided otherwise.
    """
    own = np.frombuffer(digest(plan), np.uint8)
    everyone = multihost_utils.process_allgather(own)
    message = disagreement(plan.function, [row.tobytes() for row in np.asarray(everyone)])
    if message:
        raise PlanMismatchError(message)


def digest(plan: Plan) -> bytes:
    """Hashes of the program that a plan is for, and of what it decides."""
    decided = plan.model_dump_json(include={"arguments", "results", "decisions"})
    return hashlib.sha256(plan.fingerprint.encode()).digest() + hashlib.sha256(decided.encode()).digest()


def disagreement(function: str, digests: Sequence[bytes]) -> str:
    """What differs between the processes; empty if nothing does."""
    for what, part in (
        ("have traced other programs", slice(None, DIGEST_NBYTES)),
        ("have made other plans of the same program", slice(DIGEST_NBYTES, None)),
    ):
        differing = [str(k) for k, other in enumerate(digests) if other[part] != digests[0][part]]
        if differing:
            return (
                f"processes {', '.join(differing)} {what} than process 0 for {function!r}: give all of them the same "
                "code, argument shapes, options and versions, or let one process plan, save the plan, and pass plan= "
                "to all"
            )
    return ""
