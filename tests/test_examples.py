"""The main example at a small size: it trains, prints its report, and notices when the two runs part; the others exist.

The library examples compare two runs themselves; .ci/run executes them by the commands of the README.
"""

import dataclasses
import importlib.util
import json
import math
import re
import sys
import tomllib
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

from autoshard import autoshard
from tests.autoshard import two_processes
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up, examples one another
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load("train_gpt")


def small(example: ModuleType, **changes: object) -> object:
    sizes = {"layers": 2, "width": 64, "heads": 4, "hidden": 128, "context": 16, "batch": 8}
    return dataclasses.replace(example.Config(**sizes), **changes)


def test_the_model_is_as_large_as_the_example_says(example: ModuleType) -> None:
    params = jax.eval_shape(lambda: example.init(example.Config()))["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == pytest.approx(12.9e6, rel=0.01)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sharded_and_unsharded_runs_agree(
    example: ModuleType, dtype: object, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = example.compare(small(example, dtype=dtype), example.parse_mesh("4x2"), steps=3)
    report, losses = capsys.readouterr().out.split("step   unsharded")
    assert faults == []
    assert "train_step on 8 devices (x=4, y=2)" in report and "state[*]" in report
    assert [line.split()[0] for line in losses.splitlines()[1:4]] == ["1", "2", "3"]


def skeleton(report: str) -> list[str]:
    """What of a report does not depend on the plan: who it is of, titles and headers."""
    first, *blocks = report.strip().split("\n\n")
    titles = [re.split("[:,]", block.splitlines()[0])[0] for block in blocks]
    headers = [" ".join(block.splitlines()[1].split()) for block in blocks if block.splitlines()[1].startswith("  ")]
    return [first.splitlines()[0], *titles, *headers]


def test_the_readme_shows_a_report_as_it_prints(example: ModuleType) -> None:
    shown = re.search(r"^## What it prints$.*?^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert shown is not None
    config = example.Config()
    state = jax.eval_shape(lambda: example.init(config))
    tokens = jax.ShapeDtypeStruct((config.batch, config.context + 1), jnp.int32)
    step = autoshard(example.make_train_step(config), example.parse_mesh("4x2"), donate_argnums=0)
    printed = step.plan(state, tokens).report().text(width=100)
    assert skeleton(shown[1]) == skeleton(printed)
    assert max(map(len, shown[1].splitlines())) <= 100


def test_two_processes_train_as_one_does(example: ModuleType) -> None:
    config = example.Config(**two_processes.SIZES, dtype=jnp.float32)
    ended = two_processes.run_two()
    assert all(done.returncode == 0 for done in ended), "".join(done.stderr for done in ended)
    first, second = (json.loads(done.stdout.splitlines()[-1]) for done in ended)
    assert first == second
    assert first["parts"] == [[config.vocabulary // 4, config.width]] * 4, "the state is split over both"
    losses, _ = example.train(jax.jit(example.make_train_step(config)), config, two_processes.STEPS)
    assert first["losses"] == pytest.approx(losses, rel=1e-5)


def test_training_learns(example: ModuleType) -> None:
    config = small(example, dtype=jnp.float32)
    losses, _ = example.train(jax.jit(example.make_train_step(config)), config, 40)
    assert losses[0] == pytest.approx(math.log(config.vocabulary), rel=0.05)
    assert sum(losses[-5:]) / 5 < losses[0] - 1


def test_a_disagreement_is_reported(example: ModuleType) -> None:
    exact, rough = small(example, dtype=jnp.float32), small(example, dtype=jnp.bfloat16)
    assert example.disagreements(exact, [5.0, 4.0], [5.0, 3.0]) == []
    assert len(example.disagreements(exact, [5.0, 4.0], [5.0 + 1e-4, 4.0])) == 1
    assert example.disagreements(rough, [5.0, 4.0], [5.01, 4.01]) == []
    assert len(example.disagreements(rough, [5.0, 4.0], [5.0, 4.2])) == 1
    assert len(example.disagreements(rough, [5.0, 4.0], [5.0, float("nan")])) == 1


def test_every_library_example_is_run_by_a_command_of_the_readme() -> None:
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)  # .ci/run runs them as they stand
    run = {name for command in commands for name in re.findall(r"examples/(\w+)\.py", command)}
    programs = {
        path.stem for path in (ROOT / "examples").glob("*.py") if 'if __name__ == "__main__"' in path.read_text()
    }
    assert run == programs
    extras = {extra for command in commands for extra in re.findall(r"\[(\w+)\]", command)}
    assert extras <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_losses_that_part_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    comparing = load("comparing")
    plan = autoshard(lambda x: 2 * x, comparing.device_mesh()).plan(jnp.ones((64, 64)))
    assert any(plan.arguments[0].spec)
    assert comparing.report("same", [1.0, 0.5], [1.0, 0.5], plan)
    assert not comparing.report("other", [1.0, 0.5], [1.0, 0.501], plan)
    assert not comparing.report("other", [1.0, 0.5], [1.0, math.nan], plan)
    whole = autoshard(lambda x: 2 * x, comparing.device_mesh()).plan(jnp.ones(()))
    assert not comparing.report("unsharded", [1.0], [1.0], whole)
    assert "THEY DIFFER" in capsys.readouterr().out
