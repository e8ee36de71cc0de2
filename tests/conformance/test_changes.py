"""What a command changes counts as a change as in Redis: for WATCH, and for those who listen to keyspace events."""

from __future__ import annotations

from typing import Any

import pytest
import test_bits
import test_keys
import test_sets
import test_sorted_sets
import test_store_against_redis
from against_redis import SLOW_IS_FINE, Command, Commands, Pair
from hypothesis import given, note, settings
from hypothesis import strategies as st
from test_notifications import heard, listeners  # noqa: F401

NAMES = [b"a", b"b", b"c", b"d", b"key:1", b"key:2", b"\x00\xff\r\n", b""]
FEW = st.sampled_from([b"a", b"b", b"c"])
FAMILIES: dict[str, list[Commands]] = {
    "bits": test_bits.COMMANDS,
    "expiry": test_store_against_redis.EXPIRY,
    "strings, lists, hashes": test_store_against_redis.FAMILIES["all"],
    "sets": test_sets.FAMILIES["all"],
    "sorted sets": [
        *test_sorted_sets.adding(FEW),
        *test_sorted_sets.removing(FEW),
        *test_sorted_sets.popping(FEW),
        *test_sorted_sets.algebra(FEW),
        *test_sorted_sets.OTHERS,
    ],
    "sorted sets by member": test_sorted_sets.by_member(FEW),
    "databases": test_keys.COMMANDS,
}


def differs_by_intent(command: Command) -> bool:
    """See differences.py."""
    name = command[0].lower()
    if name in {b"mset", b"msetnx"}:
        return len({*command[1::2]}) < len(command[1::2])
    return name == b"bitfield" and b"fail" in (word.lower() for word in command)


def run_watched(pair: Pair, listening: list[Any], commands: list[Commands], examples: int, derandomize: bool) -> None:
    """Before each command all keys are watched, and behind it a transaction tells whether any of them was changed."""

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=derandomize
    )
    @given(st.lists(st.one_of(*commands), min_size=1, max_size=50))
    def run(sequence: list[Command]) -> None:
        pair.run((b"SELECT", b"0"), (b"FLUSHALL",))
        note(repr(sequence))
        watched = (b"WATCH", *NAMES)
        for sent in sequence:
            if not differs_by_intent(sent):
                pair.run(watched, sent, (b"MULTI",), (b"ECHO", b"unchanged"), (b"EXEC",))
                heard(pair, listening)

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_commands_change_keys(pair: Pair, listeners: list[Any], family: str) -> None:  # noqa: F811
    run_watched(pair, listeners, FAMILIES[family], 15, True)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_commands_change_keys_in_many_sequences(
    pair: Pair,
    listeners: list[Any],  # noqa: F811
    family: str,
) -> None:
    run_watched(pair, listeners, FAMILIES[family], 1000, False)


@pytest.mark.parametrize(
    "line",
    [
        "LPOP l 0",
        "RPOP l 0",
        "LPOP l 1",
        "BITFIELD s OVERFLOW FAIL INCRBY u8 0 200",
        "BITFIELD s OVERFLOW FAIL SET u4 0 17",
        "BITFIELD s SET u8 0 97",
        "BITFIELD s INCRBY u8 0 0",
        "BITFIELD s SET u8 0 98",
        "BITFIELD s SET u8 80 0",
        "BITFIELD none SET u8 0 0",
        "BITFIELD none GET u8 0",
    ],
)
def test_what_leaves_a_value_as_it_was_breaks_no_watch(pair: Pair, line: str) -> None:
    for step in ["FLUSHALL", "RPUSH l x y", "SET s abc", "WATCH l s none", line, "MULTI", "GET s", "EXEC"]:
        pair.words(step)
