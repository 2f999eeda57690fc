"""A team that is a command: what it prints last is the answer, and it ends with all that it has started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import Episode, Task
from marft.config import parse_recipe
from marft_serve.gateway.client import Client, build_environment
from marft_serve.gateway.program import Program
from marft_serve.gateway.program_runner import _proxy_bypass_env, parse_last_line
from tests.gateways import game_of, play_game, played
from tests.helpers import recipe
from tests.nights import BY_NIGHT
from tests.sources import TESTS

PROGRAM = str(TESTS / "client_program.py")


def run(deed: str, *roles: str, folder: Path = Path(), **program: object) -> Episode:
    words = ("python", PROGRAM, deed, str(folder / "left"))
    (episode,) = play_game(game_of(None, *roles, command=words, python=sys.executable, **program))
    return episode


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
class TestCommands:
    def test_it_asks_its_agents_and_its_last_line_is_the_answer(self) -> None:
        episode = run("asks", "a", "b")
        assert (episode.status, episode.error) == ("terminated", "")
        assert [action.id for action in episode.actions] == ["0/a/0"]

    def test_it_may_grade_itself(self) -> None:
        assert run("grades", graded_by="program").total_reward == 0.5

    @pytest.mark.parametrize(
        ("deed", "says"),
        [
            ("dies", "the program ended with status 137: it said nothing"),
            ("complains", "the program ended with status 1: it hurts"),
            ("babbles", "the program printed 'no JSON' last, which is no JSON"),
            ("grades", "the program says what it earns, and the environment does"),
        ],
    )
    def test_one_that_goes_wrong_says_how(self, deed: str, says: str) -> None:
        episode = run(deed)
        assert episode.status == "failed"
        assert says in episode.error

    @BY_NIGHT
    @pytest.mark.parametrize(("deed", "status"), [("hangs", "timed_out"), ("leaves", "terminated")])
    def test_what_it_has_started_ends_with_it(self, deed: str, status: str, tmp_path: Path) -> None:
        episode = run(deed, folder=tmp_path, timeout_seconds=5.0)
        assert episode.status == status, episode.error
        (pid,) = map(int, (tmp_path / "left").read_text().split())
        deadline = time.monotonic() + 10
        while not gone(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_last_line_ends_at_a_line_feed_alone() -> None:
    answer = "one\u2028two\u2029three\u0085four"
    assert parse_last_line(f'so\r\n"{answer}"\r\n'.encode()) == answer


class TestRecipes:
    @pytest.mark.parametrize(
        ("team", "says"),
        [
            ({}, "needs either a function to call, or a command"),
            ({"call": "os:getcwd", "command": ["python"]}, "needs either"),
            ({"call": "os:nowhere"}, "cannot import 'os:nowhere'"),
            ({"call": "os:sep"}, "is no function"),
            ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
            ({"command": ["python", "x.py"], "python": "/nowhere/python"}, "there is no program '/nowhere/python'"),
            ({"call": "os:getcwd", "python": "python"}, "python does nothing for a function"),
            ({"call": "os:getcwd", "port": 70000}, "port"),
        ],
    )
    def test_what_cannot_run_is_refused_when_it_is_read(self, team: dict[str, object], says: str) -> None:
        with pytest.raises((ValueError, ValidationError), match=says):
            parse_recipe(recipe(team={"organization": "program", **team}))

    def test_one_port_is_not_for_several_processes(self) -> None:
        team = {"organization": "program", "call": "os:getcwd", "port": 8000}
        with pytest.raises(ValueError, match=r"team\.port: one port cannot serve"):
            parse_recipe(recipe(team=team, rollout={"workers": 2}))
        parse_recipe(recipe(team={**team, "port": 0}, rollout={"workers": 2}))

    def test_agents_of_a_program_have_no_tools_or_memory_of_the_recipes(self) -> None:
        for changes in ({"memory": "own"}, {"tools": ["sums"]}, {"guidance": "Be brief."}):
            table = recipe(team={"organization": "program", "call": "os:getcwd"})
            table["agents"][0] |= changes
            table["tools"] = {"sums": {"name": "function", "call": "tests.tools:add"}} if "tools" in changes else {}
            with pytest.raises(ValueError, match="a program has tools, a memory and guidance of its own"):
                parse_recipe(table)

    def test_an_ungraded_environment_takes_a_program_that_grades(self) -> None:
        team = {"organization": "program", "call": "os:getcwd", "graded_by": "program"}
        assert parse_recipe(recipe(team=team)).team.grades_answers
        assert Program(call="os:getcwd").grades_answers is False

    def test_the_command_is_told_where_its_agents_are(self) -> None:
        client = Client("http://h:1/e/s/a/v1", "none", "m", "Be brief.", "http://h:1/e/s/waiting")
        assert build_environment({"a": client, "b": client}) == {
            **{f"MARFT_{role}_URL": "http://h:1/e/s/a/v1" for role in "AB"},
            **{f"MARFT_{role}_MODEL": "m" for role in "AB"},
            **{f"MARFT_{role}_INSTRUCTIONS": "Be brief." for role in "AB"},
            "MARFT_API_KEY": "none", "MARFT_WAITING_URL": "http://h:1/e/s/waiting",
        }  # fmt: skip
        alone = build_environment({"a": client})
        assert (alone["OPENAI_BASE_URL"], alone["ANTHROPIC_BASE_URL"]) == ("http://h:1/e/s/a/v1", "http://h:1/e/s/a")


def test_programs_are_told_the_address_by_which_they_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they run in containers it is not the one at which the gateway listens."""
    told: list[Client] = []

    def solve(task: Task, clients: Mapping[str, Client]) -> None:
        told.append(clients["a"])

    assert played(solve, public_url="http://host.docker.internal:8123/").status == "terminated"
    assert told[0].base_url.startswith("http://host.docker.internal:8123/e/")
    assert told[0].waiting_url.startswith("http://host.docker.internal:8123/e/")
    monkeypatch.setenv("NO_PROXY", "one,two")
    monkeypatch.setenv("no_proxy", "two,three")
    loop = replace(told[0], base_url="http://[::1]:80/e")
    assert _proxy_bypass_env({"a": told[0], "b": loop})["no_proxy"] == "one,two,three,::1,host.docker.internal"
    for wrong in ("host.docker.internal:8123", "ftp://x", "http://x/y"):
        with pytest.raises(ValueError, match="should match pattern"):
            game_of(solve, public_url=wrong)
    for wrong in ("http://[", "http://x:99999", "http://x?y", "http://me:secret@x"):
        with pytest.raises(ValueError, match="must look like http://host:8123"):
            game_of(solve, public_url=wrong)
