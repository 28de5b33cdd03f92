"""The site in a browser, from the disk: the search works, nothing comes from elsewhere, pages fit a phone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs

ROOT = Path(__file__).resolve().parents[2]
SETTLED_MS = 800
PHONE = {"width": 390, "height": 844}
FIRST_HITS = {
    "threshold": "how-to-serve.html",
    "trained model": "tour.html",
    "CSV": "data.html",
    "microcontroller": "how-to-small-devices.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.package("material")
    needs.package("latex2mathml")
    needs.package("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture
def page(browser: Any, site: Path) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


@pytest.mark.parametrize("query", FIRST_HITS)
def test_the_search_finds_the_guide(query: str, page: Any, site: Path) -> None:
    page.goto((site / "index.html").as_uri())
    box = page.locator("input.md-search__input")
    assert box.is_visible()
    box.click()
    page.keyboard.type(query)
    page.wait_for_selector(".md-search-result__link")
    page.wait_for_timeout(SETTLED_MS)  # results come word by word
    first = page.locator(".md-search-result__link").first
    assert FIRST_HITS[query] in first.get_attribute("href")
    assert all(url.startswith("file://") for url in page.asked)


def test_pages_fit_a_phone(page: Any, site: Path) -> None:
    page.set_viewport_size(PHONE)
    pages = [*site.glob("*.html"), *site.glob("cli/*.html"), *site.glob("api/*.html")]
    assert len(pages) > 40
    for path in pages:
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, path.name
    assert all(url.startswith("file://") for url in page.asked)
