"""The habits that a reader relies on and a linter does not know."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.helpers import Source, sources

UNIT = re.compile(r"(^|_)(s|s2|seconds|bytes|nbytes|flops|fraction|ratio|scale)(_per_[a-z]+)?$")
EVERY = pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)


def classes(source: Source) -> Iterator[ast.ClassDef]:
    yield from (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))


def dataclass_arguments(node: ast.ClassDef) -> dict[str, str] | None:
    """The keywords of the class's @dataclass decorator, or None if it is no dataclass."""
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(call).split(".")[-1] == "dataclass":
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {keyword.arg or "": ast.unparse(keyword.value) for keyword in keywords}
    return None


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


@EVERY
def test_behaviour_is_not_chosen_by_hasattr(source: Source) -> None:
    calls = [node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.Name) and node.id == "hasattr"]
    assert not calls, f"{source.name} lines {calls}"


@EVERY
def test_public_values_are_frozen_or_say_that_they_change(source: Source) -> None:
    silent = []
    for node in classes(source):
        arguments = dataclass_arguments(node)
        told = node.name.startswith("_") or "in place" in f"{ast.get_docstring(node)} {ast.get_docstring(source.tree)}"
        if arguments is not None and arguments.get("frozen") != "True" and not told:
            silent.append(node.name)
    assert not silent, f"{source.name}: {silent}"


@EVERY
def test_boundary_models_are_frozen_and_forbid_unknown_fields(source: Source) -> None:
    loose = []
    for node in classes(source):
        if "BaseModel" not in bases(node):
            continue
        settings = [ast.unparse(item) for item in node.body if "model_config" in ast.unparse(item).split("=")[0]]
        if not settings or not all(word in settings[0] for word in ("frozen=True", "strict=True", "forbid")):
            loose.append(node.name)
    assert not loose, f"{source.name}: {loose}"


def test_only_abstract_classes_are_subclassed() -> None:
    ours = {node.name: node for source in sources() for node in classes(source)}
    concrete = {
        f"{name}({base})"
        for name, node in ours.items()
        for base in bases(node)
        if base in ours and not base.startswith("Abstract") and not base.endswith("Error") and not is_bare(ours[base])
    }
    assert not concrete, "a base class is abstract and says so in its name, or holds settings only"


def is_bare(node: ast.ClassDef) -> bool:
    """Whether a class holds nothing but a docstring and pydantic's settings."""
    return all(isinstance(item, ast.Expr) or "model_config" in ast.unparse(item) for item in node.body)


@pytest.mark.parametrize("source", sources("costs"), ids=lambda source: source.name)
def test_numbers_carry_their_unit_in_the_name(source: Source) -> None:
    bare = [
        f"{node.name}.{field.target.id}"
        for node in classes(source)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if "float" in ast.unparse(field.annotation) and not UNIT.search(field.target.id)
    ]
    assert not bare, f"{source.name}: {bare}"


@EVERY
def test_a_module_says_what_it_is(source: Source) -> None:
    assert ast.get_docstring(source.tree), source.name


@EVERY
def test_nothing_is_printed_by_a_library(source: Source) -> None:
    calls = [
        node.lineno
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls, f"{source.name} lines {calls}"
