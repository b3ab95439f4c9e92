"""Eight virtual CPU devices, 32-bit values, repeatable examples; set before jax is imported.

Type promotion stays JAX's standard one: the programs that autoshard plans mix dtypes as their authors please.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

DEVICES = "--xla_force_host_platform_device_count=8"
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "0")

settings.register_profile("everyday", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)  # pytest --hypothesis-profile=explore
settings.load_profile("everyday")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ anew; read the diff in review")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` asserts that `text` is what tests/golden/`name` holds."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"tests/golden/{name} is missing: run pytest --update-golden and review it"
        assert text == path.read_text(), f"tests/golden/{name} differs: run pytest --update-golden and read the diff"

    return check
