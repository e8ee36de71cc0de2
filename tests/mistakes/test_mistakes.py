"""The mistakes of this folder fit the code and name tests that there are. Making them takes hours: mistakes.py."""

from __future__ import annotations

import pytest
from mistakes import REPOSITORY, Mistake, fits, read_mistakes

MISTAKES = read_mistakes()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.about)
def test_a_mistake_fits_the_code_and_names_its_tests(mistake: Mistake) -> None:
    assert fits(mistake, REPOSITORY), f"{mistake.file} has changed: make the mistake in it as it is now"
    paths = [word for word in mistake.tests if word.startswith("tests/")]
    assert paths
    assert all((REPOSITORY / path).is_file() for path in paths), paths


def test_no_mistake_is_listed_twice() -> None:
    assert len({(each.file, each.before, each.after) for each in MISTAKES}) == len(MISTAKES) >= 60
