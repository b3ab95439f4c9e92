"""One distribution, three folders: what is built is what is in the repository, no more and no less."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.helpers import ROOT, run_python

LAYERS = ["costs", "solver"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = """
import setuptools.build_meta as backend, sys
print(getattr(backend, "build_" + sys.argv[1])(sys.argv[2]))
"""


def build(kind: str, source: Path, out: Path) -> Path:
    """Build `kind` (wheel or sdist) of the tree at `source`, as any installer would."""
    command = [sys.executable, "-c", BUILD, kind, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.strip().splitlines()[-1]


def unpack(sdist: Path, folder: Path) -> Path:
    """The one folder that an sdist holds."""
    shutil.unpack_archive(sdist, folder)
    (source,) = folder.iterdir()
    return source


def members(wheel: Path) -> set[str]:
    """Files of the wheel, its metadata folder left out."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def expected_members() -> set[str]:
    """Every module of the three folders where it is imported from, and the typing marker."""
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "autoshard").glob("**/*.py")}
    for layer in LAYERS:
        modules |= {f"autoshard/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / layer).glob("**/*.py")}
    return modules | {"autoshard/py.typed"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, so that a build leaves nothing behind in it."""
    copy = tmp_path_factory.mktemp("source") / "autoshard"
    unwanted = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=unwanted)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


def test_package_list_equals_the_folders() -> None:
    folders = {"autoshard": ROOT / "autoshard"} | {f"autoshard.{layer}": ROOT / layer for layer in LAYERS}
    packages = {
        ".".join([name, *path.parent.relative_to(folder).parts])
        for name, folder in folders.items()
        for path in folder.glob("**/__init__.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


@pytest.mark.parametrize("layer", LAYERS)
def test_links_let_tools_see_what_is_imported(layer: str) -> None:
    link = ROOT / "autoshard" / layer
    assert link.is_symlink()
    assert link.readlink() == Path("..") / layer


@pytest.mark.parametrize("layer", LAYERS)
def test_a_second_identity_of_a_layer_is_refused(layer: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
try:
    import {layer}
except ImportError as error:
    print(error)
"""
    assert f"autoshard.{layer}" in run_python(code)


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    assert members(wheel) == expected_members()


def test_wheel_metadata_matches_the_project(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert all(f"Provides-Extra: {extra}" in metadata for extra in PROJECT["project"]["optional-dependencies"])
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


def test_wheel_works_from_a_folder_without_sources(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import autoshard.costs, autoshard.solver, autoshard; print(autoshard.costs.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "autoshard" / "costs" / "__init__.py"), done.stderr


def test_sdist_holds_what_a_packager_needs(sdist: Path, tmp_path: Path) -> None:
    source = unpack(sdist, tmp_path)
    for needed in ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/conftest.py", ".ci/run"):
        assert (source / needed).exists(), needed


def test_sdist_and_repository_build_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    source = unpack(sdist, tmp_path / "source")
    assert members(build("wheel", source, tmp_path)) == members(wheel)
