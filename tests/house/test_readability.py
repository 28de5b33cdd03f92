"""README and the guides are easy to read: short sentences, short paragraphs, a first page of one screen.

What counts are sentences of prose. Code blocks, tables, headings, comments and pictures do not; of a link its
words count, and a piece of inline code is one word. A list's item is a paragraph of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

from qbayes.options import RENAMED

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "docs").glob("*.md"))
MEAN_SENTENCE, LONGEST_SENTENCE, LONGEST_OF_README, LONGEST_PARAGRAPH = 16, 35, 25, 90
README_LINES, GUIDE_WORDS, LONGEST_CHANGE = 120, 13_000, 60

NOT_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->|!\[[^\]]*\]\([^)]*\)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`\n]+`")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
SKIPPED = re.compile(r"^\s*(?:\||#)")
END = re.compile(r"(?<=[.!?])[)\"”*_]*\s+(?=[^a-z])|:$")
WORD = re.compile(r"\w[\w'’.,:/%×+−-]*")


@dataclass(frozen=True)
class Prose:
    """The paragraphs of a page and their sentences."""

    paragraphs: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Prose":
        found, open_lines = list[str](), list[str]()
        for line in [*CODE.sub("Code", LINK.sub(r"\1", NOT_PROSE.sub("\n\n", text))).splitlines(), ""]:
            starts = ITEM.match(line) is not None
            if (starts or SKIPPED.match(line) or not line.strip()) and open_lines:
                found.append(" ".join(open_lines))
                open_lines = []
            if line.strip() and not SKIPPED.match(line):
                open_lines.append(ITEM.sub("", line).strip())
        return cls(tuple(found))

    @property
    def sentences(self) -> list[str]:
        return [one for text in self.paragraphs for one in END.split(text) if words(one)]


def words(text: str) -> int:
    return len(WORD.findall(text))


def too_long(prose: Prose, sentence: int) -> list[str]:
    """What is longer than it may be, with its length."""
    long = [f"{words(one)} words: {one}" for one in prose.sentences if words(one) > sentence]
    return long + [f"{words(one)} words: {one}" for one in prose.paragraphs if words(one) > LONGEST_PARAGRAPH]


def page_of(path: Path) -> Prose:
    return Prose.of(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [README, *GUIDES], ids=lambda path: path.name)
def test_sentences_and_paragraphs_are_short(path: Path) -> None:
    prose = page_of(path)
    assert too_long(prose, LONGEST_OF_README if path == README else LONGEST_SENTENCE) == []
    average = mean([*map(words, prose.sentences)] or [0])
    assert average <= MEAN_SENTENCE, f"{average:.1f} words a sentence"


def test_the_first_page_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_guides_are_no_book() -> None:
    tokens = [re.findall(r"\S*\w\S*", path.read_text(encoding="utf-8")) for path in GUIDES]
    assert sum(map(len, tokens)) <= GUIDE_WORDS


def test_the_glossary_has_at_most_twenty_terms() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert 10 <= len(re.findall(r"^\| \*\*", text, re.MULTILINE)) <= 20


def test_the_changelog_has_short_lines_and_every_new_name() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    lines = re.findall(r"^- .*$", text, re.MULTILINE)
    assert len(lines) > 50
    assert [line for line in lines if len(line.split()) > LONGEST_CHANGE] == []
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, re.MULTILINE)
    assert RENAMED.items() <= dict(rows).items()


PAGE = """# A heading of many words that is no sentence at all

One two three. Four five
six seven!

| a table | of words. That do. Not count |
|---|---|

- First item of [two words](https://example.org/a/long/address)
- Second item with `code that is one word`, then ends:

```python
print("none of. This. Counts")
```

![A picture. With text](picture.svg)
<!-- a comment. Of words -->
"""


def test_what_counts_as_a_sentence() -> None:
    prose = Prose.of(PAGE)
    assert [*map(words, prose.paragraphs)] == [7, 5, 6]
    assert prose.sentences[:2] == ["One two three.", "Four five six seven!"]
    assert [*map(words, prose.sentences)] == [3, 4, 5, 6]


def test_versions_decimals_and_abbreviations_end_no_sentence() -> None:
    prose = Prose.of("It needs 3.11 or later, e.g. torch 2.6. See the docs (as ever.) Then go on.")
    assert prose.sentences[1:] == ["See the docs (as ever.", "Then go on."]


@pytest.mark.parametrize("count", [35, 36])
def test_a_long_sentence_is_noticed(count: int) -> None:
    assert bool(too_long(Prose.of(" ".join(["word"] * count) + "."), LONGEST_SENTENCE)) == (count > 35)


@pytest.mark.parametrize("count", [30, 31])
def test_a_long_paragraph_is_noticed(count: int) -> None:
    assert bool(too_long(Prose.of("One two three. " * count), LONGEST_SENTENCE)) == (count > 30)
