"""Who may import whom: read from the source, held here, so that the house keeps its shape."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "dgen"
FILES = sorted(PACKAGE.rglob("*.py"))

ABOVE = ("cli", "bench", "batch", "chat", "output", "engine", "generator", "job")
FORBIDDEN = {
    # room: dgen rooms that it must not import
    "sampler": (*ABOVE, "denoiser", "checkpoint", "prompt", "vocabulary", "settings"),
    "denoiser": (*ABOVE, "sampler", "checkpoint", "prompt", "vocabulary", "settings"),
    "engine": (
        "cli",
        "bench",
        "batch",
        "chat",
        "output",
        "generator",
        "job",
        "checkpoint",
        "prompt",
        "vocabulary",
        "settings",
    ),
    "output": (
        *("cli", "bench", "batch", "chat", "job", "denoiser", "sampler", "generator", "checkpoint", "prompt"),
    ),
    "bench": ("cli",),
    "chat": ("cli", "bench", "batch"),
    "checkpoint": (*ABOVE, "denoiser", "sampler"),
    "prompt": (*ABOVE, "denoiser", "sampler"),
    "vocabulary": (*ABOVE, "denoiser", "sampler"),
    "generator": ("cli", "bench", "batch", "chat"),
    "job": ("cli", "bench", "batch", "chat", "generator", "checkpoint", "denoiser", "sampler"),
    "batch": ("cli", "bench", "chat", "denoiser", "sampler", "checkpoint", "generator"),
}
STANDARD_LIBRARY_ONLY = ("errors", "settings", "layers", "engine/events", "engine/request")
HOMES = {
    "triton": ("sampler", "denoiser/kernels"),
    "transformers": ("checkpoint", "prompt", "denoiser"),
    "typer": ("cli",),
    "rich": ("cli", "output/live"),
}


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Dotted names imported anywhere in a file, outside `if TYPE_CHECKING`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if top_level_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("path", FILES, ids=place)
def test_no_room_imports_what_lies_above_it(path):
    room = place(path).split("/")[0]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "dgen" and len(parts) > 1:
            assert parts[1] not in FORBIDDEN.get(room, ()), f"{place(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_each_library_is_imported_in_its_own_rooms_only(path):
    for name in imports(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or place(path).startswith(homes), f"{place(path)} imports {name}"


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_plain_data_imports_the_standard_library_alone(name):
    plain = {n.replace("/", ".") for n in STANDARD_LIBRARY_ONLY}
    for found in imports(PACKAGE / f"{name}.py"):
        root = found.split(".")[0]
        ours = root == "dgen" and any(found.removeprefix("dgen.").startswith(p) for p in plain)
        assert ours or root in sys.stdlib_module_names, f"{name} imports {found}"


@pytest.mark.parametrize("path", FILES, ids=place)
def test_only_the_command_line_prints_and_no_import_reads_the_environment(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    room = place(path).split("/")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            pytest.fail(f"{place(path)}:{node.lineno} prints")
        if isinstance(node, ast.Attribute) and node.attr == "basicConfig":
            pytest.fail(f"{place(path)}:{node.lineno} sets logging up")
    if room in ("sampler", "denoiser", "engine", "output"):
        for node in tree.body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert "environ" not in ast.dump(node), (
                    f"{place(path)}:{node.lineno} reads the environment at import"
                )


@pytest.mark.parametrize("path", FILES, ids=place)
def test_files_stay_one_idea_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 320, (
        f"{place(path)} holds more than one idea"
    )


@pytest.mark.parametrize(
    "statement",
    ["import dgen", "import dgen.cli.app", "import dgen.batch.runner", "import dgen.settings, dgen.errors"],
)
def test_importing_dgen_or_its_command_line_does_not_import_torch(statement):
    heavy = "('torch', 'transformers', 'triton')"
    code = f"import sys; {statement}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
