"""The public function: what it accepts, what it refuses, and what it keeps of the user's function."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard import Constraints, Plan, autoshard
from autoshard.costs import MeshModel
from autoshard.emit import SCOPE
from autoshard.errors import (
    InfeasibleError,
    InputError,
    MeshError,
    OptionError,
    PlanMismatchError,
    SpecError,
    UnsupportedError,
)

AUTO = (jax.sharding.AxisType.Auto,) * 2
BYTES = MeshModel.uniform({"x": 4, "y": 2}, bytes_per_s=1e9, latency_s=0.0)


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=AUTO)


def product(w: Any, x: Any) -> Any:
    """Multiply, then squash."""
    return jnp.tanh(x @ w).sum(-1)


W, X = jnp.ones((16, 32)) / 16, jnp.arange(64.0 * 16).reshape(64, 16) / 1000


class TestRefusals:
    def test_not_callable(self, mesh: Mesh) -> None:
        with pytest.raises(InputError, match="needs a function as its first argument, not int"):
            autoshard(3, mesh)  # type: ignore[call-overload]

    def test_not_a_mesh(self) -> None:
        with pytest.raises(MeshError, match=r"must be a jax.sharding.Mesh or AbstractMesh, not tuple.*jax.make_mesh"):
            autoshard(product, (4, 2))  # type: ignore[arg-type]

    def test_no_mesh(self) -> None:
        with pytest.raises(InputError, match=r"has no mesh: pass mesh=, or call the function inside jax\.set_mesh"):
            autoshard(product)(W, X)

    def test_abstract_mesh_without_hardware(self) -> None:
        abstract = AbstractMesh((4, 2), ("x", "y"), axis_types=AUTO)
        with pytest.raises(OptionError, match="an AbstractMesh has no devices to tell the hardware: pass hardware="):
            autoshard(product, abstract).plan(W, X)

    def test_all_faults_of_the_shardings_at_once(self, mesh: Mesh) -> None:
        step = autoshard(
            lambda p, x: x @ p["w"] + p["b"], mesh, in_shardings=({"w": P("z"), "b": P("x", "y")}, P("y", "x"))
        )
        with pytest.raises(SpecError) as caught:
            step.plan({"w": jnp.ones((16, 32)), "b": jnp.ones(32)}, jnp.ones((9, 16)))
        text = str(caught.value).splitlines()
        assert text[0] == "in_shardings does not fit:"
        assert text[1].strip().startswith("in_shardings: p['b']: ") and "2 entries" in text[1]
        assert text[2].strip() == "in_shardings: p['w'], dimension 0: axis 'z' is not in the mesh, which has 'x', 'y'"
        assert "x, dimension 0: extent 9 does not divide into 2 parts" in text[3] and "pad it to 10" in text[3]

    def test_shardings_of_another_mesh(self, mesh: Mesh) -> None:
        other = NamedSharding(jax.make_mesh((2, 4), ("x", "y"), axis_types=AUTO), P("x"))
        with pytest.raises(
            SpecError, match=r"w: .*is of a mesh \{'x': 2, 'y': 4\}, the function's is \{'x': 4, 'y': 2\}"
        ):
            autoshard(product, mesh, in_shardings=(other, None)).plan(W, X)

        def held(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x * 2, other)

        for fn in (held, lambda x: jax.jit(lambda x: x + 1, in_shardings=other)(x)):
            with pytest.raises(
                SpecError, match=r"are not of its mesh.*\n  .*test_api.py:.*is of a mesh \{'x': 2, 'y': 4\}"
            ):
                autoshard(fn, mesh).plan(X)
        assert autoshard(held, mesh, constraints=Constraints(in_code="reopen")).plan(X).results[0].shape == X.shape

    def test_an_axis_used_twice(self, mesh: Mesh) -> None:
        with pytest.raises(SpecError, match=r"result, dimension 0: axis 'x' is used twice|used twice"):
            autoshard(product, mesh, out_shardings=P(("x", "x"))).plan(W, X)

    @pytest.mark.parametrize(
        ("shardings", "fault"),
        [
            ((P(), P(), P()), "in_shardings has 3 entries for 2, has [2] besides; None leaves an entry free"),
            ({"w": P()}, "in_shardings is a dict, what it is for is a tuple; a PartitionSpec, "),
            (({"w": P()}, P()), "in_shardings[0] has 1 entries for 2, lacks ['b']; None leaves an entry free"),
            (({"w": P(), "c": P()}, P()), "in_shardings[0] has 2 entries for 2, lacks ['b'], has ['c'] besides"),
            (({"w": P(), "b": (P(), P())}, P()), "in_shardings[0]['b'] is a tuple, what it is for is a list"),
            ((P(), [P()]), "in_shardings[1] is a list, what it is for is a single array"),
        ],
    )
    def test_shardings_that_are_no_prefix(self, mesh: Mesh, shardings: Any, fault: str) -> None:
        step = autoshard(lambda p, x: x @ p["w"] + p["b"][0], mesh, in_shardings=shardings)
        with pytest.raises(SpecError) as caught:
            step.plan({"w": W, "b": [W[0], W[0]]}, X)
        head, found = str(caught.value).splitlines()
        assert head == "in_shardings must be a prefix of the tree that it is for:"
        assert found.strip().startswith(fault)

    def test_impossible_budget(self, mesh: Mesh) -> None:
        with pytest.raises(
            InfeasibleError,
            match=r"no plan fits: memory_budget is 64 B per device; at .* is live(.|\n)*raise memory_budget",
        ) as caught:
            autoshard(product, mesh, memory_budget=64).plan(W, X)
        found = re.search(r"the least budget that a plan fits is .* \((\d+) bytes\)", str(caught.value))
        assert found is not None
        least = int(found[1])
        assert autoshard(product, mesh, memory_budget=least).plan(W, X).solver.status == "optimal"
        with pytest.raises(InfeasibleError):
            autoshard(product, mesh, memory_budget=least - 1).plan(W, X)

    def test_replicate_on_failure(self, mesh: Mesh) -> None:
        step = autoshard(product, mesh, memory_budget=64, on_failure="replicate")
        assert step.plan(W, X).solver.status == "replicated"
        np.testing.assert_allclose(step(W, X), product(W, X), rtol=1e-5)

    @pytest.mark.parametrize(
        ("option", "match"),
        [
            ({"memory_budget": "much"}, "memory_budget='much' is not an amount of memory"),
            ({"memory_budget": -1}, "must be a positive number of bytes"),
            ({"on_failure": "ignore"}, "on_failure: Input should be 'raise' or 'replicate'"),
            ({"time_limit_s": 0}, "time_limit_s: Input should be greater than 0"),
            ({"hardware": "abacus"}, "hardware='abacus' is not a preset; known are .*tpu-v5e"),
            ({"hardware": "h1000-sxm"}, "hardware='h1000-sxm' is not a preset; did you mean 'h100-sxm'"),
            ({"donate_argnum": 0}, "autoshard has no such option:\n  'donate_argnum'; did you mean 'donate_argnums'"),
            ({"constraints": {"only_axis": {}}}, "'only_axis' is not a constraint; did you mean 'only_axes'"),
        ],
    )
    def test_options(self, mesh: Mesh, option: dict[str, Any], match: str) -> None:
        with pytest.raises(OptionError, match=match):
            autoshard(product, mesh, **option).plan(W, X)

    def test_hardware_of_another_mesh(self, mesh: Mesh) -> None:
        other = MeshModel.uniform({"x": 8}, bytes_per_s=1.0, latency_s=0.0)
        with pytest.raises(MeshError, match=r"is a model of a mesh \{'x': 8\}, the mesh given is \{'x': 4, 'y': 2\}"):
            autoshard(product, mesh, hardware=other).plan(W, X)

    def test_errors_of_the_function_are_the_users(self, mesh: Mesh) -> None:
        with pytest.raises(TypeError, match="dot_general") as caught:
            autoshard(product, mesh)(X, X)
        frame = next(f for f in reversed(caught.traceback) if str(f.path) == __file__)
        assert "jnp.tanh(x @ w)" in str(frame.statement), "the user's own line"


class TestArguments:
    def test_decorator_keeps_the_function(self, mesh: Mesh) -> None:
        step = autoshard(mesh=mesh)(product)
        assert (step.__name__, step.__doc__) == ("product", "Multiply, then squash.")
        assert inspect.signature(step) == inspect.signature(product)
        np.testing.assert_allclose(step(W, X), product(W, X), rtol=1e-5)

    def test_keywords_defaults_and_static(self, mesh: Mesh) -> None:
        def fn(x: Any, scale: Any = 2.0, *, power: int = 2, flip: bool = False) -> Any:
            y = (x * scale) ** power
            return y[::-1] if flip else y

        step = autoshard(fn, mesh, static_argnames=("power", "flip"))
        for kwargs in ({}, {"scale": 3.0}, {"power": 3}, {"flip": True, "scale": jnp.float32(1)}):
            np.testing.assert_allclose(step(X, **kwargs), fn(X, **kwargs), rtol=1e-5)

    def test_static_and_donated_by_number(self, mesh: Mesh) -> None:
        step = autoshard(lambda n, s, x: (s + n * x, x), mesh, static_argnums=0, donate_argnums=1)
        state = jnp.ones((64, 16))
        out, _ = step(2, state, X)
        np.testing.assert_allclose(out, 1 + 2 * X, rtol=1e-6)
        assert state.is_deleted() or step.plan(2, out, X).in_shardings[0] != state.sharding

    def test_static_arguments_by_keyword_and_of_another_type(self, mesh: Mesh) -> None:
        def fn(a: Any, n: Any = 2, mode: str = "up") -> Any:
            return a / n if isinstance(n, float) else a // n

        for options in ({"static_argnums": (1, 2)}, {"static_argnames": ("n", "mode")}):
            step = autoshard(fn, mesh, **options)
            for n in (2, 2.0):
                np.testing.assert_allclose(step(X, n), fn(X, n))
            np.testing.assert_allclose(step(X, mode="down"), fn(X))

    def test_keyword_donation(self, mesh: Mesh) -> None:
        step = autoshard(lambda a, *, s, q: (a + s, q * 2), mesh, donate_argnames="s")
        lowered = step.lower(X, s=X, q=W).as_text()
        assert lowered.count("buffer_donor") + lowered.count("tf.aliasing_output") == 1

    def test_functions_without_arrays(self, mesh: Mesh) -> None:
        assert autoshard(lambda: jnp.ones((8, 8)), mesh)().shape == (8, 8)
        assert autoshard(lambda: None, mesh)() is None
        assert autoshard(lambda x: None, jax.make_mesh((4, 2), ("x", "y")))(X) is None

    def test_settings_of_jax_belong_to_the_signature(self, mesh: Mesh) -> None:
        step = autoshard(lambda x: jnp.arange(4) + x[0, 0].astype(int), mesh)
        assert step(X).dtype == jnp.int32
        with jax.enable_x64(True):
            assert step(X).dtype == jnp.int64
        assert step(X).dtype == jnp.int32

    def test_the_mesh_of_the_context_may_change(self) -> None:
        step = autoshard(lambda x: x * 2)
        for shape, names in (((4, 2), ("x", "y")), ((8,), ("z",))):
            other = jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
            with jax.set_mesh(other):
                assert dict(step(X).sharding.mesh.shape) == dict(other.shape)

    @pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
    def test_values_of_an_enclosing_trace(self, kind: Any) -> None:
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
        options: dict[str, Any] = {
            "static_argnames": "n", "in_shardings": (P("x"),), "constraints": Constraints(only_axes={"x": "x"})
        }  # fmt: skip

        def sharded(w: Any) -> Any:
            return autoshard(lambda x, *, n: jnp.tanh(x @ w) * n, mesh, **options)(X, n=3).sum()

        def plain(w: Any) -> Any:
            return (jnp.tanh(X @ w) * 3).sum()

        np.testing.assert_allclose(jax.jit(sharded)(W), plain(W), rtol=1e-5)
        np.testing.assert_allclose(jax.jit(jax.grad(sharded))(W), jax.grad(plain)(W), rtol=1e-5)
        assert "all-reduce" in jax.jit(sharded).lower(W).compile().as_text(), "x stays split"

    def test_plans_ask_for_values_of_an_enclosing_trace(self, mesh: Mesh) -> None:
        with pytest.raises(InputError, match=r"uses values of an enclosing jit, grad or vmap.*pass them as arguments"):
            jax.jit(lambda w: autoshard(lambda x: x @ w, mesh).plan(X))(W)

    @pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
    def test_one_inside_another(self, kind: Any) -> None:
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
        square = jnp.ones((16, 16)) / 16
        expected = jnp.tanh(jnp.tanh(X @ square) @ square)
        layer = autoshard(lambda w, x: jnp.tanh(x @ w), mesh)
        both = autoshard(lambda w, x: layer(w, layer(w, x)), mesh)
        np.testing.assert_allclose(both(square, X), expected, rtol=1e-5)
        assert layer(square, X).sharding.mesh.axis_types == mesh.axis_types
        anywhere = autoshard(lambda w, x: jnp.tanh(x @ w))
        with jax.set_mesh(mesh):
            np.testing.assert_allclose(
                jax.jit(lambda w, x: anywhere(w, anywhere(w, x)))(square, X), expected, rtol=1e-5
            )

    def test_shard_map_inside(self, mesh: Mesh) -> None:
        def total(x: Any) -> Any:
            return jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(x)

        np.testing.assert_allclose(autoshard(total, mesh)(X), total(X), rtol=1e-6)

    def test_pytrees_of_any_kind(self, mesh: Mesh) -> None:
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class State:
            w: Any
            extra: Any = None

        step = autoshard(lambda s, x: State(x @ s.w, {"none": None, "n": 3}), mesh)
        out = step(State(W), X)
        assert isinstance(out, State) and out.extra["none"] is None and int(out.extra["n"]) == 3
        assert set(step.plan(State(W), X).arguments[0].name) >= set("s.w")

    def test_methods(self, mesh: Mesh) -> None:
        class Model:
            @autoshard(mesh=mesh, static_argnums=0)
            def apply(self, x: Any) -> Any:
                return x * 2

        np.testing.assert_allclose(Model().apply(X), X * 2)

    def test_inside_set_mesh(self) -> None:
        step = autoshard(product)
        with jax.set_mesh(jax.make_mesh((4, 2), ("x", "y"))):
            np.testing.assert_allclose(step(W, X), product(W, X), rtol=1e-5)

    @pytest.mark.parametrize("shape", [(8,), (4, 2), (2, 2, 2), (8, 1)])
    def test_explicit_meshes(self, shape: tuple[int, ...]) -> None:
        explicit = jax.make_mesh(shape, ("a", "b", "c")[: len(shape)])
        step = autoshard(product, explicit, in_shardings=(None, P("a")))
        placed = jax.device_put(X, NamedSharding(explicit, P("a")))
        np.testing.assert_allclose(step(W, placed), product(W, X), rtol=1e-5)
        np.testing.assert_allclose(step(np.asarray(W), np.asarray(X)), product(W, X), rtol=1e-5)

    def test_arguments_that_live_elsewhere_are_moved(self, mesh: Mesh) -> None:
        step = autoshard(product, mesh, in_shardings=(P(), P("x")))
        elsewhere = jax.device_put(X, NamedSharding(mesh, P(None, "y")))
        for x in (elsewhere, jax.device_put(X, jax.devices()[3]), X):
            np.testing.assert_allclose(step(W, x), product(W, X), rtol=1e-5)

    def test_new_shapes_are_planned_anew_with_a_warning_when_they_multiply(
        self, mesh: Mesh, caplog: pytest.LogCaptureFixture
    ) -> None:
        step = autoshard(lambda x: x + 1, mesh)
        with caplog.at_level(logging.WARNING, logger="autoshard"):
            for n in (8, 16, 24, 32, 8):
                assert step(jnp.ones(n)).shape == (n,)
        assert "planned for 4 different signatures" in caplog.text
        step.clear_cache()
        assert step(jnp.ones(8)).shape == (8,)


class TestCallbacks:
    @pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
    def test_values_and_effects(self, kind: Any) -> None:
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
        seen: list[float] = []

        def fn(w: Any, x: Any) -> Any:
            y = jnp.tanh(x @ w)
            io_callback(lambda v: seen.append(float(v)), None, y[0, 0], ordered=True)
            double = jax.pure_callback(lambda v: 2 * v, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
            return {"double": double, "sum": y.sum()}

        step = autoshard(fn, mesh)
        placed = jax.device_put(X, NamedSharding(mesh, P("x")))
        out = step(W, placed)
        np.testing.assert_allclose(out["double"], 2 * jnp.tanh(X @ W), rtol=1e-5)
        assert out["sum"].sharding == step.plan(W, X).out_shardings["sum"]
        with jax.set_mesh(mesh):
            step(W, out["double"][:, :16])
        jax.effects_barrier()  # callbacks run while the caller goes on
        assert len(seen) == 2

    def test_inside_of_a_trace_on_explicit_axes(self) -> None:
        mesh = jax.make_mesh((8,), ("x",))
        step = autoshard(lambda x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x), mesh)
        with pytest.raises(InputError, match="callbacks in a function planned for Explicit axes"):
            jax.jit(lambda x: step(x))(X)


class TestFirstCall:
    def test_threads_plan_once(self, mesh: Mesh, caplog: pytest.LogCaptureFixture) -> None:
        step = autoshard(product, mesh)
        together = threading.Barrier(8)

        def call(number: int) -> Any:
            together.wait()
            return step(W, X + number)

        with caplog.at_level(logging.INFO, logger="autoshard"), ThreadPoolExecutor(8) as pool:
            found = list(pool.map(call, range(8)))
        for number, out in enumerate(found):
            np.testing.assert_allclose(out, product(W, X + number), rtol=1e-5)
        assert caplog.text.count("planned in") == 1

    def test_threads_with_different_signatures(self, mesh: Mesh) -> None:
        step = autoshard(product, mesh)
        with ThreadPoolExecutor(8) as pool:
            for n, out in zip((8, 16, 24, 32) * 4, pool.map(lambda n: step(W, X[:n]), (8, 16, 24, 32) * 4)):
                np.testing.assert_allclose(out, product(W, X[:n]), rtol=1e-5)


class TestNames:
    def test_scopes_of_the_user_and_ours(self, mesh: Mesh) -> None:
        def fn(w: Any, x: Any) -> Any:
            with jax.named_scope("first_layer"):
                x = jnp.tanh(x @ w)
            return jax.lax.scan(body, x, None, length=3)[0]

        def body(x: Any, _: Any) -> Any:
            with jax.named_scope("inside_loop"):
                return jnp.sin(x), None

        step = autoshard(fn, mesh, in_shardings=(P("x", "y"), P("y", "x")), out_shardings=P("x", "y"))
        w = jnp.ones((16, 16))
        lowered = step.lower(w, X)
        compiled = lowered.compile().as_text()
        assert re.search(r'first_layer/[^"]*dot_general', compiled)
        assert re.search(r'while/[^"]*inside_loop/sin', compiled)
        places = dict(re.findall(r"^(#loc\d+) = loc\((.*)\)$", lowered.as_text(debug_info=True), re.MULTILINE))
        ours = [place for place in places.values() if f"/{SCOPE}/sharding_constraint" in place]
        assert any(f"first_layer/{SCOPE}/" in place for place in ours)
        frames = [re.search(r"#loc\d+", place)[0] for place in ours]  # type: ignore[index]
        assert all("test_api.py" in full_text(frame, places) for frame in frames), "the user's own lines"


def full_text(place: str, places: dict[str, str]) -> str:
    """An MLIR location with those that it names."""
    return re.sub(r"#loc\d+", lambda found: full_text(places[found[0]], places), place)


class TestFixedShardings:
    def test_inputs_and_outputs_are_kept(self, mesh: Mesh) -> None:
        step = autoshard(product, mesh, in_shardings=(P(None, "y"), P(("x", "y"))), out_shardings=P("y"))
        plan = step.plan(W, X)
        assert plan.in_shardings == (NamedSharding(mesh, P(None, "y")), NamedSharding(mesh, P(("x", "y"), None)))
        assert step(W, X).sharding.is_equivalent_to(NamedSharding(mesh, P("y")), 1)
        np.testing.assert_allclose(step(W, X), product(W, X), rtol=1e-5)

    def test_unconstrained_dimensions_are_free(self, mesh: Mesh) -> None:
        plan = autoshard(product, mesh, in_shardings=(None, P(P.UNCONSTRAINED, "y")), hardware=BYTES).plan(W, X)
        assert plan.arguments[1].spec[1] == ("y",)
        assert plan.arguments[1].spec[0] == ("x",), "the free dimension is split, since that divides the work"

    def test_constraints_in_the_function_are_kept(self, mesh: Mesh) -> None:
        def fn(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(None, "x"))) + 1

        decisions = autoshard(fn, mesh).plan(X).decisions
        (kept,) = [d for d in decisions if d.primitive == "sharding_constraint"]
        assert kept.results[0] == ((), ("x",))

    def test_abstract_mesh_plans_without_devices(self) -> None:
        abstract = AbstractMesh((16, 16), ("data", "model"), axis_types=AUTO)
        shapes = (jax.ShapeDtypeStruct((4096, 16384), "bfloat16"), jax.ShapeDtypeStruct((65536, 4096), "bfloat16"))
        plan = autoshard(product, abstract, hardware="tpu-v5e").plan(*shapes)
        split = 1
        for axes in plan.arguments[1].spec[:1]:
            for axis in axes:
                split *= dict(abstract.shape)[axis]
        assert split == 256, "data parallelism over the whole slice moves nothing"
        assert plan.predicted.wire_bytes == 0


class TestStrict:
    def test_strict_names_the_primitive_and_the_line(self, mesh: Mesh) -> None:
        def fn(x: Any) -> Any:
            return jax.ffi.ffi_call("nobodys_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        assert autoshard(fn, mesh).plan(X).unruled
        with pytest.raises(UnsupportedError, match=r"for:\n  nobodys_kernel \(replicated\) at .*test_api.py:\d+"):
            autoshard(fn, mesh, strict=True).plan(X)


class TestSavedPlans:
    def test_round_trip_without_planning_again(self, mesh: Mesh, tmp_path: Any) -> None:
        first = autoshard(product, mesh).plan(W, X)
        first.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == first
        step = autoshard(product, mesh, plan=str(tmp_path / "plan.json"))
        assert step.plan(W, X).decisions == first.decisions
        np.testing.assert_allclose(step(W, X), product(W, X), rtol=1e-5)

    def test_plans_that_contradict_the_options_are_refused(self, mesh: Mesh) -> None:
        plan = autoshard(product, mesh, in_shardings=(P(), P("x"))).plan(W, X)
        with pytest.raises(PlanMismatchError, match=r"contradicts the options(.|\n)*in_shardings: x is planned as"):
            autoshard(product, mesh, in_shardings=(P(), P("y")), plan=plan).plan(W, X)
        with pytest.raises(PlanMismatchError, match=r"memory_budget: 64 B is asked for, the plan needs"):
            autoshard(product, mesh, memory_budget=64, plan=plan).plan(W, X)

    def test_stale_and_foreign_plans_are_refused(self, mesh: Mesh) -> None:
        plan = autoshard(product, mesh).plan(W, X)
        with pytest.raises(PlanMismatchError, match="was made for another program"):
            autoshard(lambda w, x: product(w, x) + 1, mesh, plan=plan, static_argnums=()).plan(W, X)
        other = jax.make_mesh((2, 4), ("x", "y"), axis_types=AUTO)
        with pytest.raises(
            PlanMismatchError, match=r"is for a mesh \{'x': 4, 'y': 2\}, this one is \{'x': 2, 'y': 4\}"
        ):
            autoshard(product, other, plan=plan).plan(W, X)


def test_equal_programs_give_equal_plans(mesh: Mesh) -> None:
    plans = [autoshard(product, mesh).plan(W, X) for _ in range(2)]
    assert plans[0].decisions == plans[1].decisions


def test_verify_finds_what_was_planned(mesh: Mesh) -> None:
    plan = autoshard(product, mesh, in_shardings=(P("x"), P(None, "x")), hardware=BYTES).plan(W, X)
    checked = plan.verify()
    assert checked.ok, str(checked)
    assert plan.predicted.wire_bytes > 0


def test_another_number_or_tree_of_arguments_is_planned_anew(mesh: Mesh) -> None:
    total = autoshard(lambda tree, factor=2.0: factor * sum(x.sum() for x in jax.tree.leaves(tree)), mesh)
    ones = jnp.ones(8)
    calls = [({"a": ones},), ({"a": ones, "b": ones},), ([ones],), ({"a": ones}, 3.0), ({"a": ones},)]
    assert [float(total(*call)) for call in calls] == [16, 32, 16, 24, 16]
