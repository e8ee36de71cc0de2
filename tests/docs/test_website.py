"""`make docs`: the website builds without a warning, has every page, and each link leads to a page and a heading."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pages import REPOSITORY, all_pages

import replay_server as rs

pytest.importorskip("mkdocs", reason="the website needs mkdocs-material and mkdocstrings (make setup installs them)")
pytest.importorskip("mkdocstrings", reason="the website needs mkdocstrings (make setup installs it)")


class Built(HTMLParser):
    """A built page: the anchors that it has, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.headings = 0
        self.tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        self.headings += tag in ("h1", "h2", "h3")
        self.tables += tag == "table"
        if link := values.get("href") or values.get("src"):
            self.links.add(link)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-5000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Built]:
    """Path on the site → page."""
    return {path.relative_to(site).as_posix(): Built(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    for page in all_pages():
        inside = page.path.is_relative_to(REPOSITORY / "docs")
        place = (
            page.path.relative_to(REPOSITORY / "docs") if inside else "repository" / page.path.relative_to(REPOSITORY)
        )
        folder = site / place.parent if page.path.stem in ("index", "README") else site / place.with_suffix("")
        assert (folder / "index.html").is_file(), page.name


def test_every_link_leads_to_a_page_and_a_heading(site: Path, pages: dict[str, Built]) -> None:
    wrong = []
    for name, page in pages.items():
        if name == "404.html":  # its links begin with the address of the site
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path))) if parts.path else name
            )
            place = posixpath.join(place, "index.html").removeprefix("./") if (site / place).is_dir() else place
            if not (site / place).is_file():
                wrong.append(f"{name}: {link}: no such file")
            elif parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].anchors:
                wrong.append(f"{name}: {link}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_nothing_is_fetched_from_another_host(pages: dict[str, Built], site: Path) -> None:
    """A page that is read without a network looks the same."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        for mark in ("fonts.googleapis", "fonts.gstatic", "cdn.jsdelivr", "unpkg.com"):
            assert mark not in text, f"{path.relative_to(site)}: {mark}"


def test_tables_lists_and_public_names_are_rendered(pages: dict[str, Built], site: Path) -> None:
    assert pages["index.html"].tables >= 3
    assert f"{rs.Client.__module__}.Client.sample" in pages["reference/python/index.html"].anchors
    tutorial = (site / "tutorial/index.html").read_text()
    assert "<!-- slow" not in tutorial
    assert "<li>" in (site / "explanation/architecture/index.html").read_text()
