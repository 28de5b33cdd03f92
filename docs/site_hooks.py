"""Pages of the site that are made from other files: the README as the first page, one page a package."""

import pkgutil
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: Any) -> Files:
    """Add ``index.md`` and ``api/<name>.md``."""
    first = readme_page((ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=first))
    names = [module.name for module in pkgutil.iter_modules([str(ROOT / "src" / "qbayes")])]
    for name in names:
        files.append(File.generated(config, f"api/{name}.md", content=f"# {name}\n\n::: qbayes.{name}\n"))
    return files


def readme_page(text: str) -> str:
    """Links into docs/ lose that prefix; links to other files of the repository become plain text."""
    rebased = re.sub(r"\]\(docs/", "](", text)
    outside = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")

    def keep(match: re.Match[str]) -> str:
        inside = (ROOT / "docs" / match[2].partition("#")[0]).exists()
        return match[0] if inside else match[1]

    return outside.sub(keep, rebased)
