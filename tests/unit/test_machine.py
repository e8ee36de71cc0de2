"""Cores and memory that a process may use, from /proc and /sys of machines and containers."""

from __future__ import annotations

import os

import pytest

from replay_server.rl.machine import available_memory_bytes, usable_cores

MEMINFO = "MemTotal:       32768 kB\nMemFree:         1024 kB\nMemAvailable:   16384 kB\n"
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine of 64 cores. Called with its files."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    def make(files):
        for name, text in {"proc/meminfo": MEMINFO, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        # A group above has less than the process's own.
        (
            {
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",
            },
            3,
        ),
        # Of the host, which is not there within the container.
        ({"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "500000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
    ],
)
def test_usable_cores_are_those_that_the_process_has_time_on(root, files, cores):
    assert usable_cores(root(files)) == cores


def test_usable_cores_are_no_more_than_the_process_may_run_on(root, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(root({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"})) == 1


V1 = {"proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000\n"}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 16384 * 1024),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "4000000\n",
                "sys/fs/cgroup/memory.current": "3000000\n",
                "sys/fs/cgroup/memory.stat": "anon 2500000\ninactive_file 500000\nactive_file 7\n",
            },
            1_500_000,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.current": "3000000\n",
            },
            16384 * 1024,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "8000000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1000000\n",
            },
            6_000_000,
        ),
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{UNLIMITED_V1}\n"}, 16384 * 1024),
        # What is over the limit is no memory less than none.
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n"}, 0),
    ],
)
def test_available_memory_is_what_the_control_group_leaves(root, files, available):
    assert available_memory_bytes(root(files)) == available


def test_memory_is_not_guessed_where_nothing_tells(tmp_path):
    assert available_memory_bytes(tmp_path) is None
