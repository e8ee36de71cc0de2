"""The benchmarks' own machinery: programs in processes of their own, turns, ratios, what is refused. No timings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_server.bench import result
from replay_server.bench.environments import ENVIRONMENTS, PROGRAMS, is_ready
from replay_server.bench.items import KINDS
from replay_server.bench.load import Crew, Load, run
from replay_server.bench.main import PAPERS
from replay_server.bench.main import main as bench
from replay_server.bench.peers import claims, environments_to_make, in_process, ratios
from replay_server.bench.peers.systems import SYSTEMS
from replay_server.bench.peers.table import markdown, rows
from replay_server.bench.process import Program
from replay_server.bench.programs.recorded import Recorded, write
from replay_server.bench.server import fill, start


@pytest.fixture(autouse=True)
def without_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test here depends on which peers this machine has."""
    monkeypatch.setenv("REPLAY_PEERS", str(tmp_path / "peers"))


def test_a_program_answers_in_order_and_tells_why_it_failed() -> None:
    columns = KINDS["hopper"].columns
    with Program("replay", None) as program:
        program.send("buffer", columns=columns, capacity=200, batch_size=16, push_size=10, seed=1)
        program.send("repeat", step="cycle", seconds=0.01, warm_up=0.0)
        assert program.receive() is None
        assert program.receive()["calls_per_s"] > 0
        with pytest.raises(RuntimeError, match=r"program of replay failed(.|\n)*no attribute 'leap'"):
            program.ask("repeat", step="leap", seconds=0.01, warm_up=0.0)
        assert program.ask("versions")["numpy"]


def test_a_program_that_ends_is_told_from_one_that_is_slow() -> None:
    with Program("no_such_peer", None) as program, pytest.raises(RuntimeError, match=r"it ended(.|\n)*no_such_peer"):
        program.ask("versions")


def test_a_program_may_lie_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """The module beside it is found, too: programs of one library share what they know of it."""
    (tmp_path / "shared_knowledge.py").write_text("FACTOR = 7\n")
    (tmp_path / "peer_multiplier.py").write_text(
        "from shared_knowledge import FACTOR\n\n\ndef learner():\n    return lambda number: number * FACTOR\n"
    )
    with Program("multiplier", None, programs=tmp_path) as program:
        program.ask("role", role="learner")
        assert program.ask("call", number=6) == 42


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_a_benchmark_of_a_paper_says_where_it_is_when_it_is_not_installed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a wheel, which has no folder `papers`."""
    monkeypatch.setitem(sys.modules, "replay_server.bench.papers", None)
    assert bench([name, "--help"]) == 1
    told = capsys.readouterr().err
    assert f"bench/papers/{PAPERS[name].partition('.')[0]}," in told
    assert f"In a checkout of the project run `make setup`, then `.venv/bin/replay-server bench {name}`" in told


def test_papers_are_told_apart_from_what_measures_this_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--help"]) == 0
    product, papers = capsys.readouterr().out.split("Tables and figures of papers, from a checkout alone:")
    listed = [line.split()[0] for line in papers.splitlines() if line.startswith("  ") and not line.startswith("  --")]
    assert sorted(listed) == sorted(PAPERS)
    assert "  latency " in product


def test_a_peer_without_its_environment_is_refused_with_the_command_that_makes_it() -> None:
    with pytest.raises(RuntimeError, match="bench peers --setup"):
        Program("cpprb", "cpprb")


def test_set_up_makes_the_environments_of_the_peers_that_are_named() -> None:
    assert environments_to_make(["reverb_frames", "cpprb"]) == ["cpprb", "reverb"]
    assert environments_to_make(["replay"]) == []
    assert {"cpprb", "reverb", "rllib"} <= set(environments_to_make(None))
    with pytest.raises(RuntimeError, match="no peer is called 'reverbs'"):
        environments_to_make(["reverbs"])


def test_an_environment_made_for_other_requirements_counts_as_missing(tmp_path: Path) -> None:
    folder = tmp_path / "peers" / "cpprb"
    folder.mkdir(parents=True)
    made = {"requirements": list(ENVIRONMENTS["cpprb"].requirements)}
    (folder / "made.json").write_text(json.dumps(made))
    assert is_ready("cpprb")
    (folder / "made.json").write_text(json.dumps({"requirements": ["cpprb==10.0.0"]}))
    assert not is_ready("cpprb")


def test_every_peer_has_a_program_and_a_known_environment() -> None:
    sides = {(peer.program or peer.name, peer.environment) for peer in in_process.PEERS}
    sides |= {(system.program, system.environment) for system in SYSTEMS}
    for name, environment in sides:
        assert (PROGRAMS / f"peer_{name}.py").is_file()
        assert environment is None or environment in ENVIRONMENTS


def test_another_side_is_first_in_each_round() -> None:
    sides = ["a", "b", "c"]
    orders = [in_process.in_turn(sides, number) for number in range(4)]
    assert [order[0] for order in orders] == ["a", "b", "c", "a"]
    assert all(sorted(order) == sides for order in orders)


def test_ratios_are_each_way_of_using_this_project_over_each_peer_of_the_same_measurement() -> None:
    names = [
        "t.1.replay.sample",
        "t.1.replay_windows.sample",
        "t.1.cpprb.sample",
        "t.1.cpprb.update",
        "t.2.cpprb.sample",
    ]
    assert ratios(names) == {
        "t.1.sample replay / cpprb": ("t.1.replay.sample", "t.1.cpprb.sample"),
        "t.1.sample replay_windows / cpprb": ("t.1.replay_windows.sample", "t.1.cpprb.sample"),
    }


def results(rounds: list[dict[str, float]]) -> dict[str, Any]:
    return result.document("peers", "replay-server bench peers", {}, {}, rounds, {})


def test_the_table_compares_with_the_best_prioritized_peer_within_rounds() -> None:
    what = "sample_calls_per_s"
    content = results(
        [
            {f"buffer.atari.{side}.{what}": value * number for side, value in sides.items()}
            for number in (1, 2)
            for sides in [{"replay": 30.0 * number, "cpprb": 10.0, "tianshou": 15.0, "ceiling": 99.0, "redis": 70.0}]
        ]
    )
    (row,) = rows(content)
    assert (row.own, row.best) == ("replay", "tianshou")
    assert row.spread == (2.0, 4.0)
    assert row.ratio == 3.0
    assert "| atari sample |" in markdown(content)
    assert "**3.0** (2.0–4.0) over tianshou" in markdown(content)


def test_of_costs_the_least_is_best() -> None:
    name = "experience.breakout.{}.memory_bytes_per_item"
    values = {"replay": 50_000.0, "replay_zstd": 1_000.0, "reverb": 9_000.0, "reverb_frames": 4_000.0}
    (row,) = rows(results([{name.format(side): value for side, value in values.items()}]))
    assert (row.own, row.best, row.ratio) == ("replay_zstd", "reverb_frames", 4.0)
    assert "replay_zstd over reverb_frames" in markdown(results([{name.format(s): v for s, v in values.items()}]))


def test_claims_are_ratios_within_rounds_or_numbers_and_say_what_is_not_met() -> None:
    rounds = [
        {
            "tree.1000000.replay.sample_calls_per_s": 100.0 * number,
            "tree.1000000.tianshou.sample_calls_per_s": 20.0,
            "tree.1000000.cpprb.sample_calls_per_s": 10.0,
            "tree.100000.replay.sample_calls_per_s": 300.0,
            "tree.10000000.replay.sample_calls_per_s": 50.0,
            "experience.breakout.replay_windows.memory_bytes_per_item": 7_500.0,
            "experience.breakout.replay_lz4.memory_bytes_per_item": 2_000.0,
            "experience.breakout.replay_zstd.memory_bytes_per_item": 1_600.0,
        }
        for number in (1, 2, 3)
    ]
    sample, growth, plain, compressed = claims.findings(rounds)
    assert (sample.peer, sample.value, sample.spread, sample.met) == ("tianshou", 10.0, (5.0, 15.0), True)
    assert (growth.value, growth.met) == (6.0, False)
    assert (plain.value, plain.met) == (7_500.0, True)
    assert (compressed.side, compressed.value, compressed.met) == ("replay_zstd", 1_600.0, False)
    lines = claims.markdown([sample, growth, plain, compressed]).splitlines()
    assert "| 10.00 (5.00–15.00) | ≥ 4 | replay / tianshou |" in lines[2]
    assert lines[3].endswith("| 6.00 (6.00–6.00) | ≤ 4, **not met** | replay / replay |")


def test_recorded_transitions_are_stacked_within_episodes_only(tmp_path: Path) -> None:
    frames = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((6, 1, 84, 84), np.uint8)
    first = np.array([True, False, False, False, True, False])[:, None]
    write(tmp_path, frames, np.zeros((6, 1), np.int64), np.zeros((6, 1), np.float32), first)
    items = list(Recorded(tmp_path).transitions())
    shown = [(item["obs"][0, :, 0, 0].tolist(), item["next_obs"][0, :, 0, 0].tolist()) for item in items]
    assert shown == [
        ([0, 0, 0, 0], [0, 1, 2, 3]),
        ([0, 0, 0, 1], [0, 1, 2, 3]),
        ([0, 0, 1, 2], [0, 1, 2, 3]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([4, 4, 4, 4], [4, 4, 4, 5]),
        ([4, 4, 4, 5], [4, 4, 4, 5]),
    ]
    assert [float(item["discount"][0]) > 0 for item in items] == [True, False, False, False, False, False]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_load_reports_pushes_and_batches_of_processes_that_are_used_again(tmp_path: Path, shards: int) -> None:
    kind = KINDS["hopper"]
    with start(kind, 1_000, "tcp", str(tmp_path), shards) as target, Crew("replay") as crew:
        assert len(target.pids) == shards
        fill(target.url, kind, 1_000)
        for load in (
            Load(1, True, 10, 32, 0.1, warm_up=0.0, capacity=1_000),
            Load(2, False, 10, 32, 0.1, warm_up=0.0, capacity=1_000),
        ):
            values = run(crew, target, kind, load)
            assert values["push_items_per_s"] > 0
            assert ("sample_batches_per_s" in values) == load.learner
            assert ("server_cpu_us_per_push" in values) != load.learner
        pids = {crew.member(number).pid for number in range(3)}
        assert len(pids) == 3


def test_peers_writes_a_file_with_rounds_medians_and_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    arguments = "peers --section buffers --item hopper --peer ceiling --capacity 500 --batch 16 --push 10 --rounds 2"
    assert bench([*arguments.split(), "--short-seconds", "0.01", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert len(content["rounds"]) == 2
    assert content["ratio"]["buffer.hopper.sample_calls_per_s replay / ceiling"] > 0
    assert "| hopper cycle |" in capsys.readouterr().out


def test_an_unknown_peer_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["peers", "--peer", "cprb"]) == 1
    assert "no peer is called 'cprb': expected some of" in capsys.readouterr().err
