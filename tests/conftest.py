"""Fixtures and skips that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need more than an ordinary user has are skipped with the reason, never passed over in silence."""
    not_root = pytest.mark.skip(reason="needs root: network namespaces can only be made by root")
    for item in items:
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(not_root)
