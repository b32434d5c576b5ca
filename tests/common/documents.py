"""Pages in Markdown, as data: their command blocks, their links, their tables, what stands in backticks."""

import re
import shlex
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
SEPARATORS = {"&&", "||", ";", "|"}
# A block that no machine of ours can run says why in its title, which readers see as well.
NOT_HERE = re.compile(r'title="not run here: [^"]+"')
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Command(NamedTuple):
    """One command: the variables set for it, then its words."""

    variables: dict[str, str]
    words: list[str]


class Block(NamedTuple):
    """A block of code. ``language`` is empty where it is indented and not fenced."""

    language: str
    not_here: bool
    text: str

    @property
    def commands(self) -> list[Command]:
        return list(commands_in(self.text))


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self._tokens: list[Token] = MarkdownIt("commonmark").enable("table").parse(path.read_text())

    @cached_property
    def blocks(self) -> list[Block]:
        found = [token for token in self._tokens if token.type in ("fence", "code_block")]
        return [
            Block(*token.info.split(maxsplit=1)[:1] or [""], bool(NOT_HERE.search(token.info)), token.content)
            for token in found
        ]

    @property
    def command_blocks(self) -> list[Block]:
        return [block for block in self.blocks if block.language in ("", "sh")]

    @property
    def _inline(self) -> Iterator[Token]:
        for token in self._tokens:
            yield from token.children or ()

    @property
    def code(self) -> list[str]:
        """What stands in backticks."""
        return [token.content for token in self._inline if token.type == "code_inline"]

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures."""
        attributes = {"link_open": "href", "image": "src"}
        return [str(t.attrs[attributes[t.type]]) for t in self._inline if t.type in attributes]

    @property
    def anchors(self) -> set[str]:
        """What ``#...`` may follow the page's name, as GitHub and MkDocs make it of a heading."""
        pairs = zip(self._tokens, self._tokens[1:], strict=False)
        headings = [second.content for first, second in pairs if first.type == "heading_open"]
        return {re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-") for text in headings}

    @property
    def tables(self) -> list[list[list[str]]]:
        """Rows of each table, its head first; cells as written."""
        found: list[list[list[str]]] = []
        for index, token in enumerate(self._tokens):
            if token.type == "table_open":
                found.append([])
            elif token.type == "tr_open":
                found[-1].append([])
            elif token.type in ("td_open", "th_open"):
                found[-1][-1].append(self._tokens[index + 1].content)
        return found


def commands_in(text: str) -> Iterator[Command]:
    """The commands of a shell block; no loops, no functions. A here document is left out.

    Raises:
        ValueError: a quote is not closed.
    """
    text = re.sub(r"<<'(\w+)'\n.*?\n\1\n", "\n", text, flags=re.DOTALL)
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in SEPARATORS:
                words.append(word)
            elif words:
                yield _command(words)
                words = []


def _command(words: list[str]) -> Command:
    variables: dict[str, str] = {}
    words = words[1:] if words[0] == "export" else words
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        variables[match[1]] = match[2]
        words = words[1:]
    if ">" in words:  # into a file
        words = words[: words.index(">")]
    return Command(variables, words)


def pages() -> list[Page]:
    """All pages that people read, README first."""
    return [Page(path) for path in (ROOT / "README.md", ROOT / "tests/README.md", *documents())]


def documents() -> list[Path]:
    """The pages of the site."""
    return sorted((ROOT / "docs").glob("*.md"))
