"""Plans as files: used in a fresh process without planning, refused once anything about them is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from autoshard import Plan, autoshard
from autoshard.errors import AutoshardError, PlanMismatchError
from autoshard.plan import PLAN_VERSION
from tests.helpers import run_python

PROGRAM = """
import jax, jax.numpy as jnp
from autoshard import autoshard

def fn(w, x):
    x = jax.nn.silu(jax.nn.relu(x @ w["up"]))
    jax.debug.callback(lambda v: None, x[0, 0])
    x = jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return jax.checkpoint(lambda x: jax.nn.gelu(x @ w["down"]))(x)

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
args = ({"up": jnp.ones((16, 32)) / 16, "down": jnp.ones((32, 16)) / 32}, jnp.arange(64.0 * 16).reshape(64, 16) / 1000)
"""
USE = """
from autoshard import planner
def no_solve(*args, **kwargs):
    raise AssertionError("planned again")
planner.solve = planner.lower = no_solve
step = autoshard(fn, mesh, plan=PATH)
assert all(out.sharding == planned for out, planned in zip([step(*args)], [step.plan(*args).out_shardings]))
print(step.plan(*args).fingerprint, float(step(*args).sum()))
"""


def test_a_fresh_process_uses_the_file_without_planning(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    step = names["autoshard"](names["fn"], names["mesh"])
    plan = step.plan(*names["args"])
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    used, total = run_python(PROGRAM + USE.replace("PATH", repr(str(tmp_path / "plan.json")))).split()
    assert used == plan.fingerprint, "addresses of callbacks and the like are no part of a program"
    assert float(total) == pytest.approx(float(step(*names["args"]).sum()), rel=1e-5)


def product(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


W, X = jnp.ones((16, 32)) / 16, jnp.arange(64.0 * 16).reshape(64, 16) / 1000


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"))


@pytest.fixture(scope="module")
def text(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    autoshard(product, mesh).plan(W, X).save(path)
    return path.read_text()


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document, the inner nodes too."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path] * bool(path) + [found for key, child in children for found in places(child, (*path, key))]


def edited(document: Any, rng: np.random.Generator) -> Any:
    """A document with one value changed, removed or doubled, or a key renamed."""
    document = json.loads(json.dumps(document))
    found = places(document)
    *above, last = found[rng.integers(len(found))]
    node = document
    for key in above:
        node = node[key]
    match rng.integers(4):
        case 0 if isinstance(node, dict):
            node[f"{last}s"] = node.pop(last)
        case 1 if isinstance(node, list):
            node.append(node[last])
        case 2:
            del node[last]
        case _:
            old = node[last]
            others = [None, True, -1, 0, 7, 1e9, "x", "y", "", [], {}, [["x"], []], [["y"], ["x"]]]
            others = [other for other in others if json.dumps(other) != json.dumps(old)]
            node[last] = others[rng.integers(len(others))]
    return document


def mangled(text: str, rng: np.random.Generator) -> bytes:
    """Text that was cut off, or in which bytes were lost, changed or doubled."""
    raw = text.encode()
    at = int(rng.integers(1, len(raw) - 1))
    length = int(rng.integers(1, 40))
    match rng.integers(4):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + raw[at + length :]
        case 2:
            return raw[:at] + bytes(rng.integers(0, 256, length, dtype=np.uint8)) + raw[at + length :]
        case _:
            return raw[:at] + raw[at : at + length] + raw[at:]


def says(raw: bytes, document: Any) -> bool:
    """Whether a text still says the same: a digit that no double can hold is no change."""
    try:
        return bool(json.loads(raw) == document)
    except ValueError:
        return False


def test_two_hundred_mutations_are_refused(mesh: Mesh, text: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "bad.json"
    document = json.loads(text)
    mutations = [
        mangled(text, rng) if number % 2 else json.dumps(edited(document, rng)).encode() for number in range(220)
    ]
    wrong = [raw for raw in mutations if not says(raw, document)][:200]
    assert len(wrong) == 200
    accepted = []
    for raw in wrong:
        path.write_bytes(raw)
        try:
            Plan.load(path)
        except PlanMismatchError as error:
            assert str(error).startswith(str(path)), error
        else:
            accepted.append(raw)
    assert not accepted


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: {**d, "version": 0}, f"has plan format 0, this version reads {PLAN_VERSION}: plan again"),
        (lambda d: {**d, "version": PLAN_VERSION + 1}, f"has plan format {PLAN_VERSION + 1}"),
        (lambda d: {**d, "function": "other"}, r"was edited or damaged since it was saved \(its checksum differs\)"),
        (lambda d: {k: v for k, v in d.items() if k != "checksum"}, "was edited or damaged since it was saved"),
        (lambda d: [d], "is not a plan that this version can read: it has no version"),
        (lambda d: {}, "is not a plan that this version can read: it has no version"),
    ],
)
def test_what_is_said(text: str, change: Any, match: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(change(json.loads(text))))
    with pytest.raises(PlanMismatchError, match=match):
        Plan.load(tmp_path / "bad.json")


def test_order_and_spacing_do_not_matter(text: str, tmp_path: Path) -> None:
    (tmp_path / "pretty.json").write_text(json.dumps(json.loads(text), indent=2, sort_keys=True))
    assert Plan.load(tmp_path / "pretty.json").function == "product"


OTHERS: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...]]] = {
    "code": (lambda w, x: jnp.tanh(x @ w) + 1, {}, (W, X)),
    "shape": (product, {}, (W, X[:32])),
    "type": (product, {}, (W.astype("bfloat16"), X)),
    "donation": (product, {"donate_argnums": 0}, (W, X)),
    "budget": (product, {"memory_budget": 64}, (W, X)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_foreign_plans_never_run(mesh: Mesh, text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    fn, options, args = OTHERS[what]
    with pytest.raises(AutoshardError, match=r"^the plan of 'product' .*plan again"):
        autoshard(fn, mesh, plan=tmp_path / "plan.json", **options)(*args)


@pytest.mark.parametrize(
    ("shape", "names"), [((2, 4), ("x", "y")), ((4, 2), ("y", "x")), ((8,), ("x",)), ((4, 2), ("a", "b"))]
)
def test_other_meshes_are_refused(text: str, shape: Any, names: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanMismatchError, match=r"the plan of 'product' is for a mesh \{'x': 4, 'y': 2\}, this one is"):
        autoshard(product, jax.make_mesh(shape, names), plan=tmp_path / "plan.json")(W, X)
