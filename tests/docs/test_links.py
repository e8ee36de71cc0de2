"""Links between pages lead somewhere: to a file that is there, and to a heading that it has. The README stays short."""

from __future__ import annotations

import pytest
from pages import REPOSITORY, Page, all_pages

PAGES = all_pages()


def target_of(page: Page, link: str) -> str:
    """What is wrong with a link; "" if nothing is, or it leaves the repository."""
    if "://" in link or link.startswith("mailto:"):
        return ""
    name, _, anchor = link.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    if not path.exists():
        return f"there is no {path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path}"
    if anchor and path.suffix == ".md" and anchor not in Page(path).anchors:
        return f"{path.name} has no heading #{anchor}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_leads_somewhere(page: Page) -> None:
    wrong = [f"{page.name}:{line}: ({link}): {why}" for line, link in page.links() if (why := target_of(page, link))]
    assert not wrong, "\n".join(wrong)


def test_every_page_is_reached_from_the_index() -> None:
    index = REPOSITORY / "docs/index.md"
    seen, ahead = set(), [index]
    while ahead:
        path = ahead.pop()
        if path in seen or path.suffix != ".md" or not path.exists():
            continue
        seen.add(path)
        page = Page(path)
        names = (link.partition("#")[0] for _, link in page.links() if "://" not in link)
        ahead += [(path.parent / name).resolve() for name in names if name]
    pages = set((REPOSITORY / "docs").rglob("*.md"))
    assert not pages - seen, f"not linked to from docs/index.md: {sorted(p.name for p in pages - seen)}"
    linked = {(index.parent / link.partition("#")[0]).resolve() for _, link in Page(index).links()}
    missing = {path for path in pages if path.parent == index.parent and path != index} - linked
    assert not missing, f"docs/index.md lists every page beside it; not: {sorted(p.name for p in missing)}"


def test_readme_has_at_most_1500_words() -> None:
    assert len((REPOSITORY / "README.md").read_text().split()) <= 1500
