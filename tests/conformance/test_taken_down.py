"""Commands that are taken down as others: what is read back from the append-only file is what was there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import test_bits
import test_keys
import test_lists_waiting
from against_redis import KEYS, SLOW_IS_FINE, Command, Commands, command
from durable import assert_same, contents, kill, send, serve, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dump import with_footer

import replay_server as rs

FAMILIES: list[Commands] = [
    *test_bits.COMMANDS,
    *test_keys.COMMANDS,
    *test_lists_waiting.COMMANDS,
    command("incrbyfloat", KEYS, st.sampled_from([b"0.1", b"3.0e3", b"1e-9"])),
    command("hincrbyfloat", KEYS, st.sampled_from([b"f", b"g"]), st.sampled_from([b"0.1", b"-2.5"])),
    command("set", KEYS, st.just(b"v"), st.sampled_from([(b"EX", b"900"), (b"GET", b"PX", b"900000"), (b"KEEPTTL",)])),
    command("getex", KEYS, st.sampled_from([(b"EX", b"900"), (b"PERSIST",), (b"PXAT", b"1")])),
    command("expire", KEYS, st.sampled_from([(b"900",), (b"-1",), (b"900", b"GT")])),
    command("setex", KEYS, st.just(b"900"), st.just(b"v")),
    command("psetex", KEYS, st.just(b"900000"), st.just(b"v")),
    command("getdel", KEYS),
]


def test_what_random_commands_left_is_read_back(tmp_path: Path) -> None:
    @settings(max_examples=8, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(st.lists(st.one_of(*FAMILIES), min_size=60, max_size=200))
    def run(sequence: list[Command]) -> None:
        folder = tmp_path / str(time.monotonic_ns())
        folder.mkdir()
        with serve(folder, "no") as (_, client):
            pipeline = client.pipeline(transaction=False)
            for words in sequence:
                pipeline.execute_command(*words)
            pipeline.execute(raise_on_error=False)
            before = contents(client)
        with serve(folder, "no") as (_, client):
            assert_same(contents(client), before)

    run()


def test_what_was_popped_after_a_wait_stays_popped(tmp_path: Path) -> None:
    waits = ["BLPOP a 0", "BRPOP z a 0", "BLMOVE a b LEFT RIGHT 0", "BRPOPLPUSH a c 0", "BLMPOP 0 2 z a LEFT COUNT 2"]
    with serve(tmp_path) as (server, client):

        def wait(line: str) -> None:
            with rs.Client(server.url) as waiting:
                waiting.redis.execute_command(*line.split())

        threads = [threading.Thread(target=wait, args=(line,)) for line in waits]
        for blocked, thread in enumerate(threads, 1):
            thread.start()
            while client.info("clients")["blocked_clients"] < blocked:
                time.sleep(0.001)
        client.rpush("a", *range(8))
        for thread in threads:
            thread.join()
        before = contents(client)
        kill(server)
    with serve(tmp_path) as (_, client):
        assert_same(contents(client), before)
        assert client.lrange("b", 0, -1) == [b"1"]
        assert client.llen("a") == 2


# ---- every command that writes --------------------------------------------------------------------------------------

# For each: what is there before, and the command, on keys of its own (K, L, M). Where chance decides what
# it does, there is so much that the same hardly comes about twice: of 200 members 100 are popped.
MANY = " ".join(str(number) for number in range(200))
SCORED = " ".join(f"{number % 7} {number}" for number in range(200))
WRITES = f"""
set K v | append K more
set K abc | bitfield K INCRBY u8 0 200 OVERFLOW SAT INCRBY u8 8 200
set K abc ; set L xyz | bitop XOR M K L
rpush K {MANY} | blmove K L LEFT RIGHT 1
rpush L {MANY} | blmpop 1 2 K L RIGHT COUNT 10
rpush L {MANY} | blpop K L 1
rpush L {MANY} | brpop K L 1
rpush K {MANY} | brpoplpush K L 1
zadd L {SCORED} | bzmpop 1 2 K L MAX COUNT 10
zadd L {SCORED} | bzpopmax K L 1
zadd L {SCORED} | bzpopmin K L 1
set K v PX 900000 | copy K L
set K v ; select 3 ; set K there ; select 0 | copy K K DB 3 REPLACE
set K 7 | decr K
set K 7 | decrby K 3
set K v ; set L v | del K L M
set K v | expire K 900
set K v | expire K -1
set K v | expireat K 99999999999
set K v EX 900 | expire K 100 LT
select 2 ; set K v | flushdb
| geoadd K 13.36 38.11 a 15.08 37.5 b
geoadd K 13.36 38.11 a 15.08 37.5 b | georadius K 15 37 200 km STORE L
geoadd K 13.36 38.11 a 15.08 37.5 b | georadiusbymember K a 200 km STOREDIST L
geoadd K 13.36 38.11 a 15.08 37.5 b | geosearchstore L K FROMLONLAT 15 37 BYRADIUS 200 km
select 2 ; set K v ; select 0 | flushall
set K v | getdel K
set K v | getex K EX 900
set K v EX 900 | getex K PERSIST
set K v EX 900 | getset K w
hset K f 1 g 2 h 3 | hdel K f g
hset K f 1 | hincrby K f 41
hset K f 0.1 | hincrbyfloat K f 0.2
| hmset K f 1 g 2
| hset K f 1 g 2
hset K f 1 | hsetnx K g 2
| incr K
| incrby K 5
set K 0.1 | incrbyfloat K 0.2
rpush K a b c | linsert K BEFORE b x
rpush K {MANY} | lmove K K LEFT RIGHT
rpush L {MANY} | lmpop 2 K L LEFT COUNT 7
rpush K {MANY} | lpop K 9
| lpush K a b c
lpush K a | lpushx K b
rpush K a b a c a | lrem K -2 a
rpush K a b c | lset K -1 z
rpush K {MANY} | ltrim K 20 -30
rpush K {MANY} | ltrim K 5 1
set K v | move K 4
| mset K 1 L 2
| msetnx K 1 L 2
set K v EX 900 | persist K
set K v | pexpire K 900000
set K v | pexpireat K 99999999999999
| pfadd K a b c
pfadd K a b | pfdebug TODENSE K
pfadd K a b ; pfadd L c | pfmerge M K L
| psetex K 900000 v
set K v EX 900 | rename K L
set K v | renamenx K L
| restore K 0 PAYLOAD
set K w | restore K 900000 PAYLOAD REPLACE
rpush K {MANY} | rpop K
rpush K {MANY} | rpoplpush K L
| rpush K a b
rpush K a | rpushx K b
| sadd K {MANY}
sadd K {MANY} ; sadd L 1 2 3 | sdiffstore M K L
| set K v
| set K v EX 900
set K v EX 900 | set K w KEEPTTL
set K v | set K w GET PX 900000
| setbit K 100 1
| setex K 900 v
| setnx K v
set K v | setrange K 5 more
sadd K {MANY} ; sadd L 1 2 3 | sinterstore M K L
sadd K a b ; sadd L c | smove K L a
rpush K 3 1 2 | sort K STORE L
sadd K 3 1 2 ; set w_1 9 ; set w_2 8 ; set w_3 7 | sort K BY w_* STORE L
sadd K {MANY} | spop K
sadd K {MANY} | spop K 100
sadd K {MANY} | spop K 300
sadd K {MANY} | srem K 1 2 3
sadd K 1 2 ; sadd L 2 3 | sunionstore M K L
select 5 ; set K v ; select 0 | swapdb 5 6
set K v ; set L v | unlink K L
| zadd K {SCORED}
zadd K 1 a | zadd K INCR 2.5 a
zadd K {SCORED} ; zadd L 1 1 | zdiffstore M 2 K L
zadd K 1 a | zincrby K 0.1 a
zadd K {SCORED} ; zadd L 1 1 | zinterstore M 2 K L WEIGHTS 2 3
zadd L {SCORED} | zmpop 2 K L MIN COUNT 10
zadd K {SCORED} | zpopmax K 10
zadd K {SCORED} | zpopmin K 10
zadd K {SCORED} | zrangestore L K 10 20
zadd K {SCORED} | zrem K 1 2 3
zadd K 0 a 0 b 0 c | zremrangebylex K [b +
zadd K {SCORED} | zremrangebyrank K 0 50
zadd K {SCORED} | zremrangebyscore K 2 3
zadd K {SCORED} ; zadd L 1 1 | zunionstore M 2 K L AGGREGATE MAX
| xadd K * f v g w
xadd K 1-1 f v | xadd K MAXLEN ~ 1 2-* f v
xadd K 1-1 f v ; xadd K 2-1 f v | xadd K MAXLEN 1 3 f v
xadd K 1-1 f v ; xadd K 2-1 f v | xdel K 1-1
xadd K 1-1 f v ; xadd K 2-1 f v | xtrim K MINID 2
xadd K 1-1 f v | xsetid K 9-9 ENTRIESADDED 50 MAXDELETEDID 3-3
| xgroup create K group 0 MKSTREAM
xgroup create K group 0 MKSTREAM | xgroup createconsumer K group alice
xgroup create K group 0 MKSTREAM ; xgroup createconsumer K group alice | xgroup delconsumer K group alice
xgroup create K group 0 MKSTREAM | xgroup destroy K group
xgroup create K group 0 MKSTREAM | xgroup setid K group 5-5 ENTRIESREAD 7
xgroup create K group 0 MKSTREAM ; xadd K 1-1 f v ; xadd K 2-1 f v | xreadgroup GROUP group alice STREAMS K >
xgroup create K group 0 MKSTREAM ; xadd K 1-1 f v | xreadgroup GROUP group alice NOACK STREAMS K >
xadd K 1-1 f v ; xgroup create K group 0 ; xreadgroup GROUP group a STREAMS K > | xreadgroup GROUP group a STREAMS K 0
xadd K 1-1 f v ; xgroup create K group 0 ; xreadgroup GROUP group alice STREAMS K > | xack K group 1-1
xadd K 1-1 f v ; xgroup create K group 0 ; xreadgroup GROUP group alice STREAMS K > | xclaim K group bob 0 1-1 IDLE 50
xadd K 1-1 f v ; xgroup create K group 0 ; xreadgroup GROUP group alice STREAMS K > | xautoclaim K group bob 0 0
weights.publish K * one | weights.publish K * two
weights.publish K 7 one | weights.del K
| grad.push K 1 name float32 VECTOR
grad.push K 1 name float32 VECTOR | grad.drop K name
grad.push K 1 name float32 VECTOR | grad.publish K 3 1 name L blob
grad.push K 1 name float32 VECTOR | grad.del K
"""


def requests_of(text: str, number: int) -> list[list[Any]]:
    keys = {letter: f"{letter.lower()}{number}" for letter in "KLM"}
    named = [[keys.get(word, word) for word in line.split()] for line in text.split(";")]
    blobs = {"VECTOR": b"\0\0\x80\x3f" * 8, "PAYLOAD": with_footer(b"\x00\x01v")}
    return [[blobs.get(word, word) for word in words] for words in named if words]


def writes() -> list[tuple[list[list[Any]], list[Any]]]:
    """What is there before, and the command; those that empty databases first, since keys of others are to stay."""
    found = []
    for number, line in enumerate(WRITES.strip().splitlines()):
        before, _, last = line.partition("|")
        found.append((requests_of(before, number), requests_of(last, number)[0]))
    return sorted(found, key=lambda pair: not pair[1][0].startswith("flush"))


def everything(client: redis.Redis[bytes]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    others: dict[Any, Any] = {}
    for key in sorted(client.execute_command("WEIGHTS.LIST")):
        others["weights", key] = client.execute_command("WEIGHTS.GET", key)
    for key in sorted(client.execute_command("GRAD.LIST")):
        state = client.execute_command("GRAD.STATE", key, "name")
        waits = state == [b"waiting"]
        others["gradients", key] = state, waits and client.execute_command("GRAD.TAKE", key, 10)
    return contents(client), others


def ask(connection: redis.Connection, *words: Any) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def run_alone(connection: redis.Connection, words: list[Any]) -> None:
    ask(connection, *words)


def run_in_transaction(connection: redis.Connection, words: list[Any]) -> None:
    ask(connection, "MULTI")
    ask(connection, *words)
    assert not isinstance(ask(connection, "EXEC")[0], Exception), words


def run_in_script(connection: redis.Connection, words: list[Any]) -> None:
    ask(connection, "EVAL", "redis.call(unpack(ARGV)) return redis.call('INCR', 'scripts')", 0, *words)


@pytest.mark.parametrize("run", [run_alone, run_in_transaction, run_in_script])
def test_every_command_that_writes_is_read_back_as_what_it_did(tmp_path: Path, run: Any) -> None:
    with serve(tmp_path) as (server, client):
        table = {row["name"]: row for row in client.command().values()}
        may = {name for name, row in table.items() if "write" in row["flags"] and not name.startswith("replay.")}
        may.remove("migrate")  # its change is at another server, too: see test_migrate.py
        if run is run_in_script:
            may -= {name for name in may if "noscript" in table[name]["flags"]}
        changed = set()
        connection = send(server.url, "PING")
        connection.read_response()
        for before, words in writes():
            if words[0] not in may:
                continue
            ask(connection, "SELECT", 0)
            for request in before:
                ask(connection, *request)
            changes = client.info("persistence")["rdb_changes_since_last_save"]
            run(connection, words)
            assert client.info("persistence")["rdb_changes_since_last_save"] > changes, words
            changed.add(words[0])
        connection.disconnect()
        assert changed == may
        kept, others = everything(client)
        kill(server)
    for rewrite in (True, False):
        with serve(tmp_path) as (server, client):
            kept_now, others_now = everything(client)
            assert_same(kept_now, kept)
            assert others_now == others
            if rewrite:
                client.execute_command("BGREWRITEAOF")
                wait_until(lambda client=client: client.info("persistence")["aof_rewrites"] == 1)
            kill(server)
