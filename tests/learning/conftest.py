"""Jobs that end with their test."""

from __future__ import annotations

import pytest
from apex_job import Job


@pytest.fixture
def start(tmp_path):
    jobs: list[Job] = []

    def start_job(*words: str, **options) -> Job:
        jobs.append(Job(tmp_path, *words, **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
