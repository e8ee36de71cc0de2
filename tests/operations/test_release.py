"""What a release is checked for before it is built, in a small repository that has what it looks at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> None:
    nobody = {f"GIT_{part}_{what}": "nobody" for part in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, env={**os.environ, **nobody})


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """One that can be released: version 7.1.0."""
    text = (repository / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(re.sub(r'(?m)^version = ".*"$', 'version = "7.1.0"', text, count=1))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 7.1.0 - 2030-01-01\n")
    (tmp_path / ".ci").mkdir()
    shutil.copy(repository / ".ci" / "release", tmp_path / ".ci" / "release")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    git(tmp_path, "tag", "v7.1.0")
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "add", "-A")
    git(checkout, "-c", "commit.gpgsign=false", "commit", "-q", "-m", "Change")


def check(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / ".ci/release", "--check"], capture_output=True, text=True, timeout=60)


def test_a_checkout_that_can_be_released_is_told_with_its_version(checkout: Path) -> None:
    result = check(checkout)
    assert (result.returncode, result.stdout) == (0, "release: 7.1.0\n"), result.stderr


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("CHANGELOG.md", "## 7.1.0", "## 7.1.01", "CHANGELOG.md has no section 7.1.0"),
        ("pyproject.toml", '"7.1.0"', '"7.1.1"', "CHANGELOG.md has no section 7.1.1"),
    ],
)
def test_what_does_not_agree_is_refused(checkout: Path, file: str, before: str, after: str, message: str) -> None:
    path = checkout / file
    path.write_text(path.read_text().replace(before, after))
    commit(checkout)
    result = check(checkout)
    assert result.returncode == 1
    assert message in result.stderr


def test_changes_and_a_commit_without_its_tag_are_refused(checkout: Path) -> None:
    (checkout / "more").write_text("")
    result = check(checkout)
    assert result.returncode == 1
    assert "changes that are not committed" in result.stderr
    commit(checkout)
    result = check(checkout)
    assert result.returncode == 1
    assert "HEAD is not tagged v7.1.0" in result.stderr
