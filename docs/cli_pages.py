"""The command-line reference: one page a command, made from the commands themselves."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

HELP = {"`-h, --help`": ("Show the help of the command.", "", False)}
DEFAULT = re.compile(r"\[default: (.+)\]$")
EXAMPLES = re.compile(r"^Examples?:\n(?P<lines>(?:[ \t]+.+\n?)+)", re.MULTILINE)
INTRODUCTION = """# Command line

Every command prints its options with `--help`, and one JSON document with `--json` where it has that option.

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
| 130 | interrupted; the same command with `--resume` continues |
"""


@dataclass(frozen=True)
class CommandPage:
    """A command: its words (``study run``), what it does, its examples and its parameters."""

    words: str
    text: str
    examples: tuple[str, ...]
    command: Any

    @property
    def path(self) -> str:
        return f"cli/{self.words.replace(' ', '-')}.md"

    @property
    def summary(self) -> str:
        """The first sentence."""
        first = " ".join(self.text.split("\n\n", 1)[0].split())
        return first.replace("|", "\\|")

    def markdown(self) -> str:
        lines = [f"# qbayes {self.words}", "", self.text, ""]
        if self.examples:
            lines += ["```bash", *(wrapped(line) for line in self.examples), "```", ""]
        arguments = parameters(self.command, "argument")
        options = parameters(self.command, "option") | HELP
        shapes = " ".join(name.strip("`").split(" ")[0] for name in arguments)
        lines += ["## Usage", "", "```text", f"qbayes {self.words} {shapes} [OPTIONS]".replace("  ", " "), "```", ""]
        parts = {
            "Arguments": arguments,
            "Required options": {name: one for name, one in options.items() if one[2]},
            "Options": {name: one for name, one in options.items() if not one[2]},
        }
        for title, rows in parts.items():
            lines += [f"## {title}", "", *table(title.split()[-1].lower()[:-1], rows), ""] if rows else []
        return "\n".join(lines)


def pages(app: Any) -> list[CommandPage]:
    """One page for each command, those of groups included."""
    return [_page(words, command) for words, command in _leaves(get_command(app), "")]


def index(app: Any) -> str:
    rows = [f"| [`qbayes {one.words}`]({one.path.removeprefix('cli/')}) | {one.summary} |" for one in pages(app)]
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
    paragraphs = [" ".join(part.split()) for part in EXAMPLES.sub("", text).split("\n\n") if part.strip()]
    return CommandPage(words, "\n\n".join(paragraphs), tuple(examples), command)


def wrapped(line: str, width: int = 76) -> str:
    """A command on several lines where it is long, cut before its options."""
    parts, lines = re.split(r" (?=--)", line), [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


def parameters(command: Any, kind: str) -> dict[str, tuple[str, str, bool]]:
    """By name as the help shows it (``--epochs <int>``): the text, the default, and whether it is needed."""
    found: dict[str, tuple[str, str, bool]] = {}
    with command.make_context(command.name, [], resilient_parsing=True) as context:
        for one in command.params:
            record = one.get_help_record(context) if one.param_type_name == kind else None
            if record is not None:
                name, text = (" ".join(part.split()) for part in record)
                needed = text.endswith("[required]")
                default = DEFAULT.search(text)
                text = DEFAULT.sub("", text.removesuffix("[required]")).strip()
                found[f"`{name}`"] = (text, f"`{default[1]}`" if default else "", needed)
    return found


def table(head: str, rows: Mapping[str, tuple[str, str, bool]]) -> list[str]:
    cells = [[name, text, default] for name, (text, default, _) in rows.items()]
    columns = 3 if any(row[2] for row in cells) else 2
    lines = [[head, "is", "default"], ["---"] * 3, *([one.replace("|", "\\|") for one in row] for row in cells)]
    return [f"| {' | '.join(line[:columns])} |" for line in lines]
