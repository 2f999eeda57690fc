"""A shadow plays what a served team was asked: without effects, without losing anything, and it is judged fairly."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.util import spawnv_passfds  # type: ignore[attr-defined]
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.agents.agents import ToolUse
from marft.agents.tools.functions import Functions, FunctionSource
from marft.common.types import Episode, Tool, ToolCall
from marft.config.interfaces.organization import Organization
from marft.runs.episode_files import read_episodes, write_episodes
from marft_lab.shadow.effects import block_effects
from marft_lab.shadow.player import ReplaySource, ShadowResult, play_session, to_shadow_team, with_stub_tools
from marft_lab.shadow.sessions import SessionQueue, find_answer, is_sampled
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.recorder import compute_digest, read_tools, write_tools
from tests.fakes import FakeEngine, Script, game
from tests.helpers import settings as recipe_settings
from tests.recorded_sessions import session

HERE = "tests.marft_lab.test_shadow"
done: list[str] = []


def pay(amount: int) -> str:
    """Send money."""
    done.append(f"paid {amount}")
    return f"paid {amount}"


class Ledger:
    """Keeps what is written: a file, and a connection."""

    def __init__(self, task: object, seed: int) -> None:
        done.append("opened")

    def note(self, path: str) -> str:
        """Write a file."""
        Path(path).write_text("written")
        return "written"

    def call_home(self, port: int) -> str:
        """Open a connection."""
        socket.create_connection(("127.0.0.1", port)).close()
        return "called"


def says(*texts: str) -> FakeEngine:
    left = iter(texts)
    return FakeEngine(lambda key, prompt: next(left))


def shadowed(engine: FakeEngine, recorded: Episode, **changes: Any) -> ShadowResult:
    """What a team of one agent with tools makes of a session."""
    sources = {"pay": FunctionSource(pay), "ledger": FunctionSource(Ledger)}
    names = {tool.name: source for source, found in sources.items() for tool in found.tools}
    g = game(Script([]), engine=engine, tools=sources, **changes)
    agent = g.team.agents[0]
    profile = replace(agent.profile, tools=tuple(tool for found in sources.values() for tool in found.tools))
    agents = (replace(agent, profile=profile, tool_use=ToolUse(names)),)
    g = replace(g, team=replace(g.team, agents=agents))
    try:
        return play_session(g, asyncio.run, ShadowSettings(), recorded)
    finally:
        g.threads.close()


def call(name: str, **arguments: object) -> str:
    return f"CALL {json.dumps({'name': name, 'arguments': arguments})}"


class TestTools:
    def test_a_call_that_the_session_made_is_answered_from_it_and_nothing_is_done(self) -> None:
        done.clear()
        recorded = session("s", "paid", ToolCall("pay", '{"amount": 5}', "paid 5"))
        found = shadowed(says(call("pay", amount=5), "it is paid"), recorded)
        assert (found.answered, found.refused, found.effects) == (1, 0, 0)
        (made,) = found.episode.actions[0].calls
        assert (made.output, made.error) == ("paid 5", False)
        assert found.episode.actions[0].text == "it is paid"
        assert not done

    def test_any_other_call_is_refused_and_says_why(self, tmp_path: Path) -> None:
        done.clear()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.05)
            port = server.getsockname()[1]
            file = tmp_path / "note"
            turns = [call("pay", amount=6), call("note", path=str(file)), call("call_home", port=port), "done"]
            found = shadowed(says(*turns), session("s", "x", ToolCall("pay", '{"amount": 5}', "paid 5")))
            with pytest.raises(TimeoutError):
                server.accept()
        assert (found.answered, found.refused) == (0, 3)
        assert all(one.error and "is a shadow" in one.output for one in found.episode.actions[0].calls)
        assert not done, "neither is a function called, nor an object made whose methods are tools"
        assert not file.exists()

    def test_answers_come_in_their_order_and_the_last_one_again(self) -> None:
        calls = [ToolCall("look", '{"a": 1, "b": 2}', "first"), ToolCall("look", '{"b": 2, "a": 1}', "second")]
        source = ReplaySource((), calls)
        assert [asyncio.run(source.call("look", {"b": 2, "a": 1})) for _ in range(3)] == ["first", "second", "second"]

    def test_a_call_that_failed_fails_again(self) -> None:
        source = ReplaySource((), [ToolCall("look", "{}", "no such page", error=True)])
        with pytest.raises(Exception, match="no such page"):
            asyncio.run(source.call("look", {}))
        assert source.answered == 1

    def test_a_recipe_is_stubbed_before_anything_is_connected(self, tmp_path: Path) -> None:
        tools = {
            "pay": {"name": "function", "call": f"{HERE}:pay"},
            "server": {"name": "mcp", "command": ["touch", str(tmp_path / "started")]},
        }
        agents = [{"role": "a", "policy": "a", "answers": True, "tools": ["pay", "server"]}]
        changes = {"tools": tools, "agents": agents, "policies": {"a": {"model": "base"}}}
        run = recipe_settings("tiny", tmp_path, **changes)
        with pytest.raises(ValueError, match=r"tools.server: .* tools.json"):
            with_stub_tools(run, {})
        stubs = with_stub_tools(
            run, {compute_digest(run.tools["server"]): (Tool("find", "Find.", {"type": "object"}),)}
        )
        offered = {name: [tool.name for tool in plugin.connect().tools] for name, plugin in stubs.tools.items()}  # type: ignore[attr-defined]
        assert offered == {"pay": ["pay"], "server": ["find"]}
        assert not (tmp_path / "started").exists()

    def test_what_tools_are_is_known_from_what_was_written_beside_the_sessions(self, tmp_path: Path) -> None:
        plugin = Functions(call=f"{HERE}:pay")
        write_tools(tmp_path, {}, {})
        assert not (tmp_path / "tools.json").exists()
        write_tools(tmp_path, {"pay": plugin}, {"pay": plugin.connect()})
        assert read_tools(tmp_path) == {compute_digest(plugin): tuple(plugin.connect().tools)}
        (tmp_path / "tools.json").write_text('{"x": 1}')
        with pytest.raises(ValueError, match=r"tools.json is damaged"):
            read_tools(tmp_path)

    def test_a_team_that_is_a_program_is_no_shadow(self, tmp_path: Path) -> None:
        run = recipe_settings("tiny", tmp_path, team={"organization": "program", "command": ["true"]})
        with pytest.raises(ValueError, match="cannot be a shadow"):
            with_stub_tools(run, {})


class TestEffects:
    @pytest.mark.parametrize(
        "effect",
        [
            lambda path: path.write_text("x"),
            lambda path: subprocess.run(["touch", str(path)], check=False),
            lambda path: path.mkdir(),
            lambda path: socket.create_connection(("127.0.0.1", 9)),
            lambda path: socket.gethostbyname("words.of.a.session"),
            lambda path: os.killpg(2**22 + 1, 0),
            lambda path: os.kill(2**22 + 1, 0),
            lambda path: os.system(f"touch {path}"),
            lambda path: os.posix_spawn("/bin/touch", ["touch", str(path)], {}),
            lambda path: spawnv_passfds(b"/bin/touch", [b"touch", os.fsencode(path)], []),
            lambda path: os.mkfifo(path),
            lambda path: os.mknod(path),
            lambda path: os.remove(path),  # noqa: PTH107
            lambda path: path.rename(path.parent / "other"),
            lambda path: path.rmdir(),
            lambda path: path.symlink_to(__file__),
            lambda path: os.link(__file__, path),
            lambda path: path.chmod(0o600),
            lambda path: os.truncate(path, 0),
            lambda path: os.utime(path),
            lambda path: sqlite3.connect(path),
            *(
                lambda path, flag=flag: os.open(path, flag)
                for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_APPEND)
            ),
        ],
    )
    def test_what_parts_of_the_author_try_is_refused(self, effect: Callable[[Path], object], tmp_path: Path) -> None:
        path = tmp_path / "trace"
        with block_effects() as times, pytest.raises(PermissionError, match="a shadow has no effects"):
            effect(path)
        assert times.total() == 1
        assert not path.exists()
        path.write_text("afterwards it is allowed")

    def test_an_organization_that_writes_fails_its_own_episode(self, tmp_path: Path) -> None:
        class Writes(Organization):
            async def act(self, observation: object, agents: Any) -> object:
                (tmp_path / "trace").write_text("x")
                raise AssertionError

        found = shadowed(FakeEngine(), session("s"), organization=Writes())
        assert (found.effects, found.episode.answer) == (1, "")
        assert "a shadow has no effects" in found.episode.error
        assert not (tmp_path / "trace").exists()

    @pytest.mark.parametrize(("endpoints", "effects"), [(True, 0), (False, 1)])
    def test_connections_are_made_where_models_are_behind_them(self, endpoints: bool, effects: int) -> None:
        class Connects(Organization):
            async def act(self, observation: object, agents: Any) -> object:
                socket.create_connection(("127.0.0.1", 9)).close()
                raise AssertionError

        g = game(Script([]), organization=Connects())
        try:
            found = play_session(g, asyncio.run, ShadowSettings(allow_endpoints=endpoints), session("s"))
        finally:
            g.threads.close()
        assert found.effects == effects

    def test_models_behind_an_endpoint_are_asked_where_that_is_said(self) -> None:
        run = SimpleNamespace(models={"far": None}, is_remote=lambda name: True, section=lambda cls: None)
        with pytest.raises(ValueError, match=r"models.far: it is behind an endpoint.*--shadow.allow_endpoints true"):
            to_shadow_team(SimpleNamespace(run=run), {})  # type: ignore[arg-type]

    def test_reading_is_allowed(self) -> None:
        with block_effects() as times:
            assert Path(__file__).read_text(encoding="utf-8")
        assert not times


class TestSessions:
    def test_a_share_is_the_same_sessions_whoever_asks(self) -> None:
        names = [f"s{number}" for number in range(2000)]
        few, more = ({name for name in names if is_sampled(3, name, share)} for share in (0.1, 0.4))
        assert few < more
        assert len(few) / 2000 == pytest.approx(0.1, abs=0.03)
        assert few != {name for name in names if is_sampled(4, name, 0.1)}

    def test_those_of_a_role_and_those_without_an_answer_are_passed_over(self, tmp_path: Path) -> None:
        failed = replace(session("c"), status="failed", answer="")
        write_episodes(tmp_path / "sessions-1-000001.parquet", [session("a"), session("b", answers=False), failed])
        sessions = SessionQueue(tmp_path, 0, 1.0, ())
        (found,) = sessions.pending_sessions()
        assert found.task.id == "a"
        assert find_answer(found).text == "the answer is 7"  # type: ignore[union-attr]
        assert sessions.skipped.no_answer == 2

    def test_of_those_that_wait_the_newest_are_kept_and_the_others_counted(self, tmp_path: Path) -> None:
        for number in range(3):
            some = [session(f"{number}/{one}") for one in range(4)]
            write_episodes(tmp_path / f"sessions-1-{number:06d}.parquet", some)
        dropped: list[str] = []
        sessions = SessionQueue(tmp_path, 0, 1.0, {"2/3"}, max_pending=5, on_drop=dropped.append)
        assert [one.task.id for one in sessions.pending_sessions()] == ["1/2", "1/3", "2/0", "2/1", "2/2"]
        assert len(dropped) == sessions.skipped.dropped == 6

    def test_a_damaged_file_is_named_and_the_others_are_played(self, tmp_path: Path) -> None:
        (tmp_path / "sessions-1-000001.parquet").write_bytes(b"PAR1 no")
        write_episodes(tmp_path / "sessions-1-000002.parquet", [session("a")])
        sessions = SessionQueue(tmp_path, 0, 1.0, ())
        assert [one.task.id for one in sessions.pending_sessions()] == ["a"]
        assert "sessions-1-000001" in sessions.skipped.unreadable[0]

    def test_what_was_answered_is_recorded(self, tmp_path: Path) -> None:
        write_episodes(tmp_path / "x.parquet", [session("a"), session("b", answers=False)])
        assert [one.answer for one in read_episodes(tmp_path / "x.parquet")] == ["0/a/0", ""]


def test_a_shadow_that_hangs_is_one_without_an_answer() -> None:
    class Hangs(Organization):
        async def act(self, observation: object, agents: Any) -> object:
            await asyncio.sleep(3600)
            raise AssertionError

    g = game(Script([]), organization=Hangs())
    try:
        found = play_session(g, asyncio.run, ShadowSettings(timeout_seconds=0.01), session("s"))
    finally:
        g.threads.close()
    assert (found.episode.status, found.episode.answer) == ("timed_out", "")


def test_an_answer_of_an_episode_that_did_not_end_well_is_none() -> None:
    def late(playing: Any) -> Any:
        asyncio.run(playing)
        raise TimeoutError

    g = game(Script([]))
    try:
        assert play_session(g, asyncio.run, ShadowSettings(), session("s")).episode.answer
        assert not play_session(g, late, ShadowSettings(), session("s")).episode.answer
    finally:
        g.threads.close()


def test_the_same_session_comes_out_the_same() -> None:
    keys: list[Any] = []
    for _ in range(2):
        engine = FakeEngine()
        shadowed(engine, session("s"))
        keys.append([key for key, _ in engine.asked])
    assert keys[0] == keys[1]
    assert {key.stream for key in keys[0]} == {"shadow"}


def test_a_session_that_failed_after_its_answer_is_passed_over(tmp_path: Path) -> None:
    failed = replace(session("d"), status="failed", error="x")
    write_episodes(tmp_path / "sessions-1-000001.parquet", [session("a"), failed])
    sessions = SessionQueue(tmp_path, 0, 1.0, ())
    assert [one.task.id for one in sessions.pending_sessions()] == ["a"]
    assert sessions.skipped.no_answer == 1
