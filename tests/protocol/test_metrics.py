"""The metrics port: what it tells is what INFO tells, as Prometheus reads it, and docs/metrics.md lists all of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
from links import eventually

import replay_server as rs

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed (extra dev)")
OPENMETRICS = "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"
REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs" / "metrics.md"
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "replay-server.json"
# Families without a sample on a server without DPDK, primary and replicas.
LABELS_UNSEEN = {
    "replay_server_transport_statistic": "transport, name",
    "replay_server_primary_link_up": "",
    "replay_server_replica_lag_bytes": "",
    "replay_server_replica_lag_seconds": "",
}


def scrape(server: rs.Server, accept: str = "") -> str:
    assert server.metrics_url
    request = urllib.request.Request(server.metrics_url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith(
            "application/openmetrics-text" if "openmetrics" in accept else "text/plain; version=0.0.4"
        )
        return answer.read().decode()


def families(server: rs.Server) -> dict[str, Any]:
    return {family.name: family for family in parser.text_string_to_metric_families(scrape(server))}


def value(server: rs.Server, sample: str, **labels: str) -> float:
    found = [
        one.value
        for family in families(server).values()
        for one in family.samples
        if one.name == sample and one.labels.items() >= labels.items()
    ]
    assert len(found) == 1, (sample, labels, found)
    return found[0]


def fill(client: rs.Client, name: str) -> None:
    ids = client.add(name, {"k": np.arange(6), "policy_version": np.full(6, 7)}, [0.0, 0.3, 1.0, 1.5, 2.0, 9.0])
    client.sample(name, 4)
    client.update_priorities(name, [*ids[:1], 12345], [1.0, 2.0])
    client.publish_weights("policy", {"w": np.zeros(3, np.float32)})
    client.redis.set("a", "b")
    client.redis.get("a")
    client.redis.get("none")
    client.redis.execute_command("GRAD.PUSH", "grads", 3, "0:3:0", "float32", b"\0" * 8)
    with contextlib.suppress(Exception):
        client.redis.execute_command("NOSUCH")


def table(name: str = "t", **more: Any) -> rs.Table:
    columns = {"k": rs.Column("int64"), "policy_version": rs.Column("int64")}
    return rs.Table(name, 100, columns, sampler=rs.Prioritized(1.0), **more)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rs.Server]:
    folder = tmp_path_factory.mktemp("metrics")
    with (
        rs.Server([table()], directory=folder, config={"metrics-port": 0, "appendonly": "yes"}) as server,
        rs.Client(server.url) as client,
    ):
        fill(client, "t")
        client.checkpoint("kept")
        yield server


@pytest.fixture
def port(filled: rs.Server) -> int:
    found = urlsplit(filled.metrics_url or "").port
    assert found is not None
    return found


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_what_is_told_of_a_table_is_what_info_tells(filled):
    with rs.Client(filled.url) as client:
        info = client.info("t")
    told = {
        "items": "size",
        "capacity_items": "capacity",
        "bytes": "bytes",
        "item_bytes": "item_bytes",
        "added_items_total": "added",
        "sampled_items_total": "sampled",
        "removed_items_total": "removed",
        "updates_total": "updates_applied",
        "stale_updates_total": "stale_updates",
        "max_priority": "max_priority",
        "total_priority": "total_priority",
        "policy_version": "policy_version",
    }
    for ours, field in told.items():
        assert value(filled, f"replay_server_table_{ours}", table="t") == info[field], ours
    priorities = {
        sample.labels["at_least"]: sample.value
        for sample in families(filled)["replay_server_table_priority_items"].samples
    }
    assert priorities.pop("0") == info["zero_priorities"]
    assert priorities == {f"{2.0**exponent:g}": count for exponent, count in info["priorities"].items()}
    for state in ("free", "pinned", "reserved", "retired"):
        assert value(filled, "replay_server_table_slots", state=state) == info[f"{state}_slots"]


def test_what_is_told_of_the_rest_is_what_the_server_holds(filled):
    with rs.Client(filled.url) as client:
        info = client.redis.info()
    assert value(filled, "replay_server_weights_version", key="policy") == 1
    assert value(filled, "replay_server_gradients_waiting", key="grads") == 1
    assert value(filled, "replay_server_gradients_oldest_version", key="grads") == 3
    assert value(filled, "replay_server_keys", database="0") == 1
    assert value(filled, "replay_server_key_hits_total") == info["keyspace_hits"]
    assert value(filled, "replay_server_key_misses_total") == info["keyspace_misses"]
    assert value(filled, "replay_server_snapshots_saved_total") == 1
    assert value(filled, "replay_server_append_only_enabled") == 1
    assert value(filled, "replay_server_error_replies_total", code="ERR") >= 1
    assert value(filled, "replay_server_command_calls_total", command="replay.add") == 1
    assert value(filled, "replay_server_request_duration_seconds_count", command="replay.sample") == 1
    assert value(filled, "replay_server_build_info", version=info["replay_server_version"]) == 1
    assert abs(value(filled, "process_start_time_seconds") - time.time()) < 3600
    assert value(filled, "process_cpu_seconds_total") > 0


def test_who_follows_whom_and_how_far_behind_is_told():
    """As INFO replication tells it; `fenced` is what an old primary becomes that a client has told of a newer one."""
    settings: dict[str, Any] = {"metrics-port": 0}
    with (
        rs.Server(config=settings) as primary,
        rs.Client(primary.url) as client,
        rs.Server(config=settings) as replica,
        rs.Client(replica.url) as beside,
    ):
        assert value(primary, "replay_server_is_replica") == value(primary, "replay_server_replicas") == 0
        assert not families(primary)["replay_server_replica_lag_bytes"].samples
        assert not families(primary)["replay_server_primary_link_up"].samples
        beside.command("REPLICAOF", "127.0.0.1", urlsplit(primary.url).port)
        eventually(lambda: value(replica, "replay_server_primary_link_up") == 1, "the link is up")
        client.redis.set("k", "v")
        assert client.redis.wait(1, 30_000) == 1
        assert value(primary, "replay_server_replicas") == value(replica, "replay_server_is_replica") == 1
        # The question for the acknowledgement is a change, too, and is acknowledged within a second.
        eventually(lambda: value(primary, "replay_server_replica_lag_bytes") == 0, "the replica has everything")
        assert 0 <= value(primary, "replay_server_replica_lag_seconds") < 60
        offset = client.redis.info("replication")["master_repl_offset"]
        assert 0 < value(primary, "replay_server_replication_offset_bytes") <= offset
        assert value(primary, "replay_server_fenced") == 0
        beside.command("REPLICAOF", "NO", "ONE")
        with rs.Client(f"redis://{urlsplit(primary.url).netloc},{urlsplit(replica.url).netloc}") as both:
            both.tables()
        eventually(lambda: value(primary, "replay_server_fenced") == 1, "it has heard of the newer one")
        assert value(replica, "replay_server_fenced") == value(replica, "replay_server_is_replica") == 0


def test_why_somebody_would_have_to_wait_is_told():
    tables = [table("few", rate_limiter=rs.MinSize(10)), table("zeros")]
    with rs.Server(tables, config={"metrics-port": 0}) as server, rs.Client(server.url) as client:
        client.add("zeros", {"k": np.arange(2), "policy_version": np.zeros(2, np.int64)}, [0.0, 0.0])
        for name, reason in (("few", "too_few_items"), ("zeros", "zero_priorities")):
            would = {
                (sample.labels["operation"], sample.labels["reason"]): sample.value
                for sample in families(server)["replay_server_table_would_wait"].samples
                if sample.labels["table"] == name
            }
            assert [key for key, one in would.items() if one == 1] == [("sample", reason)]
            assert len(would) == 8


def test_histograms_are_cumulative_and_end_with_their_count(filled):
    found = families(filled)
    for name in ("replay_server_command_duration_seconds", "replay_server_request_duration_seconds"):
        by_command: dict[str, list[float]] = {}
        for sample in found[name].samples:
            if sample.name.endswith("_bucket"):
                by_command.setdefault(sample.labels["command"], []).append(sample.value)
        assert "replay.add" in by_command
        for command, counts in by_command.items():
            assert counts == sorted(counts)
            assert len(counts) == 14
            assert counts[-1] == value(filled, f"{name}_count", command=command) or command == "info"


def test_names_and_help_follow_the_conventions_of_prometheus(filled):
    """What `promtool check metrics` looks at: names, units as suffixes, _total, HELP and TYPE, one block per family."""
    text = scrape(filled)
    helped = re.findall(r"^# HELP (\S+) (\S.*)$", text, re.MULTILINE)
    typed = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", text, re.MULTILINE)
    assert [name for name, _ in helped] == [name for name, _ in typed]
    assert len(dict(typed)) == len(typed) > 80
    assert len(re.findall("^# ", text, re.MULTILINE)) == 2 * len(typed)
    for name, kind in typed:
        assert re.fullmatch("(replay_server|process)_[a-z0-9_]*[a-z0-9]", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search("_(counter|gauge|histogram|ms|us|ns|kb|mb|count|sum|bucket)$", name), name
        if kind == "histogram":
            assert name.endswith("_seconds")
    seen: list[str] = []
    for line in text.splitlines():
        name = line.split()[2] if line.startswith("# ") else re.split("[{ ]", line)[0]
        base = re.sub("_(bucket|sum|count)$", "", name) if dict(typed).get(name) is None else name
        if not seen or seen[-1] != base:
            seen.append(base)
    assert len(seen) == len(set(seen)), "samples of one family are apart"


def test_openmetrics_is_told_to_who_asks_for_it(filled):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text = scrape(filled, OPENMETRICS)
    assert text.endswith("# EOF\n")
    found = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert found["replay_server_build"] == "info"
    assert found["replay_server_commands"] == "counter"
    assert len(found) == len(families(filled))


def test_any_name_of_a_table_or_key_is_a_label_that_can_be_read():
    names = ['quo"te', "back\\slash", "snow☃", "<b>x</b>", "{}=,"]
    with rs.Server([table(name) for name in names], config={"metrics-port": 0}) as server:
        with rs.Client(server.url) as client:
            client.redis.execute_command("WEIGHTS.PUBLISH", b"\xff\n\x01 x", "*", b"blob")
        labels = [sample.labels["table"] for sample in families(server)["replay_server_table_items"].samples]
        assert labels == names
        key = families(server)["replay_server_weights_version"].samples[0].labels["key"]
        assert key == "\\xff\n\\x01 x"


def test_many_tables_are_told_in_slices_and_all_of_them():
    with rs.Server([table(f"t{i}") for i in range(256)], config={"metrics-port": 0}) as server:
        with rs.Client(server.url) as client:
            for i in range(256):
                client.add(f"t{i}", {"k": np.arange(3), "policy_version": np.zeros(3, np.int64)}, [0.1, 1.0, 10.0])
            before = client.redis.info("stats")["loop_turns"]
            found = families(server)
            after = client.redis.info("stats")["loop_turns"]
        assert len(found["replay_server_table_items"].samples) == 256
        assert sum(sample.value for sample in found["replay_server_table_priority_items"].samples) == 3 * 256
        assert after - before > 10


def test_a_page_goes_on_when_tables_come_and_go_meanwhile():
    with (
        rs.Server([table(f"t{i}") for i in range(200)], config={"metrics-port": 0}) as server,
        rs.Client(server.url) as client,
    ):
        assert server.metrics_url
        address = urlsplit(server.metrics_url)
        for i in range(200):
            with socket.create_connection((str(address.hostname), address.port or 0)) as one:
                one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                client.redis.execute_command("REPLAY.DROP", f"t{i}")
                answer = b"".join(iter(lambda: one.recv(1 << 20), b""))
            text = answer.split(b"\r\n\r\n", 1)[1].decode()
            found = {family.name: family for family in parser.text_string_to_metric_families(text)}
            for family in found.values():
                keys = [(sample.name, tuple(sample.labels.items())) for sample in family.samples]
                assert len(keys) == len(set(keys))
            if i >= 3:
                break


# ---- how it is asked for ---------------------------------------------------------------------------------------------


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        one.sendall(request)
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics?name=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\n\r\n", 404),
        (b"GET /metrics/../etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"GET /" + b"m" * 300 + b" HTTP/1.0\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"get /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 505),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", 400),
        (b"*1\r\n$4\r\nPING\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\0" * 100 + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, 431),
        (b"GET /" + b"x" * 9000, 431),
    ],
)
def test_requests_are_answered_or_refused(port, request_bytes, status):
    answer = ask(port, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
    head, body = answer.split(b"\r\n\r\n", 1)
    assert f"Content-Length: {len(body)}".encode() in head
    assert (b"Allow: GET, HEAD" in head) == (status == 405)
    assert body or status == 200


def test_head_tells_the_length_and_no_more(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for method in ("HEAD", "GET", "HEAD"):  # over one connection
        connection.request(method, "/healthz")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Length"]) == (200, "3")
        assert answer.read() == (b"ok\n" if method == "GET" else b"")
    connection.close()


def test_a_request_may_come_in_pieces_and_several_at_once(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
            one.sendall(bytes([byte]))
        reader = one.makefile("rb")
        assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
        while reader.readline() != b"\r\n":
            pass
        assert reader.read(3) == b"ok\n"
        one.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" * 5 + b"GET / HTTP/1.0\r\n\r\n")
        rest = reader.read()
        assert (rest.count(b"HTTP/1.1 200"), rest.count(b"HTTP/1.1 404")) == (5, 1)


def test_connections_are_bounded_and_the_idlest_makes_way(filled, port):
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", port)
        idle = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(40)]
        assert ask(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")
        closed = 0
        for one in idle:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                closed += one.recv(1) == b""
    assert closed >= 40 - 16
    assert "replay_server_clients" in families(filled)


def test_clients_are_served_while_a_page_is_not_taken(filled, port):
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", port))
    slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 100)
    with rs.Client(filled.url) as client:
        for _ in range(20):
            assert client.redis.ping()
    slow.close()
    assert families(filled)


# ---- where it listens ------------------------------------------------------------------------------------------------


def serve(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "replay_server", "serve", "--port", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_there_is_no_port_unless_it_is_asked_for():
    with rs.Server() as server:
        assert server.metrics_url is None


def test_serve_opens_the_port_and_tells_where(free_port):
    process = serve("--metrics-port", str(free_port))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.rstrip().endswith(f" metrics=http://127.0.0.1:{free_port}/metrics"), line
        assert ask(free_port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"ok\n")
        taken = serve("--metrics-port", str(free_port))
        _, why = taken.communicate(timeout=60)
        assert taken.returncode == 3, why
        assert "for metrics" in why
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_other_machines_see_it_only_where_that_is_said():
    process = serve("--metrics-port", "0", "--metrics-host", "0.0.0.0")
    _, why = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--allow-remote" in why


# ---- what is written of it -------------------------------------------------------------------------------------------


def rows(server: rs.Server) -> list[str]:
    """The lines of docs/metrics.md, one for each family."""
    lines = []
    for name, text, kind in re.findall(r"# HELP (\S+) (.*)\n# TYPE \1 (.*)\n", scrape(server)):
        samples = re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{(.*)\}} \S+$", scrape(server), re.MULTILINE)
        labels = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', samples[0]) if samples else []
        known = ", ".join(label for label in labels if label != "le") or LABELS_UNSEEN.get(name, "")
        lines.append(f"| `{name}` | {kind} | {known} | {text} |")
    return lines


def test_the_document_lists_every_metric_and_no_other(filled):
    written = [line for line in DOCUMENT.read_text().splitlines() if re.match(r"\| `(replay_server|process)_", line)]
    assert written == rows(filled), "python tests/protocol/test_metrics.py prints the lines as they should be"


def queries() -> dict[str, list[str]]:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = {panel["title"]: [target["expr"] for target in panel.get("targets", [])] for panel in dashboard["panels"]}
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return {**{title: found for title, found in panels.items() if found}, "variables": variables}


def test_the_grafana_dashboard_asks_for_what_there_is(filled):
    """Every metric in a query is told, with the labels that the query selects or groups by."""
    labels: dict[str, set[str]] = {}
    for family in families(filled).values():
        if family.name in LABELS_UNSEEN:
            labels[family.name] = set(LABELS_UNSEEN[family.name].split(", "))
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = queries()
    assert len(asked) > 30
    for title, expressions in asked.items():
        for expression in expressions:
            names = re.findall(r"\b(?:replay_server|process)_\w+", expression)
            assert names, (title, expression)
            assert set(names) <= set(labels), (title, set(names) - set(labels))
            wanted = set(re.findall(r'(\w+)=~?"', expression)) - {"instance"}
            for group in re.findall(r"by \(([\w, ]+)\)", expression):
                wanted |= set(group.split(", ")) - {"instance"}
            assert all(wanted <= labels[name] for name in names), (title, expression, wanted)
            assert all(expression.count(left) == expression.count(right) for left, right in ("()", "{}", "[]"))


def test_the_grafana_dashboard_has_its_panels_side_by_side():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


if __name__ == "__main__":
    with rs.Server([table()], directory=sys.argv[1], config={"metrics-port": 0, "appendonly": "yes"}) as shown:
        with rs.Client(shown.url) as filler:
            fill(filler, "t")
            filler.checkpoint("kept")
        print("\n".join(rows(shown)))


def test_a_shard_tells_of_its_topology_and_other_servers_do_not(filled: rs.Server) -> None:
    cluster_families = [each for name, each in families(filled).items() if name.startswith("replay_server_cluster")]
    assert [each.samples for each in cluster_families] == [[]] * 4
    with rs.Cluster(shards=2, config={"metrics-port": 0}) as cluster:
        moving = cluster.topology.beginning([5, 6], 1)
        for number, server in enumerate(cluster.servers):
            with redis.Redis.from_url(server.url) as client:
                client.execute_command(*moving.arguments(number))
            told = families(server)
            values = {
                name: told[f"replay_server_cluster_{name}"].samples[0].value
                for name in ("topology_version", "shards", "slots", "moving_slots")
            }
            assert values == {"topology_version": 2, "shards": 2, "slots": 8192, "moving_slots": 2}
