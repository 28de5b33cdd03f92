"""Pages of the site that are made from other files: the first page, the command line, the Python API."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import api_pages  # noqa: E402  (it lies beside this file)
import cli_pages  # noqa: E402

from qbayes.cli.app import app  # noqa: E402

GENERATED: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Make the pages, and put those of the command line and of the API into the navigation."""
    commands = cli_pages.pages(app)
    GENERATED.update({
        "index.md": readme_page((ROOT / "README.md").read_text(encoding="utf-8")),
        "cli/index.md": cli_pages.index(app),
        **{one.path: one.markdown() for one in commands},
        "api/index.md": api_pages.index(),
        **{page.path: page.markdown() for page in api_pages.PAGES},
    })  # fmt: skip
    fill(config["nav"], {
        "Command line": ["cli/index.md", *({one.words: one.path} for one in commands)],
        "Python": ["api/index.md", *({page.title: page.path} for page in api_pages.PAGES)],
    })  # fmt: skip
    return config


def fill(nav: list[Any], parts: Mapping[str, list[Any]]) -> None:
    """Give the parts of the navigation that ``mkdocs.yml`` leaves empty their pages."""
    for entry in nav:
        for title, inner in entry.items() if isinstance(entry, dict) else ():
            if title in parts and inner == []:
                entry[title] = parts[title]
            elif isinstance(inner, list):
                fill(inner, parts)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that were made."""
    for path, content in GENERATED.items():
        files.append(File.generated(config, path, content=content))
    return files


def readme_page(text: str) -> str:
    """Links into docs/ lose that prefix; links to other files of the repository become plain text."""
    rebased = re.sub(r"\]\(docs/", "](", text)
    outside = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")

    def keep(match: re.Match[str]) -> str:
        inside = (ROOT / "docs" / match[2].partition("#")[0]).exists()
        return match[0] if inside else match[1]

    return outside.sub(keep, rebased)
