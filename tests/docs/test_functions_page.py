"""docs/functions.md tells the truth of what its code does not show: numbers, kinds of requests, keys."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from replay_server.rl.function_contract import MESSAGE_BYTES, REQUESTS, Names
from replay_server.serverless import function


def test_numbers_kinds_and_keys_are_those_of_the_code(repository: Path) -> None:
    document = (repository / "docs" / "functions.md").read_text()
    assert f"above {MESSAGE_BYTES // 2**20} MiB" in document
    assert function.DONE_S == 3600
    for kind in REQUESTS:
        assert f"`{kind}`" in document
    names = Names("JOB")
    for key in (names.policy, names.learner, names.learner_token, names.fragments, names.done("REQUEST")):
        assert f"`{key}`" in document
    assert f"`{names.state('ATTEMPT')}`" in document
    on_shards = Names("JOB", "RUN", shards=True)
    assert f"`{on_shards.prefix}`" in document
    assert f"`{on_shards.fragments}`" in document
