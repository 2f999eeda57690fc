"""Our own engine in a process of its own samples what the in-process engine does, and goes on while weights change."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.processes.messages import encode_frame
from marft.common.token_data import Grammar
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config import parse_recipe
from marft.inference.subprocess_engine import server as server_module
from marft.inference.subprocess_engine.engine import SubprocessEngine
from marft.inference.subprocess_engine.local_server import Server
from marft.inference.subprocess_engine.messages import EngineInit, EngineReady, Heartbeat
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import recipe, settings
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import ROOT

slow = pytest.mark.slow
PROCESS = ("--engine.kind", "process")
CLOSE = 5e-5  # nats a token: float32 products in batches of other shapes
PROMPT = Prompt(np.arange(5, 29, dtype=np.int32))
OPTIONS = [Option(np.array(ids, np.int32), len(ids)) for ids in ([7, 8, 2], [7, 9, 2], [11, 2])]


def key(call: int = 0) -> ActionKey:
    return ActionKey("train/0", "t", 0, 0, "actor", call)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRolloutRunner, LocalRolloutRunner]]:
    """In process, and apart: one adapter that has learned, and one that is as it began."""
    folder = tmp_path_factory.mktemp("both")
    with (
        LocalRolloutRunner(settings("tiny", folder / "here")) as here,
        LocalRolloutRunner(settings("tiny", folder / "there", *PROCESS)) as there,
    ):
        for rollouts in (here, there):
            moved(rollouts)
            rollouts.publish(3)
        yield here, there


def moved(rollouts: LocalRolloutRunner, by: float = 0.02) -> None:
    for weights in rollouts.models.policies["actor"].parameters().values():
        weights.data.add_(by)


async def saying(rollouts: LocalRolloutRunner, policy: str = "actor", call: int = 0, **sampling: Any) -> Completion:
    how = SamplingParams(**{"max_new_tokens": 12, **sampling})
    return await rollouts.engine.sample(policy, PROMPT, how, key(call))


def said(rollouts: LocalRolloutRunner, policy: str = "actor", call: int = 0, **sampling: Any) -> Completion:
    return rollouts.wait_for(saying(rollouts, policy, call, **sampling))


def assert_same(one: Completion, other: Completion) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert (one.text, one.finish, one.forced) == (other.text, other.finish, other.forced)
    assert [len(step) for step in one.alternatives] == [len(step) for step in other.alternatives]


def test_it_says_that_it_is_at_work_for_as_long_as_it_comes_to_the_next_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """An action of many tokens is told at its end alone, and the run starts again what says nothing for too long."""
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.001)

    async def whole() -> tuple[list[object], int]:
        sent, computing = list[object](), asyncio.Event()

        async def between_tokens(_: object) -> None:
            if len(sent) == 3:
                await computing.wait()

        server = Server.__new__(Server)
        server.engine = cast("Any", SimpleNamespace(run_between_tokens=between_tokens))
        server.connection = cast("Any", SimpleNamespace(send=sent.append))
        beating = asyncio.create_task(server.send_heartbeats())
        await asyncio.sleep(0.1)
        hung = len(sent)
        computing.set()
        await asyncio.sleep(0.05)
        beating.cancel()
        return sent, hung

    sent, hung = asyncio.run(whole())
    assert hung == 3
    assert len(sent) > 3
    assert {type(message) for message in sent} == {Heartbeat}


def test_an_engine_that_says_nothing_is_named_before_it_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in (("POLL_SECONDS", 0.01), ("WARNING_SECONDS", 0.03)):
        monkeypatch.setattr(f"marft.inference.subprocess_engine.engine.{name}", seconds)

    async def whole() -> str:
        engine = SubprocessEngine("fake", lambda _: [], EngineInit("", "", 0, 0, 0, 0, 0), {}, seed=1, timeout=0.1)
        ours, theirs = socket.socketpair()
        theirs.sendall(encode_frame(EngineReady(0, "a fake, 1.0")))
        engine._pending_commands[1] = asyncio.get_running_loop().create_future()  # which it is at, and never does
        with theirs:
            why = await engine._handle_messages(cast("Any", SimpleNamespace(socket=ours)))
        engine._weight_transfer.close()
        return why

    assert asyncio.run(whole()) == "said nothing for 0.1 s (engine.timeout_seconds), and was ended"
    assert [record.getMessage() for record in caplog.records] == [
        "fake has said nothing for 0.03 s; after 0.1 s it is started again"
    ]


@BY_NIGHT
@slow
@pytest.mark.parametrize("policy", ["actor", "reasoner"])
@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 5}, {"alternatives": 3}])
def test_the_same_tokens_are_drawn_as_in_process(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner], policy: str, how: dict[str, Any]
) -> None:
    one, other = (said(each, policy, **how) for each in both)
    assert_same(one, other)
    assert other.versions == VersionRange(3, 3)


@slow
def test_what_is_asked_together_is_drawn_as_alone_up_to_rounding(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner],
) -> None:
    here, there = both
    how = [(call, size) for call, size in enumerate((3, 12, 7, 1))]

    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(saying(there, call=call, max_new_tokens=size) for call, size in how)))

    for (call, size), other in zip(how, there.wait_for(together()), strict=True):
        assert_same(said(here, call=call, max_new_tokens=size), other)


def test_the_docs_promise_no_more_than_that() -> None:
    for page in ("reliability.md", "engines.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert "within 5e-5 nats" in text
        assert "not to the bit" in text
    assert CLOSE == 5e-5


@slow
def test_texts_that_stop_an_action_and_listeners_are_those_of_here(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner],
) -> None:
    here, there = both
    whole = said(here)
    stop, heard = whole.text[len(whole.text) // 2 :][:3], list[int]()
    other = said(there, stop=(stop,), on_token=heard.append, alternatives=2)
    assert_same(said(here, stop=(stop,), alternatives=2), other)
    assert heard == other.tokens.tolist()


@slow
@pytest.mark.parametrize("extra", [{}, {"alternatives": 2}, {"stop": ("7",)}, {"on_token": [].append}])
def test_what_a_grammar_allowed_for_is_told(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner], extra: dict[str, Any]
) -> None:
    """Digits, of which the first is forced."""
    how = {"grammar": Grammar("regex", "4[0-9]{6}"), **extra}
    one, other = (said(each, **how) for each in both)
    assert_same(one, other)
    assert one.masks is not None
    assert other.masks is not None
    assert (one.masks.at.tolist(), one.masks.which.tolist(), one.masks.table) == (
        other.masks.at.tolist(), other.masks.which.tolist(), other.masks.table,
    )  # fmt: skip


@slow
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_choices_are_as_likely_as_here_and_the_same_one_is_drawn(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner], temperature: float
) -> None:
    async def chosen(rollouts: LocalRolloutRunner) -> list[tuple[Choice, VersionRange]]:
        how = SamplingParams(temperature=temperature)
        asked = (rollouts.engine.choose("actor", PROMPT, OPTIONS, how, key(call)) for call in range(4))
        return await asyncio.gather(*asked)

    for (one, _), (other, versions) in zip(*(each.wait_for(chosen(each)) for each in both), strict=True):
        assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
        assert one.chosen == other.chosen
        assert versions == VersionRange(3, 3)


@slow
def test_what_is_under_way_goes_on_with_the_weights_that_it_began_with(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner],
) -> None:
    """Weights change at an action's first token: it stays what it would have been, and what is asked then is new."""
    here, there = both
    before = said(there, max_new_tokens=200)

    async def while_it_is_sampled() -> tuple[Completion, Completion]:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        heard = saying(there, max_new_tokens=200, on_token=lambda _: loop.call_soon(begun.set))
        action = asyncio.create_task(heard)
        await begun.wait()
        moved(there, 0.05)
        await there.engine.publish({"actor": there.models.policies["actor"]}, 4)
        assert not action.done()
        return await action, await saying(there)

    old, new = there.wait_for(while_it_is_sampled())
    assert_same(before, old)
    assert (old.versions, new.versions) == (VersionRange(3, 3), VersionRange(4, 4))
    moved(here, 0.05)
    here.publish(4)
    assert_same(said(here), new)


@slow
def test_what_nobody_waits_for_any_more_is_let_go(both: tuple[LocalRolloutRunner, LocalRolloutRunner]) -> None:
    _, there = both

    async def given_up() -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()
        heard = saying(there, max_new_tokens=300, on_token=lambda _: loop.call_soon(begun.set))
        action = asyncio.create_task(heard)
        await begun.wait()
        action.cancel()
        await asyncio.gather(action, return_exceptions=True)

    expected = said(there)
    there.wait_for(given_up())
    assert_same(expected, said(there))


@BY_NIGHT
@slow
def test_a_process_that_is_killed_is_started_again_and_asked_again(
    both: tuple[LocalRolloutRunner, LocalRolloutRunner],
) -> None:
    _, there = both
    before = [said(there, call=call) for call in range(2)]
    killed: list[int] = []

    def kill(_: int) -> None:
        if not killed:
            killed.extend(servers())
            os.kill(killed[0], signal.SIGKILL)

    assert_same(said(there), said(there, on_token=kill))
    for call, expected in enumerate(before):
        assert_same(expected, said(there, call=call))
    assert there.usage()["engine_restarts"] == 1
    task = there.run.environment.tasks("train")[0]  # type: ignore[attr-defined]
    assert there.play([Attempt(task, "train/1")])[0].status == "terminated"


def servers() -> list[int]:
    """Processes of this one that serve, without the subreapers above them."""
    parents = {int(stat.parent.name): _parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    subreapers = {pid for pid, parent in parents.items() if parent == os.getpid()}
    serving = {pid for pid, parent in parents.items() if parent in subreapers}
    return [pid for pid in serving if b"local_server" in (Path("/proc") / str(pid) / "cmdline").read_bytes()]


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


@pytest.mark.skipif(not NIGHT, reason="a sixth of a minute: make nightly")
@slow
def test_a_training_run_learns_from_what_the_learner_would_have_sampled(tmp_path: Path) -> None:
    """One policy is an adapter, the other has all its weights sent at every step: two processes."""
    run = settings("tiny", tmp_path, *PROCESS, "--policies.actor.train", "full", "--training.steps", "3")
    train(run, folder := RunFolder.create(run))
    rows = folder.read_metrics()
    differences = [value for row in rows for name, value in row.items() if name.endswith("log_prob_difference_max")]
    assert 0 < max(differences) < 1e-4
    assert {row["engine_restarts"] for row in rows} == {0.0}
    assert {row["policy_lag"] for row in rows} == {0.0}
    assert all(0.99 < row["sampler_weight"] < 1.01 for row in rows)


@BY_NIGHT
@slow
def test_a_device_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"the engine's process \(reasoner, actor\): device: cannot use 'no-such'"):
        LocalRolloutRunner(settings("tiny", tmp_path, *PROCESS, "--engine.device", "no-such")).close()


def test_what_is_sampled_apart_is_corrected_unless_the_recipe_says_otherwise() -> None:
    assert settings("tiny", "runs", *PROCESS).algorithm.sampler_correction.level == "geometric"
    table = recipe(engine={"kind": "process"})
    table["algorithm"]["sampler_correction"] = {"level": "none"}
    assert parse_recipe(table).algorithm.sampler_correction.level == "none"
