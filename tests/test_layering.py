"""Imports only go down. The table is docs/design.md's; lazy and TYPE_CHECKING imports count like any other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "baton"

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "kernels": {"core"},
    "obs": {"core"},
    "wire": {"core"},
    "cache": {"core"},
    "text": {"core"},
    "web": {"core", "obs", "wire"},
    "layers": {"core", "kernels"},
    "sched": {"core", "obs", "cache"},
    "transfer": {"core", "obs", "wire", "cache"},
    "models": {"core", "kernels", "cache", "text", "layers"},
    "server": {"core", "obs", "wire", "text", "web"},
    "router": {"core", "obs", "wire", "web"},
    "bench": {"core", "obs"},
    "engine": {"core", "kernels", "obs", "wire", "cache", "text", "layers", "sched", "transfer", "models"},
    "cluster": {"core", "obs", "wire", "text", "web", "server", "router", "engine"},
    "cli": {"core", "obs", "text", "wire", "web", "server", "router", "bench", "engine", "cluster"},
}
TORCH_FREE = [
    *("core", "obs", "wire", "cache", "text", "web", "sched", "transfer"),
    *("server", "router", "bench", "cluster"),
]
TORCH_FREE_MODULES = [
    "baton",
    "baton.engine.stub_runner",
    "baton.engine.engine",
    "baton.engine.executor",
    "baton.engine.process",
    "baton.engine.stub_process",
    "baton.cli.main",
]
ONE_FILE_EACH = ["xgrammar", "gguf", "safetensors", "zmq", "nixl", "prometheus_client", "opentelemetry", "matplotlib"]
ONE_FILE_A_PACKAGE = ["aiohttp"]


def imported_modules(source: str) -> Iterator[str]:
    """Every module an import statement names, wherever it stands in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(package: str, source: str) -> list[str]:
    """Imports of Baton packages that `package` may not have."""
    found = []
    for module in imported_modules(source):
        parts = module.split(".")
        if parts[0] == "baton" and len(parts) > 1 and parts[1] in ALLOWED:
            target = parts[1]
            if target != package and target not in ALLOWED[package]:
                found.append(module)
    return found


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def test_the_check_sees_bad_imports() -> None:
    assert violations("cache", "from baton.sched.scheduler import Scheduler")
    assert violations("core", "def f():\n    import baton.cache.pool")
    assert violations("sched", "if TYPE_CHECKING:\n    from baton import engine")
    assert not violations("sched", "from baton.cache.pool import BlockPool\nimport baton.core.step")


def test_every_package_is_in_the_table() -> None:
    packages = {package_of(path) for path in files() if path.parent != SOURCE}
    assert packages <= set(ALLOWED)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    if path.parent == SOURCE:
        return
    assert violations(package_of(path), path.read_text()) == []


def users_of(library: str) -> list[Path]:
    """Files that import it."""
    return [
        path
        for path in files()
        if any(module.split(".")[0] == library for module in imported_modules(path.read_text()))
    ]


@pytest.mark.parametrize("library", ONE_FILE_EACH)
def test_library_stays_in_one_file(library: str) -> None:
    users = users_of(library)
    assert len(users) <= 1, users


@pytest.mark.parametrize("library", ONE_FILE_A_PACKAGE)
def test_library_stays_in_one_file_of_a_package(library: str) -> None:
    users = users_of(library)
    assert len(users) == len({package_of(path) for path in users}), users


def test_torch_free_packages_import_without_torch() -> None:
    modules = [
        ".".join(("baton", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in files()
        if package_of(path) in TORCH_FREE
    ]
    program = (
        "import sys, importlib\n"
        "sys.modules['torch'] = None\n"
        f"for name in {modules + TORCH_FREE_MODULES!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
