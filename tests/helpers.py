"""What several test files share: where the package lies, its modules as syntax trees, a fresh interpreter."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import autoshard

ROOT = Path(__file__).parents[1]
PACKAGE = Path(autoshard.__file__).parent


@dataclass(frozen=True)
class Source:
    """One module of the installed package: `name` is its file below autoshard/, such as `costs/mesh.py`."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """The module's syntax tree."""
        return ast.parse(self.path.read_text(), filename=str(self.path))

    @property
    def layer(self) -> str:
        """`costs`, `solver` or `autoshard`."""
        first = self.name.split("/")[0]
        return first if first in {"costs", "solver"} else "autoshard"

    def imports(self) -> Iterator[str]:
        """Every imported module in full, also from inside functions; relative ones resolved."""
        package = ["autoshard", *self.name.split("/")[:-1]]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) + 1 - node.level] if node.level else []
                yield ".".join([*base, *([node.module] if node.module else [])])


def sources(layer: str | None = None) -> list[Source]:
    """The package's modules, of one layer or all; links are followed once."""
    found = [
        Source(path.relative_to(PACKAGE).as_posix(), path)
        for folder in ("", "rules", "costs", "solver")
        for path in sorted((PACKAGE / folder).glob("*.py"))
    ]
    return [source for source in found if layer in (None, source.layer)]


def run_python(code: str) -> str:
    """Standard output of `code` in a fresh interpreter that sees this package; fails loudly with its stderr."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
