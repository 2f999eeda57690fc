"""What a run has a number of is leased to its workers: asked for by name, held while it is used, given back whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from marft.config.endpoint import EndpointSettings
from marft.rollout.workers.client import LeasedLimits, LeasedThreadPool, SamplerClient
from marft.rollout.workers.messages import LeaseGranted, LeaseRequest, ReleaseLease, TurnRequest
from marft.rollout.workers.worker_connection import Leases


async def passes() -> None:
    """Until what was asked for from one loop has come to the other one: both are this one."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestAnEndpointsLimits:
    """As a worker sees them."""

    def leased(
        self, test: Callable[[LeasedLimits, SamplerClient, list[Any]], Awaitable[None]], **limits: float
    ) -> None:
        async def whole() -> None:
            sent: list[Any] = []
            client = SamplerClient(sent.append, ())
            settings = EndpointSettings(url="http://127.0.0.1:1/v1", **limits)
            await test(LeasedLimits(client, asyncio.get_running_loop(), "judge", settings), client, sent)

        asyncio.run(whole())

    def test_a_slot_is_held_from_when_it_is_granted_until_it_has_been_used(self) -> None:
        async def test(limits: LeasedLimits, client: SamplerClient, sent: list[Any]) -> None:
            used, enough = list[str](), asyncio.Event()

            async def use() -> None:
                async with limits.slot():
                    used.append("begun")
                    await enough.wait()

            using = asyncio.create_task(use())
            await passes()
            assert (sent, used) == ([LeaseRequest(0, "judge", 3)], [])
            client.deliver(LeaseGranted(0))
            await passes()
            assert (len(sent), used) == (1, ["begun"])
            enough.set()
            await using
            await passes()
            assert sent[1:] == [ReleaseLease(0)]

        self.leased(test, max_concurrent_requests=3)

    def test_one_in_which_something_is_raised_is_given_back(self) -> None:
        async def test(limits: LeasedLimits, client: SamplerClient, sent: list[Any]) -> None:
            async def use() -> None:
                async with limits.slot():
                    raise ValueError("no score")

            using = asyncio.create_task(use())
            await passes()
            client.deliver(LeaseGranted(0))
            with pytest.raises(ValueError, match="no score"):
                await using
            await passes()
            assert sent[1:] == [ReleaseLease(0)]

        self.leased(test)

    @pytest.mark.parametrize("granted", [False, True])
    def test_one_that_nobody_waits_for_any_more_is_given_back_and_nothing_is_said_of_it(
        self, granted: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def test(limits: LeasedLimits, client: SamplerClient, sent: list[Any]) -> None:
            async def use() -> None:
                async with limits.slot():
                    raise AssertionError("it was called off before")

            using = asyncio.create_task(use())
            await passes()
            using.cancel()
            if granted:  # in the very moment
                client.deliver(LeaseGranted(0))
            with pytest.raises(asyncio.CancelledError):
                await using
            await passes()
            assert sent[1:] == [ReleaseLease(0)]

        self.leased(test)
        assert not caplog.records

    def test_a_turn_is_asked_for_as_often_a_minute_as_the_recipe_says_and_where_it_says_nothing_none_is(self) -> None:
        async def test(limits: LeasedLimits, client: SamplerClient, sent: list[Any]) -> None:
            waiting = asyncio.create_task(limits.turn())
            await passes()
            assert (sent, waiting.done()) == ([TurnRequest(0, "judge", 30.0)], False)
            client.deliver(LeaseGranted(0))
            await waiting
            assert sent[1:] == [ReleaseLease(0)]

        async def unlimited(limits: LeasedLimits, _: SamplerClient, sent: list[Any]) -> None:
            await limits.turn()
            assert sent == []

        self.leased(test, requests_per_minute=30.0)
        self.leased(unlimited)


def test_calls_that_are_counted_over_all_episodes_are_counted_over_those_of_all_workers() -> None:
    async def whole() -> list[Any]:
        sent: list[Any] = []
        client = SamplerClient(sent.append, ())

        async def use() -> list[Any]:
            async with LeasedThreadPool(client).slots("tools.sums", 2):
                return list(sent)

        using = asyncio.create_task(use())
        await passes()
        client.deliver(LeaseGranted(0))
        return await asyncio.wait_for(using, 1.0)

    assert asyncio.run(whole()) == [LeaseRequest(0, "tools.sums", 2)]


class TestTheRuns:
    """As the run keeps them, whoever of its workers asks."""

    def test_slots_of_one_name_are_counted_together_and_those_of_another_apart(self) -> None:
        async def whole() -> None:
            leases, entered = Leases(), list[str]()

            async def take(name: str) -> None:
                async with leases.slot(name, 2):
                    entered.append(name)
                    await asyncio.Event().wait()

            taking = [asyncio.create_task(take(name)) for name in ("sums", "sums", "sums", "files")]
            await passes()
            assert entered == ["sums", "sums", "files"]
            taking[0].cancel()
            await passes()
            assert entered[3:] == ["sums"]
            for task in taking:
                task.cancel()

        asyncio.run(whole())

    def test_turns_of_one_name_are_apart_and_those_of_another_are_its_own(self) -> None:
        async def whole() -> list[str]:
            leases, had = Leases(), list[str]()

            async def take(name: str) -> None:
                await leases.turn(name, 1.0)
                had.append(name)

            taking = [asyncio.create_task(take(name)) for name in ("judge", "judge", "critic")]
            await passes()
            for task in taking:
                task.cancel()
            return had

        assert asyncio.run(whole()) == ["judge", "critic"]
