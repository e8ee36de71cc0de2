"""The pages of the documentation, cut into what tests look at: blocks of code, headings, links, inline code.

A comment on the line above a block says how it is tested; nobody who reads the page sees it:

    <!-- not run: REASON -->   it is only read: Python is compiled, command lines are held against their parsers
    <!-- run -->               a block of shell commands is run as well (Python always is)
    <!-- slow: REASON -->      run by the slow tests alone; so are the blocks after it, which may need it
    <!-- file: NAME -->        it is written to that file, in the folder that all blocks of the page run in
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- (not run|run|slow|file)(?:: (.+?))? -->")
FENCE = re.compile(r"^( *)(```+)\s*([\w-]*)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page: path from the repository on.
        line: of its first line of code, from 1.
        language: the word behind the fence, "" if there is none.
        text: the code, without the indentation of the fence.
        mark: "not run", "run", "slow", "file" or "".
        told: what the mark says: the reason, or the file's name.
    """

    page: str
    line: int
    language: str
    text: str
    mark: str
    told: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(REPOSITORY))
        self.text = path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        """In their order. ValueError for a fence that is not closed."""
        found: list[Block] = []
        lines = self.text.splitlines()
        at = 0
        while at < len(lines):
            fence = FENCE.match(lines[at])
            if fence is None:
                at += 1
                continue
            indent, ticks, language = fence.groups()
            end = at + 1
            while end < len(lines) and lines[end].strip() != ticks:
                end += 1
            if end == len(lines):
                raise ValueError(f"{self.name}:{at + 1}: the block is not closed")
            code = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end]) + "\n"
            mark = MARK.fullmatch(lines[at - 1].strip()) if at else None
            kind, told = (mark[1], mark[2] or "") if mark else ("", "")
            found.append(Block(self.name, at + 2, language, code, kind, told))
            at = end + 1
        return found

    @cached_property
    def prose(self) -> str:
        """The page with its blocks taken out; lines stay where they are."""
        out, ticks = [], ""
        for line in self.text.splitlines():
            fence = FENCE.match(line)
            if ticks:
                ticks = "" if line.strip() == ticks else ticks
                out.append("")
            elif fence:
                ticks = fence[2]
                out.append("")
            else:
                out.append(line)
        return "\n".join(out)

    @cached_property
    def anchors(self) -> set[str]:
        """What a link may name behind #, as GitHub makes them of headings."""
        found: dict[str, int] = {}
        anchors = set(re.findall(r'<a (?:id|name)="([^"]+)"', self.prose))
        for heading in re.findall(r"^#{1,6} +(.*?)\s*#*$", self.prose, re.MULTILINE):
            name = slug(heading)
            count = found.get(name, 0)
            found[name] = count + 1
            anchors.add(f"{name}-{count}" if count else name)
        return anchors

    def links(self) -> Iterator[tuple[int, str]]:
        """(line, target) of every link and picture."""
        for number, line in enumerate(self.prose.splitlines(), 1):
            bare = re.sub(r"`[^`]*`", lambda code: "`" + "x" * (len(code[0]) - 2) + "`", line)
            for target in re.findall(r"\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)", bare):
                yield number, target

    def inline_code(self) -> Iterator[tuple[int, str]]:
        """(line, code) of everything in backquotes."""
        for number, line in enumerate(self.prose.splitlines(), 1):
            for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
                yield number, code


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[`*]|<[^>]*>", "", text).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def all_pages() -> list[Page]:
    """README, CONTRIBUTING and everything below docs/, examples/ and the folders for deployment."""
    paths = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    for folder in ("docs", "examples", "deploy", "serverless/deploy"):
        paths += sorted((REPOSITORY / folder).rglob("*.md"))
    return [Page(path) for path in paths]
