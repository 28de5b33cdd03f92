"""The folders, the layers and the records are what is said of them."""

import ast
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "qbayes"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
WIDEST = 15


def contracts() -> list[dict[str, object]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["tool"]["importlinter"]["contracts"]


def layers(name: str) -> list[set[str]]:
    (found,) = [contract["layers"] for contract in contracts() if contract["name"] == name]
    assert isinstance(found, list)
    return [{part.strip(" ()") for part in layer.split("|")} for layer in found]


def test_contributing_shows_the_layers_of_the_linter() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (cli → .*)$", text, re.MULTILINE)
    shown = [{part.strip() for part in layer.split(",")} for layer in line.split("→")]
    assert shown == layers("imports look down only")


def test_every_package_has_a_layer() -> None:
    named = set().union(*layers("imports look down only"))
    parts = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert named == parts | modules


def test_no_folder_is_wider_than_one_can_read() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    wide = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in wide.items() if count > WIDEST} == {}


def test_decisions_are_in_order_and_called_by_their_number() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert numbers == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    titles = [path.read_text(encoding="utf-8").partition("\n")[0] for path in DECISIONS]
    assert [title[:7] for title in titles] == [f"# {number} " for number in numbers]
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [path.name for path in DECISIONS if f"decisions/{path.name}" not in navigation] == []


def test_what_the_source_says_of_modules_is_there() -> None:
    """A text that names ``qbayes.folder.module`` names one that exists."""
    texts = [*SOURCE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    wrong = []
    for path in texts:
        for name in re.findall(r"`(qbayes(?:\.[a-z_0-9]+)+)`", path.read_text(encoding="utf-8")):
            parts = name.split(".")[1:]
            known = any(
                (SOURCE.joinpath(*parts[:end]).with_suffix(".py")).exists()
                or SOURCE.joinpath(*parts[:end], "__init__.py").exists()
                for end in (len(parts), len(parts) - 1)
                if end
            )
            if not known and len(parts) > 1:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []


def test_the_picture_of_the_architecture_is_that_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "draw_architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FIGURE.read_text(encoding="utf-8") == module.draw()


def test_the_files_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    assert len(named) > 20
    assert [name for name in named if not (SOURCE / name).exists() and not (ROOT / name).exists()] == []


def _imports(path: Path) -> list[tuple[str, str]]:
    """The names that a file, or the Python blocks of a page, take from the package."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if path.suffix == ".md" else [text]
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    return [
        (str(node.module), alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "qbayes"
        for alias in node.names
    ]


def test_what_benchmarks_examples_and_pages_import_exists() -> None:
    """No test runs all of these, and pyright reads the sources alone: a moved module broke two benchmarks."""
    paths = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    paths += [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    taken = [(path, module, name) for path in paths for module, name in _imports(path)]
    assert len(taken) > 100
    for path, module, name in taken:
        holder = importlib.import_module(module)
        if not hasattr(holder, name):
            importlib.import_module(f"{module}.{name}")
        assert hasattr(holder, name), f"{path.relative_to(ROOT)}: {module} has no {name}"
