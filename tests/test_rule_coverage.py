"""Every primitive of the installed JAX is ruled, entered as a region, or excused here with a reason."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterator

import jax
import jax._src
import pytest
from jax.extend import core

from autoshard.rules import ruled_primitives
from autoshard.trace import _REGIONS, abstract, build_graph, trace
from tests.autoshard.zoo import Program, zoo
from tests.reached import reached_by_calls

KERNEL = "inside kernels only; the call of a kernel is opaque"
PER_SHARD = "inside shard_map only, whose body is the user's"
REFERENCE = "mutable references have no sharding yet: replicated"
CUSTOM = "foreign code: replicated, unless the user registers a rule"
EXPLICIT = "for meshes with Explicit axes, which are traced as Auto ones"
UNTRACED = "not part of a traced program: JAX resolves it before"
DYNAMIC = "extents that are not known are not planned"

MODULES = {
    "jax._src.pallas": KERNEL,
    "jax._src.thunky": KERNEL,
    "jax.experimental": KERNEL,
    "jax._src.lax.parallel": PER_SHARD,
    "jax._src.state": REFERENCE,
    "jax._src.hijax": REFERENCE,
    "jax._src.cudnn": CUSTOM,
    "jax._src.export": DYNAMIC,
}
"""Reasons for all primitives that a module defines."""

NAMES = {
    "accum_grad_in_ref": REFERENCE,
    "axis_index": PER_SHARD,
    "buffer_callback": CUSTOM,
    "call_exported": CUSTOM,
    "check": "checkify discharges it before anything is compiled",
    "compute_on": "computes elsewhere than on the device: replicated",
    "custom_jvp_call_jaxpr": UNTRACED,
    "custom_lin": UNTRACED,
    "custom_partitioning": CUSTOM,
    "empty_ref": REFERENCE,
    "ffi_call": CUSTOM,
    "free_ref": REFERENCE,
    "freeze": REFERENCE,
    "inspect_sharding": "a question to the partitioner: replicated",
    "linear_call": "a call with its own transpose: replicated until it is entered as a region",
    "new_ref": REFERENCE,
    "pallas_call": CUSTOM,
    "preduced": PER_SHARD,
    "program_order": "fixes the order of operations, which a plan does not see: replicated",
    "pvary": PER_SHARD,
    "reduced_vary_cast": PER_SHARD,
    "reduced_vary_cast_p": PER_SHARD,
    "relayout": EXPLICIT,
    "remat_opt": UNTRACED,
    "stage": UNTRACED,
    "tpu_custom_call": CUSTOM,
    "unreachable": UNTRACED,
}
"""Reasons for single primitives."""

FEWEST_RULED = 0.95
"""Share of the primitives that JAX's public functions reach."""


def defined_primitives() -> Iterator[tuple[str, frozenset[str]]]:
    """Every primitive that a module of JAX names, with the modules that do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(jax._src.__path__, "jax._src."):
            if not any(part in module.name for part in ("test", "clusters", "cloud")):
                try:
                    importlib.import_module(module.name)
                except ImportError:  # it is for a backend that is not installed
                    continue
        homes: dict[str, set[str]] = {}
        for name, loaded in list(sys.modules.items()):
            if name.startswith("jax.") and loaded is not None:
                for value in list(vars(loaded).values()):
                    if isinstance(value, core.Primitive):
                        homes.setdefault(value.name, set()).add(name)
    return ((name, frozenset(modules)) for name, modules in sorted(homes.items()))


def excuse(name: str, modules: frozenset[str]) -> str | None:
    for prefix, reason in MODULES.items():
        if any(module.startswith(prefix) for module in modules):
            return reason
    return NAMES.get(name)


def test_every_primitive_is_ruled_or_excused() -> None:
    found = dict(defined_primitives())
    assert len(found) > 200, "the listing of primitives has moved"
    handled = ruled_primitives() | set(_REGIONS)
    missing = [name for name, modules in found.items() if name not in handled and not excuse(name, modules)]
    assert not missing, "rule these, or excuse them with a reason"


def test_nothing_that_is_ruled_is_excused() -> None:
    assert not set(NAMES) & (ruled_primitives() | set(_REGIONS))


def test_what_public_functions_reach_is_ruled() -> None:
    reached = reached_by_calls()
    handled = ruled_primitives() | set(_REGIONS)
    left = {name: function for name, (function, _) in reached.items() if name not in handled}
    assert len(reached) > 170
    assert 1 - len(left) / len(reached) >= FEWEST_RULED
    assert {excuse(name, frozenset()) or PER_SHARD for name in left} == {PER_SHARD}, left


@pytest.mark.parametrize("program", zoo(), ids=str)
def test_the_zoo_needs_no_fallback(program: Program) -> None:
    graph = build_graph(trace(program.fn, jax.tree.map(abstract, program.args), {}))
    assert not graph.unruled
