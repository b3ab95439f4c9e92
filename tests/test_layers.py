"""The house has three layers: costs and solver know numbers only, and stand alone."""

import ast
import sys

import pytest

from tests.helpers import Source, run_python, sources

ALLOWED = {"costs": {"numpy", "pydantic"}, "solver": {"numpy", "ortools"}}
JAXPR_MAKERS = {"make_jaxpr", "trace", "trace_to_jaxpr", "trace_to_jaxpr_dynamic", "trace_to_jaxpr_nounits"}


def test_every_layer_has_sources() -> None:
    assert {source.layer for source in sources()} == {"autoshard", "costs", "solver"}


@pytest.mark.parametrize("source", sources("costs") + sources("solver"), ids=lambda source: source.name)
def test_lower_layers_import_only_what_they_may(source: Source) -> None:
    own = f"autoshard.{source.layer}"
    foreign = {
        name
        for name in source.imports()
        if name != own
        and not name.startswith(f"{own}.")
        and name.split(".")[0] not in ALLOWED[source.layer] | sys.stdlib_module_names
    }
    assert not foreign


@pytest.mark.parametrize("source", sources("costs") + sources("solver"), ids=lambda source: source.name)
def test_lower_layers_import_their_own_relatively(source: Source) -> None:
    absolute = [
        ast.unparse(node)
        for node in ast.walk(source.tree)
        if (isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("autoshard"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("autoshard") for alias in node.names))
    ]
    assert not absolute


def test_one_file_touches_ortools() -> None:
    users = [source.name for source in sources() if any(name.split(".")[0] == "ortools" for name in source.imports())]
    assert users == ["solver/backend.py"]


def test_only_trace_emit_and_apart_make_jaxprs() -> None:
    calls = [
        (source.name, node.func.attr)
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    makers = {name for name, function in calls if function in JAXPR_MAKERS}
    assert "trace.py" in makers
    assert makers <= {"trace.py", "emit.py", "apart.py", "api.py"}  # api.py hands on `.trace` of the function it jitted


BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not there")

sys.meta_path.insert(0, Block())
import {module}
print(all(name in dir({module}) for name in {module}.__all__) and len({module}.__all__) > 0)
"""


@pytest.mark.parametrize(
    ("module", "blocked"),
    [
        ("autoshard.costs", ("jax", "jaxlib", "ortools", "rich")),
        ("autoshard.solver", ("jax", "jaxlib", "pydantic", "rich")),
    ],
)
def test_lower_layers_work_where_jax_cannot_be_imported(module: str, blocked: tuple[str, ...]) -> None:
    assert run_python(BLOCKED.format(module=module, blocked=blocked)) == "True"
