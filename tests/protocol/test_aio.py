"""The asyncio twin, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine to its end on one of the loops."""
    return asyncio.run if request.param == "asyncio" else aio.run


def test_the_twin_does_what_the_client_does(server, run, make_table, items):
    name = make_table(capacity=4)

    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            ids = await client.add(name, items(1, 2, 3), [1.0, 2.0, 3.0])
            batch = await client.sample(name, 64, 0.5)
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
            assert await client.sample(name, 64, out=batch) is batch
            assert await client.update_priorities(name, ids, np.ones(3)) == (3, 0)
            assert (await client.get(name, ids)).data["k"].tolist() == [1, 2, 3]
            assert await client.delete(name, ids[:1]) == 1
            await client.configure(name, max_times_sampled=10_000)
            assert (await client.table(name)).max_times_sampled == 10_000
            assert name in await client.tables()
            assert (await client.info(name))["size"] == 2
            await client.reset(name)
            version = await client.publish_weights(f"w-{name}", {"w": np.arange(50_000)})
            assert version == 1
            fetched = await client.fetch_weights(f"w-{name}")
            assert fetched is not None
            np.testing.assert_array_equal(fetched[1]["w"], np.arange(50_000))
            assert await client.fetch_weights(f"w-{name}", newer_than=1) is None
            assert await client.redis.ping()
            assert await client.command("SET", f"k-{name}", b"v") == "OK"
            assert await client.command("GET", f"k-{name}", repeatable=True) == b"v"
            await client.create_table(rs.Table("aio", 1, {"v": rs.Column("int8")}))
            await client.drop_table("aio")
            with pytest.raises(rs.ServerError, match="name of a file"):
                await client.checkpoint("../elsewhere")
            with pytest.raises(rs.ServerError, match="cannot open"):
                await client.restore("no-such-file")

    run(main())


def test_large_batches_pass_bit_by_bit(server, run, make_table):
    name = make_table(600, {"obs": rs.Column("uint8", (4, 84, 84))})

    async def main() -> None:
        frames = np.random.default_rng(1).integers(0, 256, (256, 4, 84, 84), np.uint8)
        async with rs.aio.Client(server.url) as client:
            ids = await client.add(name, {"obs": frames})
            np.testing.assert_array_equal((await client.get(name, ids[::-1])).data["obs"], frames[::-1])

    run(main())


def test_tasks_share_a_client_while_one_waits(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            waiter = asyncio.ensure_future(client.sample(table, 4))
            while (await client.info(table))["waiting"] == 0:
                await asyncio.sleep(0.001)
            await asyncio.gather(*(client.add(table, items(key)) for key in range(20)))
            assert len(await waiter) == 4

    run(main())


def test_refusals_and_reasons(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            with pytest.raises(rs.Timeout, match="the table holds 0"):
                await client.sample(table, 1, timeout=0.02)
            with pytest.raises(rs.SchemaError):
                await client.add(table, {"x": [1.0]})
            with pytest.raises(rs.PriorityError):
                await client.add(table, items(1), [float("nan")])
            with pytest.raises(rs.TableNotFound):
                await client.sample("nope", 1)

    run(main())


def test_a_cancelled_wait_leaves_nothing_behind(server, client, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as other:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.sample(table, 1), 0.05)
            while (await other.info(table))["waiting"]:
                await asyncio.sleep(0.001)
            await other.add(table, items(7))
            assert (await other.sample(table, 1)).data["k"].tolist() == [7]

    run(main())


def test_a_wait_can_be_cancelled_at_any_moment(server, client, run, table, eventually):
    """Also while it connects. A cancellation that met a result was lost, and the wait went on for ever."""
    moments = random.Random(1)

    async def main() -> None:
        for _ in range(150):
            async with rs.aio.Client(server.url) as other:
                waiter = asyncio.ensure_future(other.sample(table, 1))
                await asyncio.sleep(moments.random() * 0.004)
                waiter.cancel()
                await asyncio.wait([waiter], timeout=30)
                assert waiter.cancelled()

    run(main())
    eventually(lambda: client.info(table)["waiting"] == 0, "the server forgets them")


def test_close_ends_waits(server, run, table):
    async def main() -> None:
        client = rs.aio.Client(server.url)
        waiter = asyncio.ensure_future(client.sample(table, 1))
        while (await client.info(table))["waiting"] == 0:
            await asyncio.sleep(0.001)
        await client.close()
        with pytest.raises(rs.ConnectionLost, match="closed"):
            await waiter
        with pytest.raises(rs.ConnectionLost, match="closed"):
            await client.info(table)

    run(main())


def test_a_sampler_is_iterated_without_a_context_too(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            await client.add(table, items(1, 2, 3))
            batches = client.sampler(table, 16)
            async for batch in batches:
                assert len(batch) == 16
                break
            await batches.close()
            assert [batch async for batch in batches] == []

    run(asyncio.wait_for(main(), 60))


def test_a_sampler_prefetches(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            await client.add(table, items(1, 2, 3))
            seen = 0
            async with client.sampler(table, 16, prefetch=2) as batches:
                async for batch in batches:
                    np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
                    seen += 1
                    if seen == 20:
                        break
            async with client.sampler(table, 16, timeout=0.02) as batches:
                await client.reset(table)
                with pytest.raises(rs.Timeout):
                    async for _ in batches:
                        pass

    run(main())


def test_a_sampler_hands_on_every_error_and_ends_who_waits(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            for wrong in ({"prefetch": 0}, {"batch_size": 0}, {"timeout": -1}):
                with pytest.raises(ValueError, match=next(iter(wrong))):
                    async with client.sampler(table, **{"batch_size": 1, **wrong}):
                        pass
            async with client.sampler(table, 1, columns=["no"]) as batches:
                with pytest.raises(rs.SchemaError, match="no"):
                    await asyncio.wait_for(batches.__anext__(), 10)
            async with client.sampler(table, 1) as batches:
                waiter = asyncio.ensure_future(batches.__anext__())
                await asyncio.sleep(0.05)
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(waiter, 10)

    run(main())


def test_a_sampler_samples_no_further_ahead_than_asked(server, run, table, items):
    async def main() -> None:
        async with rs.aio.Client(server.url) as client:
            await client.add(table, items(1, 2, 3))
            async with client.sampler(table, 4, prefetch=2):
                await asyncio.sleep(0.2)
                assert (await client.info(table))["sampled"] == 8

    run(main())


def test_no_server_is_a_clear_error(run, free_port):
    async def main() -> None:
        client = rs.aio.Client(f"redis://127.0.0.1:{free_port}", reconnect_timeout=0.1)
        with pytest.raises(rs.ConnectionLost, match=f"cannot connect to redis://127.0.0.1:{free_port}"):
            await client.tables()
        await client.close()

    run(main())


def test_a_name_with_several_addresses_is_tried_to_the_last(server, free_port):
    place, port = server.url.removeprefix("redis://").rsplit(":", 1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lookup = loop.getaddrinfo

        async def several(host, port, **rest):
            assert host == "replay.test"
            return await lookup(place, free_port, **rest) + await lookup(place, port, **rest)

        loop.getaddrinfo = several  # type: ignore[method-assign]
        async with rs.aio.Client(f"redis://replay.test:{port}", reconnect_timeout=0) as client:
            assert isinstance(await client.tables(), list)

    asyncio.run(main())


def test_a_request_above_the_server_s_limit_is_told_as_by_the_blocking_client(run):
    table = rs.Table("large", 10, {"x": rs.Column("uint8", (4 << 20,))})
    data = {"x": np.zeros((2, 4 << 20), np.uint8)}

    async def main(url: str) -> None:
        async with rs.aio.Client(url) as client:
            with pytest.raises(rs.LimitExceeded, match="proto-max-bulk-len"):
                await client.add("large", data)
            assert (await client.info("large"))["added"] == 0

    with rs.Server([table], config={"proto-max-bulk-len": 1 << 20}) as small, rs.Client(small.url) as blocking:
        with pytest.raises(rs.LimitExceeded, match="proto-max-bulk-len"):
            blocking.add("large", data)
        run(main(small.url))
