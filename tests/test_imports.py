"""The arrow between the folders: the README's map has them in its order, and imports go up that table alone."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
APART = {
    ("backends/native", "backends/jax"),
    ("backends/iree", "backends/jax"),
    ("backends/serve", "backends/reports"),
}
"""Folders of which the first may not import from the second, though that stands above it."""


def rows() -> list[str]:
    """The folders of the map, from top to bottom; those of one row's pattern `backends/*.py` are `backends`."""
    table = README[README.index("\n| folder |") :].split("\n\n")[0]
    return [row.removesuffix("/").removesuffix("/*.py") for row in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)]


def modules() -> Iterator[PurePosixPath]:
    """Every module of the package, from the root on, but for the face at the root itself."""
    for package in ROOT.glob("*/__init__.py"):
        if package.parent.name != "tests":
            yield from (PurePosixPath(path.relative_to(ROOT)) for path in package.parent.rglob("*.py"))


def home(module: PurePosixPath) -> str:
    """The row that a module or a folder belongs to: the longest that it lies in."""
    found = [row for row in rows() if module.is_relative_to(row)]
    assert found, f"{module} is in no folder of the README's map"
    return max(found, key=len)


def imported(module: PurePosixPath) -> Iterator[tuple[int, PurePosixPath]]:
    """What a module imports of the package, wherever in it, with the lines."""
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield from ((node.lineno, folder / alias.name) for alias in node.names)


def is_allowed(importer: str, imports: str) -> bool:
    order = rows()
    return order.index(imports) <= order.index(importer) and (importer, imports) not in APART


def test_imports_go_up_the_map() -> None:
    wrong = [
        f"{module}:{line} imports {name}"
        for module in modules()
        for line, name in imported(module)
        if not is_allowed(home(module), home(name))
    ]
    assert not wrong


def test_every_folder_has_a_row_and_is_installed() -> None:
    assert {home(module) for module in modules()} == set(rows())
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    found = {".".join(("ggufc", *module.parent.parts)) for module in modules()}
    assert {"ggufc", *found} == set(installed)


@pytest.mark.parametrize(
    ("importer", "imports", "allowed"),
    [
        ("cli", "frontend", True),
        ("frontend", "graph", False),
        ("backends/iree", "backends/native", True),
        ("backends/iree", "backends/jax", False),
        ("backends/bundles", "backends/sessions", False),
    ],
)
def test_the_rule_itself(importer: str, imports: str, allowed: bool) -> None:
    assert is_allowed(importer, imports) is allowed
