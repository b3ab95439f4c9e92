"""What the documents say exists, runs and is complete."""

import doctest
import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path
from types import FunctionType, ModuleType

import nbformat
import pytest

import autoshard
from autoshard import Plan
from autoshard.api import Autosharded
from tests.helpers import ROOT

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = sorted(found.name for found in pkgutil.walk_packages(autoshard.__path__, "autoshard."))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAIN_NAMES = ["autoshard.costs.MeshModel", "autoshard.costs.ShardingSpec", "autoshard.costs.plan_resharding"]
MAIN_NAMES += ["autoshard.solver.Problem", "autoshard.solver.solve", "autoshard.autoshard"]


def section(text: str, title: str) -> str:
    """The part of a Markdown text under a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found, f"no heading {title!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def shell_commands(text: str) -> list[str]:
    return [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0, f"{outcome.failed} of {outcome.attempted} examples failed; pytest -s shows them"


@pytest.mark.parametrize("name", ["autoshard", "autoshard.costs", "autoshard.solver"])
def test_public_functions_have_an_example(name: str) -> None:
    module = importlib.import_module(name)
    public = [getattr(module, each) for each in module.__all__]
    functions = [each for each in public if inspect.isfunction(each)]
    functions += [each for of in (Plan, Autosharded) if name == "autoshard" for each in methods(of)]
    parser = doctest.DocTestParser()
    assert not [each.__qualname__ for each in functions if not parser.get_examples(each.__doc__ or "")]


def methods(of: type) -> list[FunctionType]:
    """The public methods that a class defines for its users: those with arguments and a meaning of their own."""
    internal = {"bind", "model_post_init"}
    found = [getattr(of, name) for name in vars(of) if not name.startswith("_") and name not in internal]
    return [each for each in found if inspect.isfunction(each)]


@pytest.mark.parametrize("name", MAIN_NAMES)
def test_main_names_have_an_example(name: str) -> None:
    module, _, public = name.rpartition(".")
    found = doctest.DocTestParser().get_examples(getattr(importlib.import_module(module), public).__doc__ or "")
    assert found


@pytest.mark.parametrize("name", ["autoshard", "autoshard.costs", "autoshard.solver"])
def test_api_page_lists_every_public_name(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    listed = re.findall(r"^\| `(\w+)", section(section(README, "API"), f"`{name}`"), re.MULTILINE)
    assert sorted(listed) == sorted(module.__all__)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_files_that_a_document_names_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|md|ipynb))`", text)
    named += [target for target in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("recipe", ["Add a rule", "Add a collective"])
def test_recipes_name_the_tests_that_guard_their_steps(recipe: str) -> None:
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", section(CONTRIBUTING, recipe), re.MULTILINE | re.DOTALL)
    assert len(steps) >= 3
    assert not [step for step in steps if not re.search(r"`tests/[^`]+`", step)]


def test_readme_commands_exist() -> None:
    commands = shell_commands(section(README, "Two commands"))
    assert len(commands) == 2
    extras = {extra for command in commands for extra in re.findall(r"\.\[(\w+)\]", command)}
    assert extras <= set(PROJECT["project"]["optional-dependencies"])
    scripts = {path for command in commands for path in re.findall(r"[\w/]+\.py\b", command)}
    assert scripts and all((ROOT / path).exists() for path in scripts)


def test_changelog_tells_of_this_version() -> None:
    assert section(CHANGELOG, "[Unreleased]") is not None
    assert re.search(rf"^## \[(Unreleased|{re.escape(PROJECT['project']['version'])})\]", CHANGELOG, re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stripped_lessons_that_end_in_a_claim(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert len(notebook.cells) <= 60
    assert len(notebook.cells) - len(code) >= len(notebook.cells) // 3, "about half of a lesson is prose"
    assert "assert " in code[-1].source
