"""Docstrings as the site shows them: examples as code, equations as MathML, options by their defaults."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
EQUATION = re.compile(
    r"^\.\. math::[ \t]*(?P<first>.*)\n(?P<rest>(?:[ \t]+\S.*\n|[ \t]*\n(?=[ \t]+\S))*)", re.MULTILINE
)
INLINE = re.compile(r":math:`([^`]+)`")


class Docstrings(griffe.Extension):
    """Changes what was written for people who read the source."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = EXAMPLE.sub(r"\1Examples:", f"{obj.docstring.value}\n")
            text = EQUATION.sub(lambda found: _block(f"{found['first']}\n{found['rest']}"), text)
            obj.docstring.value = INLINE.sub(lambda found: convert(found[1]), text).strip("\n")

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """``option(100, "Passes over …")`` is shown as 100."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "option" and value.arguments:
            attr.value = value.arguments[0]


def _block(latex: str) -> str:
    body = " ".join(textwrap.dedent(latex).split())
    if "&" in body:
        body = rf"\begin{{align*}} {body} \end{{align*}}"
    return f'<div class="equation">{convert(body, display="block")}</div>\n\n'
