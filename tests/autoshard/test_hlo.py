"""What is read from compiled programs, against programs whose collectives, FLOPs and memory are known by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoshard.errors import InputError
from autoshard.hlo import Collective, collectives, flops, memory, wire_bytes
from autoshard.hlo_text import array_shapes, parse_module, split_top_level, tuple_elements
from autoshard.hlo_trips import trips_of_counter

P = PartitionSpec
X, Y = 4, 2
MESH_AXES = {"x": X, "y": Y}
ROWS, MIDDLE, COLUMNS, STEPS = 64, 128, 32, 5
F32 = 4
DATA = Path(__file__).parent / "data"

lhs = jax.ShapeDtypeStruct((ROWS, MIDDLE), jnp.float32)
rhs = jax.ShapeDtypeStruct((MIDDLE, COLUMNS), jnp.float32)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(X, Y), tuple(MESH_AXES))


def compiled_text(mesh: Mesh, fn: Callable[..., Any], args: tuple[Any, ...], in_specs: Any, out_specs: Any) -> str:
    in_shardings, out_shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (in_specs, out_specs), is_leaf=lambda leaf: isinstance(leaf, P)
    )
    return jax.jit(fn, in_shardings=in_shardings, out_shardings=out_shardings).lower(*args).compile().as_text()


def only(found: tuple[Collective, ...]) -> Collective:
    (one,) = found
    return one


def facts(collective: Collective) -> tuple[str, tuple[str, ...], int, int, int]:
    return collective.kind, collective.axes, collective.group_size, collective.nbytes, collective.trips


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


class TestMatmuls:
    """One hand-annotated matmul for each collective that the partitioner makes of it."""

    def test_all_reduce(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P("x", "y"), P("y", None)), P("x", None))
        found = only(collectives(text, MESH_AXES))
        assert facts(found) == ("all-reduce", ("y",), Y, ROWS // X * COLUMNS * F32, 1)
        assert found.wire_bytes == 2 * found.nbytes * (Y - 1) / Y
        assert found.op_name.endswith("dot_general")
        assert found.source.startswith(__file__ + ":")

    def test_all_gather(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P("x", None), P(None, "x")), P("x", None))
        found = only(collectives(text, MESH_AXES))
        assert facts(found) == ("all-gather", ("x",), X, MIDDLE * COLUMNS * F32, 1)

    def test_all_gather_over_both_axes(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P(("y", "x"), None), P()), P())
        found = only(collectives(text, MESH_AXES))
        assert facts(found) == ("all-gather", ("x", "y"), X * Y, ROWS * COLUMNS * F32, 1)

    def test_reduce_scatter(self, mesh: Mesh) -> None:
        def region(a: jax.Array, b: jax.Array) -> jax.Array:
            return jax.lax.psum_scatter(a @ b, "x", scatter_dimension=0, tiled=True)

        fn = jax.shard_map(region, mesh=mesh, in_specs=(P("y", "x"), P("x", None)), out_specs=P(("y", "x"), None))
        found = only(collectives(jax.jit(fn).lower(lhs, rhs).compile().as_text(), MESH_AXES))
        assert facts(found) == ("reduce-scatter", ("x",), X, ROWS // (X * Y) * COLUMNS * F32, 1)
        assert found.wire_bytes == found.nbytes * (X - 1)

    def test_all_to_all(self, mesh: Mesh) -> None:
        def fn(a: jax.Array, b: jax.Array) -> jax.Array:
            product = jax.lax.with_sharding_constraint(a @ b, NamedSharding(mesh, P("x", None)))
            return jax.lax.with_sharding_constraint(product, NamedSharding(mesh, P(None, "x")))

        text = compiled_text(mesh, fn, (lhs, rhs), (P("x", None), P()), P(None, "x"))
        found = only(collectives(text, MESH_AXES))
        assert facts(found) == ("all-to-all", ("x",), X, ROWS * COLUMNS // X * F32, 1)

    def test_collective_permute(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P(("x", "y"), None), P()), P(("y", "x"), None))
        found = only(collectives(text, MESH_AXES))
        assert found.kind == "collective-permute"
        assert found.axes == ("x", "y")
        assert found.wire_bytes == found.nbytes == ROWS // (X * Y) * MIDDLE * F32  # the operand moves, not the product

    def test_nothing_to_do(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P("x", None), P(None, "y")), P("x", "y"))
        assert collectives(text, MESH_AXES) == ()

    def test_without_a_mesh_groups_have_sizes_and_no_axes(self, mesh: Mesh) -> None:
        text = compiled_text(mesh, matmul, (lhs, rhs), (P("x", "y"), P("y", None)), P("x", None))
        found = only(collectives(text))
        assert (found.axes, found.group_size) == ((), Y)


class TestControlFlow:
    def test_loop_bodies_count_by_trips(self, mesh: Mesh) -> None:
        def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
            def outer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
                x = jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x @ w), x)
                return x, None

            return jax.lax.scan(outer, x, weights)[0]

        square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
        stack = jax.ShapeDtypeStruct((STEPS, ROWS, ROWS), jnp.float32)
        text = compiled_text(mesh, fn, (square, stack), (P("y", "x"), P(None, None, "x")), P("y", "x"))
        inner = [found for found in collectives(text, MESH_AXES) if found.trips > 1]
        assert inner
        assert {found.trips for found in inner} == {STEPS * 3}
        assert all(found.trips_known for found in inner)
        assert {found.axes for found in inner} == {("x",)}

    def test_a_loop_that_runs_as_data_says_is_reported(self, mesh: Mesh) -> None:
        def fn(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.while_loop(lambda x: x[0, 0] < 10.0, lambda x: jnp.sin(x @ w), x)

        square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
        text = compiled_text(mesh, fn, (square, square), (P("y", "x"), P("x", None)), P("y", "x"))
        found = collectives(text, MESH_AXES)
        assert found
        assert all((one.trips, one.trips_known) == (1, False) for one in found if one.nbytes > F32)

    def test_branches_are_marked(self, mesh: Mesh) -> None:
        def fn(flag: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
            return jax.lax.cond(flag, matmul, lambda a, b: jnp.zeros((ROWS, COLUMNS)), a, b)

        flag = jax.ShapeDtypeStruct((), jnp.bool_)
        text = compiled_text(mesh, fn, (flag, lhs, rhs), (P(), P("x", "y"), P("y", None)), P("x", None))
        found = only(collectives(text, MESH_AXES))
        assert facts(found) == ("all-reduce", ("y",), Y, ROWS // X * COLUMNS * F32, 1)
        assert found.conditional

    @given(
        st.integers(-20, 20), st.integers(-4, 4), st.integers(-20, 20), st.sampled_from(["LT", "LE", "GT", "GE", "NE"])
    )
    def test_trips_of_a_counter_are_those_of_the_loop(self, start: int, step: int, limit: int, direction: str) -> None:
        compare: dict[str, Callable[[int], bool]] = {
            "LT": lambda i: i < limit,
            "LE": lambda i: i <= limit,
            "GT": lambda i: i > limit,
            "GE": lambda i: i >= limit,
            "NE": lambda i: i != limit,
        }
        counter, trips, most = start, 0, 100
        while compare[direction](counter) and trips < most:
            counter, trips = counter + step, trips + 1
        assert trips_of_counter(start - limit, step, direction) == (trips if trips < most else None)

    def test_trips_are_derived_where_the_compiler_does_not_say(self, mesh: Mesh) -> None:
        def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

        square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
        stack = jax.ShapeDtypeStruct((STEPS, ROWS, ROWS), jnp.float32)
        text = compiled_text(mesh, fn, (square, stack), (P("y", "x"), P(None, "x", None)), P("y", "x"))
        assert '"known_trip_count"' in text
        assert collectives(text.replace('"known_trip_count"', '"hidden"'), MESH_AXES) == collectives(text, MESH_AXES)


class TestTpu:
    """Programs as the TPU compiler writes them for v5e:2x4 (libtpu 0.0.52), without their backend_config."""

    def test_training_step_over_scanned_layers(self) -> None:
        layers, width, hidden, batch, bf16 = 3, 512, 1024, 256, 2
        found = collectives((DATA / "tpu_scan.hlo").read_text(), MESH_AXES)
        counted = sorted((one.kind, one.axes, one.nbytes, one.trips) for one in found)
        weight = width * hidden // Y * bf16  # gathered over x after the cast to bf16; up and down, forward and back
        gradient = width * hidden // (X * Y) * F32
        activation = batch // X * width * F32
        assert counted == sorted(
            [
                *4 * [("all-gather", ("x",), weight, layers)],
                *2 * [("all-reduce", ("y",), activation, layers)],
                ("reduce-scatter", ("x",), 2 * gradient, layers),
                ("all-reduce", ("x",), F32, 1),
            ]
        )
        assert all(one.trips_known for one in found)

    def test_pieces_of_one_asynchronous_collective_count_once(self) -> None:
        text = (DATA / "tpu_scan.hlo").read_text()
        assert text.count("chain_id=") > 2
        assert len(collectives(text, MESH_AXES)) < text.count(" all-gather(")

    def test_moves_between_dimensions_and_devices(self) -> None:
        rows, columns = 64, 256
        found = collectives((DATA / "tpu_swap.hlo").read_text(), MESH_AXES)
        assert [(one.kind, one.axes, one.nbytes) for one in found] == [
            ("all-to-all", ("x",), rows * columns // X * F32),
            ("all-to-all", ("x",), rows * columns // (X * Y) * F32),
            ("collective-permute", ("x", "y"), rows * columns // (X * Y) * F32),
            ("collective-permute", ("x", "y"), rows * columns // (X * Y) * F32),
        ]
        assert {one.source.split(":")[0] for one in found} == {"train.py"}


GPU = """HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%wrapped (p: bf16[64,16]) -> bf16[64,16] {
  %p = bf16[64,16]{1,0} parameter(0)
  ROOT %a2a = bf16[64,16]{1,0} all-to-all(%p), channel_id=5, replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}
}

ENTRY %main (u: bf16[16,16], v: f32[8], w: f32[64,16]) -> f32[] {
  %u = bf16[16,16]{1,0} parameter(0)
  %v = f32[8]{0} parameter(1)
  %w = f32[64,16]{1,0} parameter(2)
  %ags = ((bf16[16,16]{1,0}, f32[8]{0}), (bf16[64,16]{1,0}, f32[32]{0})) all-gather-start(%u, %v), channel_id=1, \
replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}, metadata={op_name="jit(step)/mul" source_file="a.py" source_line=7}
  %agd = (bf16[64,16]{1,0}, f32[32]{0}) all-gather-done(%ags)
  %ars = (f32[64,16]{1,0}, f32[8]{0}) all-reduce-start(%w, %v), channel_id=2, replica_groups=[4,2]<=[8], to_apply=%add
  %ard = (f32[64,16]{1,0}, f32[8]{0}) all-reduce-done(%ars)
  %rss = ((f32[64,16]{1,0}), f32[32,16]{1,0}) reduce-scatter-start(%w), channel_id=3, \
replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}, to_apply=%add
  %rsd = f32[32,16]{1,0} reduce-scatter-done(%rss)
  %cps = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%v), channel_id=4, \
source_target_pairs={{0,1},{1,0},{2,3},{3,2},{4,5},{5,4},{6,7},{7,6}}
  %cpd = f32[8]{0} collective-permute-done(%cps)
  %gte = bf16[64,16]{1,0} get-tuple-element(%agd), index=0
  %as = ((bf16[64,16]{1,0}), bf16[64,16]{1,0}) async-start(%gte), calls=%wrapped, metadata={op_name="jit(step)/moe"}
  %ad = bf16[64,16]{1,0} async-done(%as), calls=%wrapped
  %gemm = (f32[64,64]{1,0}, s8[4096]{0}) custom-call(%w, %w), custom_call_target="__cublas$gemm", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["1"]}}}
  %one = f32[64,16]{1,0} all-reduce(%w), channel_id=6, replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  ROOT %zero = f32[] constant(0)
}
"""


class TestGpu:
    """What XLA's GPU backend prints, written by hand after its tests: starts, dones, tuples, library calls."""

    def test_asynchronous_and_combined_collectives_count_once_with_their_result(self) -> None:
        found = {one.kind: one for one in collectives(GPU, MESH_AXES)}
        assert len(collectives(GPU, MESH_AXES)) == len(found) == 5
        assert facts(found["all-gather"]) == ("all-gather", ("x",), X, 64 * 16 * 2 + 32 * F32, 1)
        assert facts(found["all-reduce"]) == ("all-reduce", ("y",), Y, 64 * 16 * F32 + 8 * F32, 1)
        assert facts(found["reduce-scatter"]) == ("reduce-scatter", ("y",), Y, 32 * 16 * F32, 1)
        assert facts(found["collective-permute"]) == ("collective-permute", ("y",), 2, 8 * F32, 1)
        assert facts(found["all-to-all"]) == ("all-to-all", ("x",), X, 64 * 16 * 2, 1)

    def test_a_wrapped_collective_takes_the_name_of_its_start(self) -> None:
        (wrapped,) = (one for one in collectives(GPU, MESH_AXES) if one.kind == "all-to-all")
        assert wrapped.op_name == "jit(step)/moe"

    def test_older_metadata_names_its_line(self) -> None:
        assert {one.source for one in collectives(GPU) if one.kind == "all-gather"} == {"a.py:7"}

    def test_library_matmuls_have_flops(self) -> None:
        assert flops(GPU) == 2 * 64 * 64 * 16


class TestFlops:
    def test_dots_count_their_local_sizes_and_loops_their_trips(self, mesh: Mesh) -> None:
        def fn(x: jax.Array, weights: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

        square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)
        stack = jax.ShapeDtypeStruct((STEPS, ROWS, ROWS), jnp.float32)
        text = compiled_text(mesh, fn, (square, stack), (P("x", None), P(None, None, None)), P("x", None))
        assert flops(text) == STEPS * 2 * (ROWS // X) * ROWS * ROWS

    @pytest.mark.parametrize(
        "options",
        [
            {"window_strides": (1, 1), "padding": "SAME"},
            {"window_strides": (2, 1), "padding": "VALID"},
            {"window_strides": (1, 2), "padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)},
            {"window_strides": (1, 1), "padding": ((1, 2), (0, 1)), "lhs_dilation": (2, 3)},
            {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 4},
        ],
        ids=str,
    )
    def test_convolutions_count_as_xla_counts_them(self, options: dict[str, Any]) -> None:
        features = 8 // options.get("feature_group_count", 1)
        image = jax.ShapeDtypeStruct((2, 8, 9, 10), jnp.float32)
        kernel = jax.ShapeDtypeStruct((12, features, 3, 3), jnp.float32)
        lowered = jax.jit(lambda x, k: jax.lax.conv_general_dilated(x, k, **options)).lower(image, kernel)
        analysis = lowered.cost_analysis()
        assert analysis is not None
        assert flops(lowered.as_text("hlo")) == analysis["flops"]

    def test_dots_that_tpu_writes_as_windows_count_as_dots(self) -> None:
        layers, width, hidden, batch = 3, 512, 1024, 256
        matmuls = 6  # two forward, two for the activations' and two for the weights' gradients
        expected = layers * matmuls * 2 * (batch // X) * width * (hidden // Y)
        assert flops((DATA / "tpu_scan.hlo").read_text()) == expected

    def test_the_costliest_branch_counts(self) -> None:
        square = jax.ShapeDtypeStruct((ROWS, ROWS), jnp.float32)

        def switch(which: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
            branches = [matmul, lambda a, b: matmul(matmul(a, b), b), lambda a, b: a]
            return jax.lax.switch(which, branches, a, b)

        text = jax.jit(switch).lower(jax.ShapeDtypeStruct((), jnp.int32), square, square).compile().as_text()
        assert flops(text) == 2 * 2 * ROWS**3


class TestMemory:
    def test_donated_arguments_are_not_counted_twice(self) -> None:
        x = jax.ShapeDtypeStruct((ROWS, MIDDLE), jnp.float32)
        nbytes = ROWS * MIDDLE * F32
        kept = memory(jax.jit(lambda x: x + 1).lower(x).compile())
        donated = memory(jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile())
        assert (kept.arguments, kept.outputs, kept.aliases) == (nbytes, nbytes, 0)
        assert kept.total == 2 * nbytes + kept.temporaries
        assert donated.total == nbytes + donated.temporaries


class TestText:
    def test_text_without_an_entry_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"no ENTRY computation found; pass the text of"):
            parse_module("module @jit_f {}")

    def test_shapes(self) -> None:
        text = "(f32[2,3]{1,0:T(8,128)S(1)}, (s4[8]{0:E(4)}, s4[8]{0}), f8e4m3fn[<=6], pred[], token[], c64[2])"
        assert [shape.nbytes for shape in array_shapes(text)] == [24, 4, 8, 6, 1, 16]
        assert tuple_elements(text)[1] == "(s4[8]{0:E(4)}, s4[8]{0})"

    def test_strings_hide_brackets_and_commas(self) -> None:
        assert split_top_level(r'a="(,\"{", b={x={1,2}, y="]"}, c') == [r'a="(,\"{"', 'b={x={1,2}, y="]"}', "c"]

    @given(st.integers(1, 10**9), st.integers(2, 512))
    def test_all_reduce_is_reduce_scatter_and_all_gather(self, shard_nbytes: int, group_size: int) -> None:
        whole = shard_nbytes * group_size
        assume(whole < 2**52)
        parts = wire_bytes("reduce-scatter", shard_nbytes, group_size) + wire_bytes("all-gather", whole, group_size)
        assert wire_bytes("all-reduce", whole, group_size) == pytest.approx(parts, rel=1e-12)
