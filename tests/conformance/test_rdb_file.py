"""Files of Redis: what its server saves this one starts from; what this one sends to `redis-cli --rdb` Redis loads."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import redis

import replay_server

LIMITS = {
    "packed": [],
    "unpacked": [
        *("--hash-max-listpack-entries", "0", "--zset-max-listpack-entries", "0", "--set-max-intset-entries", "0"),
        *("--rdbcompression", "no", "--list-max-listpack-size", "2"),
    ],
}


class Redis:
    """A redis-server in a folder of its own."""

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.socket = folder / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder), "--save", ""]
        command += ["--enable-debug-command", "yes", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(unix_socket_path=str(self.socket))
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                assert self.process.poll() is None, "redis-server has ended"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)

    def __enter__(self) -> redis.Redis:
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(timeout=60)


def fill_stream(client: redis.Redis | redis.client.Pipeline, key: str, entries: int, chance: random.Random) -> None:
    """Entries of which some are deleted, and two groups: one that was given some, one that has read nothing."""
    for i in range(entries):
        client.xadd(key, {"n": i, f"field:{i % 3}": chance.randbytes(i % 80)}, id=f"{i + 1}-{i % 2}")
    client.xdel(key, *(f"{i + 1}-{i % 2}" for i in range(0, entries, 7)))
    for group in ("g", "unread"):
        client.xgroup_create(key, group, id="0")
    client.xreadgroup("g", "first", {key: ">"}, count=max(1, entries // 2))
    client.xreadgroup("g", "second", {key: ">"}, count=1)
    client.xack(key, "g", "2-1", "4-1")


def fill(client: redis.Redis) -> None:
    """Keys of all types, small and large, in several databases, some of which end."""
    chance = random.Random(2)
    for n, size in enumerate((1, 3, 40, 700)):
        client.set(f"integer:{n}", 10 ** (4 * n), ex=100_000)
        client.set(f"text:{n}", b"text " * size)
        client.set(f"random:{n}", chance.randbytes(size * 30))
        client.rpush(f"list:{n}", *range(size), *(chance.randbytes(90) for _ in range(size)))
        client.sadd(f"integers:{n}", *range(0, size * 1000, 1000))
        client.sadd(f"members:{n}", *(f"member:{i}" for i in range(size)))
        client.hset(f"hash:{n}", mapping={f"field:{i}": chance.randbytes(i % 80) for i in range(size)})
        client.zadd(f"scores:{n}", {f"member:{i}": chance.uniform(-1e6, 1e6) for i in range(size)})
        client.pfadd(f"sketch:{n}", *range(size * 10))
        client.geoadd(f"places:{n}", [part for i in range(size) for part in (chance.uniform(-180, 180), 5, f"p{i}")])
        fill_stream(client, f"stream:{n}", size, chance)
    client.rpush("large:list", *(f"element:{i}" for i in range(30_000)))
    client.zadd("large:scores", {f"member:{i}": i / 7 for i in range(20_000)} | {"inf": float("inf")})
    client.set("large:string", b"abc" * 400_000)
    for database in (3, 15):
        other = redis.Redis(unix_socket_path=client.connection_pool.connection_kwargs["path"], db=database)
        other.set("elsewhere", database)
        other.hset("h", "f", "v")
        other.close()


@pytest.fixture(scope="module")
def saved(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    """By how Redis packed values: a file that it saved, and the digest of its keys."""
    files: dict[str, tuple[Path, bytes]] = {}
    for name, options in LIMITS.items():
        folder = tmp_path_factory.mktemp(name)
        with Redis(redis_program, folder, *options) as client:
            fill(client)
            client.save()
            files[name] = folder / "dump.rdb", client.execute_command("DEBUG DIGEST")
    return files


def fill_with_a_million(client: redis.Redis) -> None:
    """10^6 keys of all types, in three databases, a tenth of them with an end."""
    chance = random.Random(3)
    path = client.connection_pool.connection_kwargs["path"]
    for database in range(3):
        with redis.Redis(unix_socket_path=path, db=database) as other:
            for first in range(database, 1_000_000, 3_000):
                pipeline = other.pipeline(transaction=False)
                for n in range(first, min(first + 3_000, 1_000_000), 3):
                    add_some_key(pipeline, n, chance)
                pipeline.execute()


def add_some_key(client: redis.client.Pipeline, n: int, chance: random.Random) -> None:
    size = int(chance.paretovariate(1.2))
    match n % 10:
        case 0 | 1 | 2:
            client.set(f"text:{n}", chance.randbytes(size % 5000))
        case 3:
            client.set(f"integer:{n}", chance.randint(-(2**63), 2**63 - 1))
        case 4:
            client.rpush(f"list:{n}", *(chance.randbytes(i % 90) for i in range(size % 500 + 1)))
        case 5:
            client.sadd(f"integers:{n}", *(chance.randint(-(2**40), 2**40) for _ in range(size % 700 + 1)))
        case 6:
            client.sadd(f"members:{n}", *(f"member:{i}" for i in range(size % 200 + 1)))
        case 7:
            client.hset(f"hash:{n}", mapping={f"field:{i}": chance.randbytes(i % 80) for i in range(size % 700 + 1)})
        case 8:
            client.zadd(f"scores:{n}", {f"member:{i}": chance.uniform(-1e6, 1e6) for i in range(size % 200 + 1)})
        case _:
            fill_stream(client, f"stream:{n}", size % 200 + 1, chance)
    if n % 10 == 3 or n % 100 == 9:
        client.expire(f"integer:{n}" if n % 10 == 3 else f"stream:{n}", 1_000_000)


def export(server: replay_server.Server, file: Path) -> None:
    subprocess.run(["redis-cli", "-u", server.url, "--rdb", str(file)], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("packing", list(LIMITS))
@pytest.mark.parametrize("compression", ["yes", "no"])
def test_a_file_of_redis_goes_through_this_server_and_back_unchanged(
    saved: dict[str, tuple[Path, bytes]], packing: str, compression: str, redis_program: str, tmp_path: Path
) -> None:
    file, digest = saved[packing]
    back = tmp_path / "back"
    back.mkdir()
    with replay_server.Server([], directory=tmp_path, restore=file, config={"rdbcompression": compression}) as server:
        with redis.Redis.from_url(server.url) as client:
            assert 90_000 < client.ttl("integer:1") <= 100_000
        export(server, back / "dump.rdb")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["back"], "a file was left behind"
    with Redis(redis_program, back) as client:
        assert client.execute_command("DEBUG DIGEST") == digest


@pytest.mark.slow
def test_a_million_keys_of_redis_go_through_this_server_and_back_unchanged(redis_program: str, tmp_path: Path) -> None:
    with Redis(redis_program, tmp_path / "first") as client:
        fill_with_a_million(client)
        assert sum(client.info("keyspace")[f"db{n}"]["keys"] for n in range(3)) == 1_000_000
        digest = client.execute_command("DEBUG DIGEST")
        client.save()
    back = tmp_path / "back"
    back.mkdir()
    with replay_server.Server([], directory=tmp_path, restore=tmp_path / "first" / "dump.rdb") as server:
        export(server, back / "dump.rdb")
    with Redis(redis_program, back) as client:
        assert client.execute_command("DEBUG DIGEST") == digest


def test_what_is_exported_is_of_one_moment(redis_program: str, tmp_path: Path) -> None:
    """Two keys that are always changed together are the same in the file."""
    with replay_server.Server([], directory=tmp_path) as server, redis.Redis.from_url(server.url) as client:
        for at in range(0, 20_000, 1000):
            client.mset({f"filler:{at + n}": "x" * 50 for n in range(1000)})
        sync = subprocess.Popen(["redis-cli", "-u", server.url, "--rdb", str(tmp_path / "dump.rdb")])
        count = 0
        while sync.poll() is None:
            count += 1
            client.mset({"first": count, "second": count, f"filler:{count % 20_000}": "y"})
        assert sync.returncode == 0
        assert client.ping()
    with Redis(redis_program, tmp_path) as client:
        assert client.get("first") == client.get("second")
        assert client.dbsize() >= 20_000


def start_refused(file: Path, folder: Path) -> str:
    """What a server says that is given the file and ends."""
    command = ["replay-server", "serve", "--port", "0", "--dir", str(folder), "--restore", str(file)]
    program = shutil.which(command[0]) or str(Path(replay_server.__file__).parents[1] / ".venv/bin/replay-server")
    result = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=120)
    assert result.returncode not in (0, 130, -6, -11), result
    return result.stderr


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-1], "are left"),
        (lambda data: data[: len(data) // 2], "byte"),
        (lambda data: data[:5] + b"0099" + data[9:], "version 99"),
        (lambda data: data[:9] + b"\xf7" + data[10:], "byte 9: data of a module"),
        (lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], "byte"),
        (lambda data: data + b"x", "something follows the end"),
        (lambda data: data[:9] + b"\x06\x01k\x00" + data[9:], "a value of a module"),
    ],
    ids=["an end that is cut off", "half", "version", "module", "one bit", "more behind it", "module's value"],
)
def test_a_damaged_file_is_refused_by_the_byte(
    saved: dict[str, tuple[Path, bytes]], damage: object, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "dump.rdb"
    assert callable(damage)
    file.write_bytes(damage(saved["packed"][0].read_bytes()))
    said = start_refused(file, tmp_path)
    assert "byte" in said
    assert told in said
    assert "nothing was restored" in said


LIBRARY_CODE = b"#!lua name=a\nredis.register_function('f', function() return 4 end)"
LIBRARY = b"\xf5\x40" + bytes([len(LIBRARY_CODE)]) + LIBRARY_CODE


def test_files_by_hand_are_read(tmp_path: Path) -> None:
    """Marks that a saved file has only at times: functions, idle times and frequencies, ends in seconds."""
    later = int(time.time()) + 100_000
    body = b"REDIS0011\xfe\x02\xfb\x03\x01" + LIBRARY + b"\xf8\x05\xf9\x07\x00\x01a\x01v"
    body += b"\xfd" + later.to_bytes(4, "little") + b"\x00\x01b\x01w\x01\x05empty\x00\xff"
    file = tmp_path / "made.rdb"
    file.write_bytes(body + bytes(8))  # without a checksum
    with (
        replay_server.Server([], directory=tmp_path, restore=file) as server,
        redis.Redis.from_url(server.url, db=2) as client,
    ):
        assert (client.get("a"), client.get("b"), client.dbsize()) == (b"v", b"w", 2)
        assert client.ttl("a") == -1
        assert client.expiretime("b") == later
        assert client.fcall("f", 0) == 4
