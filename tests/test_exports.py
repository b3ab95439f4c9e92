"""The public surface is listed once: `__all__`, and everything that is visible."""

import importlib
from types import ModuleType

import pytest

from tests.helpers import run_python

MODULES = ["autoshard", "autoshard.costs", "autoshard.solver"]


def visible(module: ModuleType) -> list[str]:
    names = {name for name in dir(module) if not name.startswith("_")}
    return sorted(name for name in names if not isinstance(getattr(module, name), ModuleType))


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_is_what_is_visible(name: str) -> None:
    module = importlib.import_module(name)
    constants_then_classes_then_functions = sorted(
        set(module.__all__), key=lambda public: (not public.isupper(), not public[0].isupper(), public)
    )
    assert module.__all__ == constants_then_classes_then_functions
    assert visible(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_public_objects_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    silent = [
        public
        for public in module.__all__
        if callable(getattr(module, public)) and not (getattr(module, public).__doc__ or "").strip()
    ]
    assert not silent


def test_the_names_that_tools_rely_on() -> None:
    fixed = {
        "autoshard": {"Plan", "audit", "autoshard", "calibrate"},
        "autoshard.costs": {
            "MeshModel",
            "ShardingSpec",
            "communication_resharding_cost_vector",
            "memory_resharding_cost_vector",
            "plan_resharding",
        },
        "autoshard.solver": {"Problem", "check_solution", "load_iopddl", "solve"},
    }
    missing = {module: names - set(importlib.import_module(module).__all__) for module, names in fixed.items()}
    assert not any(missing.values()), missing


@pytest.mark.parametrize("module", ["autoshard", "autoshard.costs", "autoshard.solver"])
def test_importing_loads_no_jax(module: str) -> None:
    assert run_python(f"import sys, {module}; print('jax' in sys.modules)") == "False"
