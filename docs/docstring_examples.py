"""Docstrings: ``Example:`` is read as ``Examples:``, so that the code in it is shown as code."""

import re
from typing import Any

import griffe

HEAD = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Renames the section before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = HEAD.sub(r"\1Examples:", obj.docstring.value)
