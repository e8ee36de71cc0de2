"""What makes a website of docs/, for `mkdocs build` (mkdocs.yml names this file as its hook).

The pages are written for a plain git host. Four things differ on the site:
- Pages outside docs/ that other pages link to become pages below repository/, and source files become text files there.
- Python-Markdown needs an empty line before lists and tables. The comments that tests read are left out.
- Headings get the anchors that GitHub gives them.
- reference/python.md is made from the docstrings by mkdocstrings.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference_python
from mkdocs.structure.files import File
from pages import FENCE, MARK, REPOSITORY, Page, all_pages, slug

DOCS = REPOSITORY / "docs"
OUTSIDE = "repository/"
LINK = re.compile(r"(?P<mark>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
LIST = re.compile(r"(?:[-*]|\d+\.) ")
PYTHON = "reference/python.md"


def on_config(config: Any) -> Any:
    """Headings get GitHub's anchors."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda heading, _separator: slug(heading)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds pages outside docs/, and the files that pages link to."""
    pages = all_pages()
    for page in pages:
        if not page.path.is_relative_to(DOCS):
            files.append(File.generated(config, site_path(page.path), content=page.text))
    for path in sorted({path for page in pages for path in linked(page)}):
        if path.is_file() and not path.is_relative_to(DOCS) and files.get_file_from_path(site_path(path)) is None:
            files.append(File.generated(config, site_path(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as Python-Markdown reads it."""
    if page.file.src_uri == PYTHON:
        return python_page()
    path = repository_path(page.file.src_uri)
    runs = (text if is_code else separated(rewritten(path, text)) for text, is_code in runs_of(markdown))
    return "\n\n".join(runs) + "\n"


def site_path(path: Path) -> str:
    """Where a file of the repository is on the site, as a source path of MkDocs."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = OUTSIDE + path.relative_to(REPOSITORY).as_posix()
    return name if path.suffix == ".md" else f"{name}.txt"


def repository_path(source: str) -> Path:
    """Which file of the repository a page of the site is."""
    return REPOSITORY / source.removeprefix(OUTSIDE) if source.startswith(OUTSIDE) else DOCS / source


def linked(page: Page) -> Iterator[Path]:
    """The files that a page links to. A folder stands for its README.md."""
    for _, target in page.links():
        name = target.partition("#")[0]
        if name and "://" not in target and not target.startswith("mailto:"):
            yield of_folder((page.path.parent / name).resolve())


def of_folder(path: Path) -> Path:
    """A folder's README.md where it has one, else the path itself."""
    return path / "README.md" if (path / "README.md").exists() else path


def runs_of(markdown: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it is a block of code), in order; the comments that tests read are left out."""
    ticks, run = "", []
    for line in markdown.splitlines():
        fence = FENCE.match(line)
        if ticks:
            run.append(line)
            if line.strip() == ticks:
                yield "\n".join(run), True
                ticks, run = "", []
        elif fence:
            yield "\n".join(run), False
            ticks, run = fence[2], [line]
        elif not MARK.fullmatch(line.strip()):
            run.append(line)
    yield "\n".join(run), False


def rewritten(path: Path, text: str) -> str:
    """A text whose links are those of the site. A folder without a README.md has no page: its link becomes text."""

    def link(found: re.Match[str]) -> str:
        name, hash_sign, anchor = found["target"].partition("#")
        if not name or "://" in found["target"] or name.startswith("mailto:"):
            return found[0]
        target = of_folder((path.parent / name).resolve())
        if target.is_dir():
            return found["text"]
        source = site_path(target)
        if source == PYTHON and anchor:
            anchor = anchors_of_python().get(anchor, anchor)
        place = posixpath.relpath(source, posixpath.dirname(site_path(path)) or ".")
        return f"{found['mark']}[{found['text']}]({place}{hash_sign}{anchor})"

    return LINK.sub(link, text)


def separated(text: str) -> str:
    """With an empty line before each list and table after a paragraph, and brackets in headings taken as they are."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            line = re.sub(r"\[(?![^\]]*\]\()", r"\\[", line)  # optional arguments are not links
        before = lines[-1] if lines else ""
        opens = LIST.match(line) and not LIST.match(before) and not before.startswith(" ")
        opens = opens or (line.startswith("|") and not before.startswith("|"))
        if opens and before and not before.startswith("#"):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def python_page() -> str:
    """Every public name, as a place for its docstring."""
    text = "# Python\n\n`import replay_server as rs`. Arrays are NumPy's; N is the number of items of a batch.\n"
    for title, names in reference_python.GROUPS.items():
        text += f"\n## {title}\n\n" + "".join(f"::: {dotted(name)}\n\n" for name in names)
    return text


def anchors_of_python() -> dict[str, str]:
    """Anchor of a class on the page of docs/ → its anchor on the site."""
    return {slug(f"rs.{name}"): dotted(name) for names in reference_python.GROUPS.values() for name in names}


def dotted(name: str) -> str:
    """Where a public name is defined."""
    thing = reference_python._named(name)
    return f"{thing.__module__}.{thing.__qualname__}"
