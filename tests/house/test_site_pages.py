"""Pages of the site that are made from the code have every command, option and public name."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

import qbayes as qb
from end_to_end.test_documentation import blocks_of, check_command, commands_of
from qbayes.cli.app import app

DOCS = Path(__file__).resolve().parents[2] / "docs"


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cli_pages, api_pages = module_of("cli_pages"), module_of("api_pages")
PAGES = cli_pages.pages(app)


def test_every_command_has_a_page() -> None:
    top = get_command(app).commands
    assert {page.words.split()[0] for page in PAGES} == set(top)
    assert {"study run", "study export", "data fetch"} <= {page.words for page in PAGES}
    assert len({page.path for page in PAGES}) == len(PAGES)
    assert all(f"`qbayes {page.words}`" in cli_pages.index(app) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.words)
def test_a_page_has_every_option_with_its_help(page: "cli_pages.CommandPage") -> None:
    text = page.markdown()
    for one in page.command.params:
        assert one.param_type_name == "argument" or all(name in text for name in one.opts)
        assert " ".join((one.help or "").split())[:30].replace("|", "\\|") in text
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == len(page.command.params) + 1
    assert not re.search(r"\[required\]|\[default", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.words)
def test_examples_are_commands_that_exist(page: "cli_pages.CommandPage") -> None:
    assert page.examples
    text = page.markdown().replace("```bash\n", "```bash\n# needs nothing\n")
    for block in blocks_of(text):
        for words in commands_of(block) if block.language == "bash" else []:
            check_command(words)


def test_long_examples_are_wrapped_before_options() -> None:
    line = "qbayes fit uci/boston --method bbb --task-set split=3 --set prior_sigma=0.5 --out runs/boston"
    assert cli_pages.wrapped(line).split(" \\\n  ") == [line[:75], line[76:]]
    assert cli_pages.wrapped("qbayes list methods") == "qbayes list methods"


def test_every_public_name_is_on_one_page() -> None:
    names = [name for page in api_pages.PAGES for name in page.names]
    assert sorted(names) == sorted(qb.__all__)


def test_modules_of_the_reference_are_there() -> None:
    modules = [name for page in api_pages.PAGES for name in page.modules]
    assert modules
    assert all(importlib.util.find_spec(name) is not None for name in modules)
