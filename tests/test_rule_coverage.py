"""Every primitive of the installed JAX is ruled, handled as a region, or excused here with a reason."""

import jax.extend.core.primitives as primitives

from autoshard.rules import ruled_primitives
from autoshard.trace import _REGIONS
from tests.autoshard.zoo import zoo

PER_SHARD = "only inside shard_map, whose body is the user's"
NOT_YET = {
    "all_gather": PER_SHARD,
    "all_to_all": PER_SHARD,
    "axis_index": PER_SHARD,
    "pmax": PER_SHARD,
    "pmin": PER_SHARD,
    "ppermute": PER_SHARD,
    "psum": PER_SHARD,
    "ragged_all_to_all": PER_SHARD,
    "call": "core.call is not made by tracing since JAX inlines it; replicated if met",
    "eval_jaxpr": "as call, in JAX 0.12",
    "custom_lin": "exists only while linearising, never in a traced program",
    "custom_linear_solve": "replicated until its two solves are entered as regions",
    "get": "mutable references: replicated",
    "swap": "mutable references: replicated",
    "polynomial": "jnp.polyval's derivative helper of JAX 0.12: replicated",
}


def test_every_primitive_is_ruled_or_excused() -> None:
    known = {getattr(primitives, name).name for name in dir(primitives) if name.endswith("_p")}
    assert len(known) > 100, "the listing of primitives has moved"
    missing = known - ruled_primitives() - set(_REGIONS) - set(NOT_YET)
    assert not missing, f"rule these, or excuse them with a reason: {sorted(missing)}"


def test_nothing_that_is_ruled_is_excused() -> None:
    assert not set(NOT_YET) & (ruled_primitives() | set(_REGIONS))


def test_the_zoo_needs_no_fallback() -> None:
    import jax

    from autoshard.trace import abstract, build_graph, trace

    for program in zoo():
        graph = build_graph(trace(program.fn, jax.tree.map(abstract, program.args), {}))
        assert not graph.unruled, program.name
