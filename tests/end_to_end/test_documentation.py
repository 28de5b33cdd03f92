"""The documentation is true: its code runs, what it shows is what comes out, its commands exist.

Fences say what happens to a block. ``python``: run, all blocks of a page in order in one namespace; with
``title="name.py"`` also written to that file first. ``sh``: run. ``bash``: not run, and its first line says
what it needs; its commands and options are checked all the same. ``text`` right behind a block that ran: its
output, compared word by word and number by number within wide bounds, since other machines round otherwise;
a line ``…`` stands for lines left out.

``QBAYES_UPDATE_DOCS=1 pytest tests/end_to_end/test_documentation.py`` writes the outputs anew.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import needs
from handmade.registries import kept_registries
from qbayes.cli import main
from qbayes.cli.app import app
from qbayes.cli.inputs import parse_settings
from qbayes.errors import QbayesError
from qbayes.export.targets.c import TEMPLATES
from qbayes.export.web.runtime_files import is_vendored
from qbayes.methods import METHODS, make_method
from qbayes.networks import NETWORKS
from qbayes.tasks import DATASETS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LANGUAGES = {"python", "sh", "bash", "text", "toml", "bibtex", "c"}
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
# the base of the errors that typer's parser raises, whichever click it stands on.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
DURATION = re.compile(r"\b\d+(\.\d+)? s\b")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w])")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, title, text, and where its text stands on the page."""

    language: str
    title: str
    body: str
    start: int
    end: int


def blocks_of(text: str) -> list[Block]:
    found: list[Block] = []
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        language = (match["info"].split() or [""])[0]
        found.append(
            Block(language, title[1] if title else "", match["body"], match.start("body"), match.end("body"))
        )
    return found


def commands_of(block: Block) -> list[list[str]]:
    """The command lines of a shell block as words; a backslash joins lines, ``#`` begins a comment."""
    lines = block.body.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_block(block: Block, namespace: dict[str, Any]) -> str:
    """Standard output and error of the block, together, as a terminal shows them."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        if block.language == "sh":
            for words in commands_of(block):
                assert words[0] == "qbayes", f"only qbayes is run in 'sh' blocks, not {words}"
                assert main(words[1:]) == 0, f"{words}\n{stream.getvalue()}"
        elif block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
            importlib.invalidate_caches()
            module = importlib.import_module(Path(block.title).stem)
            for name, member in vars(module).items():
                if name.startswith("test_") and callable(member):
                    member()
        else:
            exec(compile(block.body, "<documentation>", "exec"), namespace)
    return stream.getvalue()


def lines_of(text: str) -> list[str]:
    """Lines without what may differ: spaces, the length of rules, durations."""
    spaced = [" ".join(re.sub(r"─+", "─", DURATION.sub("# s", line)).split()) for line in text.splitlines()]
    return [line for line in spaced if line]


def same_line(shown: str, real: str) -> bool:
    """The same words, and numbers within 0.05 or a factor of 3 of each other."""
    if NUMBER.sub("#", shown) != NUMBER.sub("#", real):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(real), strict=True)
    return all(close(*(float(number.replace(",", "")) for number in pair)) for pair in pairs)


def close(shown: float, real: float) -> bool:
    return abs(shown - real) <= 0.05 or (shown * real > 0 and 1 / 3 <= shown / real <= 3)


def same_output(shown: str, real: str) -> bool:
    """Whether ``real`` is ``shown``, any number of lines taking the place of each line ``…``."""
    wanted, left = lines_of(shown), lines_of(real)
    while "…" in wanted:
        at = wanted.index("…")
        begin, wanted = wanted[:at], wanted[at + 1 :]
        if not same_lines(begin, left[:at]):
            return False
        left = left[at:]
        ahead = wanted.index("…") if "…" in wanted else len(wanted)
        places = range(len(left) - ahead + 1) if ahead else range(len(left), len(left) + 1)
        found = next((p for p in places if same_lines(wanted[:ahead], left[p : p + ahead])), None)
        if found is None:
            return False
        left = left[found:]
    return same_lines(wanted, left)


def same_lines(shown: list[str], real: list[str]) -> bool:
    return len(shown) == len(real) and all(map(same_line, shown, real))


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run in; modules imported from it, methods and ops registered there are forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    list(METHODS)
    monkeypatch.setattr(METHODS, "_members", dict(METHODS._members))
    before = set(sys.modules)
    with kept_registries():
        yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def outputs_of(blocks: list[Block]) -> Iterator[tuple[Block, Block | None, str]]:
    """Run a page: each block that runs, the output shown behind it, and the real one."""
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language in ("python", "sh"):
            real = run_block(block, namespace)
            yield block, after if after is not None and after.language == "text" else None, real


def runnable(page: Path) -> bool:
    return any(block.language in ("python", "sh") for block in blocks_of(page.read_text(encoding="utf-8")))


def short(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", list(filter(runnable, PAGES)), ids=short)
def test_page_runs_and_shows_what_comes_out(page: Path, empty_folder: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for extra in re.findall(r"^import (onnxruntime|openvino)$", text, re.MULTILINE):
        needs.package(extra)
    exports_page = any(b.language == "sh" and "--target web" in b.body for b in blocks_of(text))
    needs.require(is_vendored() or not exports_page, needs.WEB_RUNTIME)
    update = os.environ.get("QBAYES_UPDATE_DOCS", "") not in ("", "0")
    ran, written = 0, text
    for block, shown, output in outputs_of(blocks_of(text)):
        ran += 1
        real = "\n".join(line.rstrip() for line in output.splitlines() if line.strip())
        beside = shown is not None and text[block.end : shown.start].strip("`\n ") == "text"
        if update and beside and shown is not None and "…" not in lines_of(shown.body):
            written = written.replace(f"```text\n{shown.body}```", f"```text\n{real}\n```", 1)
        elif beside and shown is not None:
            assert same_output(shown.body, real), f"shown:\n{shown.body}\nreal:\n{real}"
    assert ran == len(re.findall(r"^```(?:python|sh)\b", text, re.MULTILINE)), "every block is run"
    if update:
        page.write_text(written, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_fence_is_of_a_known_kind(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert 2 * len(blocks) == len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)), "an odd fence"
    for block in blocks:
        assert block.language in LANGUAGES, f"a fence of {LANGUAGES}, not '{block.language}'"
        if block.language == "bash":
            assert block.body.startswith("# needs "), f"say what it needs:\n{block.body}"


def leaf_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``qbayes …`` names, and the words left for it."""
    command: Any = get_command(app)
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"no command '{rest[0]}' in {words}"
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def check_command(words: list[str]) -> None:
    """Raise unless ``qbayes`` or ``make`` knows the command, its options and the names in it."""
    if words[0] == "make":
        # a folder that is not ours is one that the page has exported.
        folder, goals = (ROOT / words[2], words[3:]) if words[1:2] == ["-C"] else (ROOT, words[1:])
        makefile = folder / "Makefile" if folder.is_dir() else TEMPLATES / "Makefile"
        targets = re.findall(r"^([\w-]+):", makefile.read_text(encoding="utf-8"), re.MULTILINE)
        assert {word for word in goals if "=" not in word} <= set(targets), words
    if words[0] != "qbayes":
        return
    command, rest = leaf_of(words)
    if "--help" in rest or "--version" in rest:
        return
    with command.make_context("qbayes", list(rest)) as context:
        given = context.params
    if "method" in given:
        make_method(given["method"], **parse_settings("--set", given["set_"] or []))
        assert given["network"] is None or ":" in given["network"] or given["network"] in NETWORKS, words
        assert given["task"].endswith(".npz") or given["task"].partition("/")[0] in DATASETS, words


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_shell_lines_name_what_exists(page: Path) -> None:
    for block in blocks_of(page.read_text(encoding="utf-8")):
        for words in commands_of(block) if block.language in ("sh", "bash") else []:
            check_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "qbayes fitt digits --method mcd --out x",
        "qbayes fit digits --method mcd --out x --epoch 3",
        "qbayes fit digits --method mcd --out x --set rat=0.2",
        "qbayes fit digit --method mcd --out x",
        "qbayes fit digits --out x",
        "make demos",
    ],
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, QbayesError, USAGE_ERROR)):
        check_command(shlex.split(line))


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("error 2.4 %", "error 2.6 %", True),
        ("error 2.4 %", "error 24 %", False),
        ("a\n…\nc", "a\nb\nb\nc", True),
        ("a\n…", "a\nb", True),
        ("a\n…\nc", "a\nb", False),
        ("a", "a\nb", False),
        ("…\nc", "a\nb\nc", True),
        ("from 0 … 9", "from 0 … 9", True),
        ("a\n…\nb\n…\nd", "a\nx\nb\nc\nd", True),
        ("after 3.1 s", "after 250.0 s", True),
        ("──── x  1", "── x 1", True),
    ],
)
def test_outputs_are_compared_with_sense(shown: str, real: str, same: bool) -> None:
    assert same_output(shown, real) == same


def test_blocks_are_read_as_written() -> None:
    page = '# t\n```python title="a.py"\nx = 1\n```\n\n```bash\n# needs a GPU\nqbayes fit \\\n  digits\n```\n'
    first, second = blocks_of(page)
    assert (first.language, first.title, first.body) == ("python", "a.py", "x = 1\n")
    assert page[first.start : first.end] == first.body
    assert commands_of(second) == [["qbayes", "fit", "digits"]]
