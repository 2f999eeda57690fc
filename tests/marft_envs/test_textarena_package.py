"""Games of the package TextArena: a stand-in with its seams plays everywhere, the package itself where it is installed."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from marft.common.types import Observation, Step
from marft_envs.textarena.environment import TextArena
from tests.playing_games import match

REAL = find_spec("textarena") is not None
needs_the_package = pytest.mark.skipif(not REAL, reason="textarena is not installed: pip install 'marft[textarena]'")

REGISTRATION = """
class Spec:
    def __init__(self, entry_point): self.entry_point = entry_point
ENV_REGISTRY = {name: Spec(f"textarena.envs.{module}:{kind}") for name, module, kind in (
    ("Dice-v0", "dice", "Dice"), ("Jury-v0", "jury", "Jury"), ("Words-v0", "words", "Words"),
    ("Newer-v0", "newer", "Newer"))}
"""
ROOT = """
import importlib
def make(env_id, **params):
    from textarena.envs.registration import ENV_REGISTRY
    module, _, name = ENV_REGISTRY[env_id].entry_point.partition(":")
    return getattr(importlib.import_module(module), name)(**params)
"""
DICE = '''
import random
class State:
    pass
class Dice:
    """Both guess what a die will show; who is right more often in three rounds wins. Player 1 begins."""
    def __init__(self, rounds=3): self.rounds = rounds
    def reset(self, num_players, seed=None):
        assert num_players == 2, f"two players, received {num_players}"
        random.seed(seed)
        self.state = s = State()
        s.role_mapping, s.rewards, s.error_count, s.game_info = {0: "Zero", 1: "One"}, None, 0, {0: {}, 1: {}}
        s.now, s.points, s.turns = 1, [0, 0], 0
        self.news = {0: [(-1, "Guess 1 to 6.", None)], 1: [(-1, "Guess 1 to 6.", None)]}
    def get_observation(self):
        now = self.state.now
        news, self.news[now] = self.news[now], []
        return now, news
    def step(self, action):
        s = self.state
        if action not in "123456":
            if s.error_count:
                lost = "no number" if s.turns else -1
                s.rewards, s.game_info[s.now]["invalid_move"] = {s.now: lost, 1 - s.now: 1}, True
                return True, {}
            s.error_count += 1
            self.news[s.now].append((-1, "Invalid.", None))
            return False, {}
        s.error_count, shown = 0, random.randint(1, 6)
        s.points[s.now] += int(action) == shown
        for player in (0, 1): self.news[player].append((s.now, f"{action} for {shown}", None))
        s.now, s.turns = 1 - s.now, s.turns + 1
        if s.turns < 2 * self.rounds: return False, {}
        better = (s.points[0] > s.points[1]) - (s.points[0] < s.points[1])
        s.rewards = {0: 7 * better, 1: -7 * better}
        return True, {}
'''
JURY = '"""Asks OpenRouter."""\nclass Jury: pass\n'
NEWER = "class Newer(: pass\n"
WORDS = """
class Words:
    def __init__(self): raise LookupError("\\n***\\n  Resource words not found.\\n***")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in that is found before the package, should that be installed."""
    root = tmp_path / "textarena"
    (root / "envs").mkdir(parents=True)
    for name, text in {
        "__init__.py": ROOT, "envs/__init__.py": "", "envs/registration.py": REGISTRATION, "envs/dice.py": DICE,
        "envs/jury.py": JURY, "envs/words.py": WORDS, "envs/newer.py": NEWER,
    }.items():  # fmt: skip
        (root / name).write_text(text, encoding="utf-8")
    real = taken_out()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    taken_out()
    sys.modules.update(real)


def taken_out() -> dict[str, ModuleType]:
    """The modules of the package that are loaded, which are so no more."""
    names = [name for name in sys.modules if name.partition(".")[0] == "textarena"]
    return {name: sys.modules.pop(name) for name in names}


def dice(**table: Any) -> TextArena:
    return TextArena.model_validate({"game": "Dice-v0", "train_tasks": 20, "held_out_tasks": 2, **table})


def guess(role: str, shown: Observation) -> str:
    return str(Random(shown.full_text).randint(1, 6))


class TestStandIn:
    def test_each_seat_is_shown_what_is_new_to_it_and_whoever_moves_first_is_player_0(self, package: Path) -> None:
        env = dice(params={"rounds": 1})
        shown, last = match(env, env.tasks("train")[0], guess)
        begins = env.tasks("train")[0].data["begins"]
        assert shown[0].turn == (begins,)
        assert shown[0].for_role(begins) == "[GAME] Guess 1 to 6."
        assert shown[1].for_role(shown[1].turn[0]).startswith("[GAME] Guess 1 to 6.\n[One] ")
        assert last.info["measures"] == {"turns": 2.0, "illegal_moves": 0.0}

    def test_what_is_paid_goes_to_who_sat_there_and_is_held_to_one(self, package: Path) -> None:
        env = dice()
        results = [match(env, task, guess)[1].agent_rewards for task in env.tasks("train")]
        assert {abs(one) for result in results for one in result.values()} == {0.0, 1.0}
        assert all(sum(result.values()) == 0.0 for result in results)
        assert len({result["north"] for result in results}) == 3

    def test_the_package_s_own_rules_say_what_an_illegal_move_costs(self, package: Path) -> None:
        env = dice()
        shown, last = match(env, env.tasks("train")[0], lambda *_: "seven")
        assert "Invalid." in shown[1].full_text
        assert last.agent_rewards[shown[0].turn[0]] == -1.0
        assert last.info["measures"]["illegal_moves"] == 1.0
        moves = iter(["1", "seven", "seven"])
        _, last = match(env, env.tasks("train")[0], lambda *_: next(moves))  # and where a game pays a text for it
        assert last.agent_rewards[shown[0].turn[0]] == 1.0
        assert sum(last.agent_rewards.values()) == 0.0

    def test_matches_at_the_same_time_draw_from_streams_of_their_own(self, package: Path) -> None:
        env = dice(params={"rounds": 20})
        tasks = env.tasks("train")
        alone: list[tuple[list[Observation], Step]] = [match(env, task, guess) for task in tasks]
        together: dict[int, object] = {}

        def play(number: int) -> None:
            together[number] = match(env, tasks[number], guess)

        threads = [threading.Thread(target=play, args=(number,)) for number in range(len(tasks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [together[number] for number in range(len(tasks))] == alone

    @pytest.mark.parametrize(
        ("table", "says"),
        [
            ({"game": "Dise-v0"}, "did you mean 'Dice-v0'"),
            ({"game": "Jury-v0"}, "asks a model over the network"),
            ({"game": "Words-v0"}, "give data = 'FOLDER'"),
            ({"game": "Newer-v0"}, "written for a newer Python"),
            ({"params": {"turns": 3}}, "does not take them"),
            ({"seats": [["a"]]}, "not for 1 players: two players"),
            ({"seats": [["a"]], "opponent": "random"}, "lists no moves"),
        ],
    )
    def test_what_cannot_be_played_is_refused_when_the_recipe_is_read(
        self, package: Path, table: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            dice(**table)


def test_a_package_that_is_not_there_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_envs.textarena.package.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .*marft.*\[textarena\]"):
        dice()


@needs_the_package
class TestPackage:
    @pytest.mark.parametrize(
        ("game", "moves"),
        [
            ("Nim-v0", ["[0 1]", "[1 1]", "[2 1]", "[0 3]"]),
            ("KuhnPoker-v0", ["[check]", "[bet]", "[call]", "[fold]"]),
            ("TicTacToe-v0-raw", [f"[{n}]" for n in range(9)]),
        ],
    )
    def test_games_of_two_end_with_what_one_wins_the_other_loses(
        self, game: str, moves: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def nowhere(*_: object) -> None:
            raise AssertionError("the network was asked")

        monkeypatch.setattr(socket.socket, "connect", nowhere)
        env = TextArena.model_validate({"game": game, "train_tasks": 10, "held_out_tasks": 2})
        for task in env.tasks("train"):
            played = [match(env, task, lambda _, shown: Random(shown.full_text).choice(moves)) for _ in range(2)]
            assert played[0] == played[1]
            assert sum(played[0][1].agent_rewards.values()) == 0.0

    def test_word_lists_are_fetched_by_nobody(self) -> None:
        with pytest.raises(ValueError, match="needs word lists, and no folder is given"):
            TextArena.model_validate({"game": "Hangman-v0", "seats": [["solver"]]})
