"""Writes the pages of docs/reference that are made from the code, and the README's chart from the benchmarks' files:

python tests/docs/generate.py        (or: make reference)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import chart_of_peers
import reference_commands
import reference_configuration
import reference_python
import reference_settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND = "python tests/docs/generate.py"

PAGES: dict[str, Callable[[], str]] = {
    "images/peers.svg": chart_of_peers.page,
    "reference/commands.md": reference_commands.page,
    "reference/configuration.md": reference_configuration.page,
    "reference/python.md": reference_python.page,
    "reference/settings.md": reference_settings.page,
}
"""Path below docs/ → what makes it."""


def main() -> int:
    """Writes what is not current, and says so."""
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
