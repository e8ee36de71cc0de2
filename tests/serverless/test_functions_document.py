"""docs/functions.md tells the truth: its code runs as it stands, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from replay_server.rl.function_contract import MESSAGE_BYTES, REQUESTS, Names
from replay_server.serverless import function


@pytest.fixture
def document(repository: Path) -> str:
    return (repository / "docs" / "functions.md").read_text()


def test_every_block_of_code_runs_in_its_order(document: str):
    blocks = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    assert len(blocks) >= 5
    assert document.count("```") == 2 * len(blocks)
    variables: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/functions.md", "exec"), variables)


def test_numbers_kinds_and_keys_are_those_of_the_code(document: str):
    assert f"above {MESSAGE_BYTES // 2**20} MiB" in document
    assert function.DONE_S == 3600
    for kind in REQUESTS:
        assert f"`{kind}`" in document
    names = Names("JOB")
    for key in (names.policy, names.learner, names.learner_token, names.fragments, names.done("REQUEST")):
        assert f"`{key}`" in document
    assert f"`{names.state('ATTEMPT')}`" in document
