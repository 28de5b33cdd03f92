"""The command-line reference: one page a command, made from the commands themselves."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

DEFAULT = re.compile(r"\[default: (.+)\]$")
EXAMPLES = re.compile(r"^Examples?:\n(?P<lines>(?:[ \t]+.+\n?)+)", re.MULTILINE)
WIDTH = 76
INTRODUCTION = """# Command line

Every command prints its options with `--help`. With `--json` it prints one JSON document.

| command | does |
|---|---|
{rows}

## Exit codes

| code | means |
|---|---|
| 0 | done |
| 1 | a run failed |
| 2 | bad input: the error says what must hold, what came, and what to do |
| 3 | a study stopped because its `--minutes` were up, and something is left |
| 130 | interrupted; the same command continues (`fit` and `quantize`: with `--resume`) |
"""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option as the help shows it: ``--epochs <int>``, its text and its default."""

    name: str
    text: str
    default: str = ""
    needed: bool = False

    @classmethod
    def of(cls, record: tuple[str, str]) -> "Parameter":
        name, text = (" ".join(part.split()) for part in record)
        needed = text.endswith("[required]")
        text = text.removesuffix("[required]").strip()
        default = DEFAULT.search(text)
        return cls(name, DEFAULT.sub("", text).strip(), default[1] if default else "", needed)

    @property
    def cells(self) -> list[str]:
        cells = [f"`{self.name}`", self.text, f"`{self.default}`" if self.default else ""]
        return [cell.replace("|", "\\|") for cell in cells]


HELP = Parameter("-h, --help", "Show the help of the command.")


@dataclass(frozen=True)
class CommandPage:
    """A command: its words (``study run``), what it does, its examples and its parameters."""

    words: str
    text: str
    examples: Sequence[str]
    command: Any

    @property
    def path(self) -> str:
        return f"cli/{self.words.replace(' ', '-')}.md"

    @property
    def summary(self) -> str:
        """The first paragraph, for a table."""
        return self.text.split("\n\n", 1)[0].replace("|", "\\|")

    def markdown(self) -> str:
        arguments, options = (parameters(self.command, kind) for kind in ("argument", "option"))
        usage = ["qbayes", self.words, *(one.name.split(" ")[0] for one in arguments), "[OPTIONS]"]
        lines = [f"# qbayes {self.words}", "", self.text, ""]
        if self.examples:
            lines += ["```bash", *map(wrapped, self.examples), "```", ""]
        lines += ["## Usage", "", "```text", " ".join(usage), "```", ""]
        lines += section("Arguments", arguments)
        lines += section("Required options", [one for one in options if one.needed])
        lines += section("Options", [*(one for one in options if not one.needed), HELP])
        return "\n".join(lines)


def pages(app: Any) -> list[CommandPage]:
    """One page for each command, those of groups included."""
    return [_page(words, command) for words, command in _leaves(get_command(app), "")]


def index(app: Any) -> str:
    rows = [f"| [`qbayes {one.words}`]({Path(one.path).name}) | {one.summary} |" for one in pages(app)]
    return INTRODUCTION.format(rows="\n".join(rows))


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, f"{words} {name}".strip())


def _page(words: str, command: Any) -> CommandPage:
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    found = EXAMPLES.search(text)
    examples = [line.strip() for line in found["lines"].splitlines()] if found else []
    paragraphs = [" ".join(part.split()) for part in EXAMPLES.sub("", text).split("\n\n")]
    return CommandPage(words, "\n\n".join(filter(None, paragraphs)), examples, command)


def parameters(command: Any, kind: str) -> list[Parameter]:
    """The arguments or the options, as typer says them in the help."""
    with command.make_context(command.name, [], resilient_parsing=True) as context:
        records = [one.get_help_record(context) for one in command.params if one.param_type_name == kind]
    return [Parameter.of(record) for record in records if record is not None]


def section(title: str, rows: Sequence[Parameter]) -> list[str]:
    """A heading and a table; its third column only where there is a default."""
    columns = 3 if any(one.default for one in rows) else 2
    head = [title.rsplit(maxsplit=1)[-1].lower().removesuffix("s"), "is", "default"]
    cells = [head, ["---"] * 3, *(one.cells for one in rows)]
    lines = [f"| {' | '.join(row[:columns])} |" for row in cells]
    return [f"## {title}", "", *lines, ""] if rows else []


def wrapped(line: str) -> str:
    """A command on several lines where it is long, cut before its options."""
    lines = [""]
    for part in re.split(r" (?=--)", line):
        if lines[-1] and len(lines[-1]) + len(part) >= WIDTH:
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".strip(" ") if len(lines) == 1 else f"{lines[-1]} {part}"
    return " \\\n".join(lines)
