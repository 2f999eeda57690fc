"""Games of the package TextArena (Guertler et al. 2025, arXiv 2504.11442) as matches of ours. It is imported where a
recipe names one of its games, and reaches for no network here."""

from __future__ import annotations

import inspect
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

from marft.common.faults import described
from marft.common.satellites import install_command
from marft.config.settings import did_you_mean
from marft_envs.textarena.games import LOST, WON
from marft_envs.textarena.randomness import drawing_from, take_over

JUDGED = ("OpenRouter", "OpenAI")  # in the code of games that ask a model somewhere else
_making = threading.Lock()  # while a game's modules are imported, and what they would fetch is refused


def known_games() -> list[str]:
    """The ids of all games of the package.

    Raises:
        ValueError: it is not installed.
    """
    return sorted(_registry())


def check(game: str, params: Mapping[str, object], players: int, data: str) -> None:
    """
    Raises:
        ValueError: there is no such game, it does not take these parameters or as many players, or what it needs is not
            here.
    """
    if game not in _registry():
        raise ValueError(f"TextArena has no game {game!r}{did_you_mean(game, _registry())}")
    Played(game, params, players, 0, data)


class Played:
    """One match of a game.

    Raises:
        ValueError: it cannot be begun; the message says what to do.
    """

    def __init__(self, game: str, params: Mapping[str, object], players: int, seed: int, data: str = "") -> None:
        self._players, self._random = players, Random(seed)
        self.illegal, self.over = [0] * players, False
        self._shown: dict[int, str] = {}
        self._seats: list[int] = []  # the package's players, in the order in which they first move
        with _making, drawing_from(self._random), _offline(data):
            self._env = _made(game, params, data)
            try:
                self._env.reset(num_players=players, seed=seed)
            except AssertionError as error:
                raise ValueError(f"game {game!r} is not for {players} players: {error}") from error
            except ValueError as error:
                raise ValueError(f"game {game!r} cannot be begun by {players} players: {error}") from error
            except LookupError as error:
                raise _without_data(game, data, error) from error
        self._look()

    @property
    def mover(self) -> int:
        return self._seats.index(self._now)

    def options(self) -> tuple[str, ...]:
        """The package does not list moves."""
        return ()

    def shown(self, player: int) -> str:
        """What the package has shown it last."""
        return self._shown.get(player, "")

    def play(self, move: str) -> None:
        """A move, by the package's own rules."""
        mover, before = self.mover, self._errors()
        with drawing_from(self._random):
            self.over, _ = self._env.step(action=move)
            self.illegal[mover] += self._errors() > before or (self.over and self._lost_by_error(self._now))
            if not self.over:
                self._look()

    def paid(self) -> tuple[float, ...]:
        """The package's rewards, held to between -1 and 1."""
        rewards = self._env.state.rewards or {}
        order = [*self._seats, *(n for n in range(self._players) if n not in self._seats)]
        return tuple(self._held(player, rewards.get(player, 0.0)) for player in order)

    def _look(self) -> None:
        """Ask whose move it is, and what that player is shown."""
        with drawing_from(self._random):
            self._now, observation = self._env.get_observation()
        if self._now not in self._seats:
            self._seats.append(self._now)
        self._shown[self.mover] = _text(observation, self._env.state.role_mapping)

    def _held(self, player: int, reward: object) -> float:
        """A reward between -1 and 1. Some games pay a text where somebody has lost by an illegal move."""
        if not isinstance(reward, int | float) and self._lost_by_error(player):
            return LOST
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise ValueError(f"the game paid {reward!r}, which is no finite number")
        return min(max(float(reward), LOST), WON)

    def _errors(self) -> int:
        return int(getattr(self._env.state, "error_count", 0))

    def _lost_by_error(self, player: int) -> bool:
        information = getattr(self._env.state, "game_info", {})
        return bool(information.get(player, {}).get("invalid_move"))


def _registry() -> Mapping[str, Any]:
    if find_spec("textarena") is None:
        raise ValueError(
            "environment 'textarena' needs a package that is not installed: "
            f"{install_command('textarena')}; games of our own need none"
        )
    return import_module("textarena.envs.registration").ENV_REGISTRY  # type: ignore[no-any-return]


def _made(game: str, params: Mapping[str, object], data: str) -> Any:
    textarena: Any = import_module("textarena")
    entry = str(_registry()[game].entry_point)
    try:
        source = inspect.getsource(import_module(entry.partition(":")[0]))
        if any(word in source for word in JUDGED):
            raise ValueError(f"game {game!r} asks a model over the network, and none is reached here; take another")
        made = textarena.make(game, **params)
    except LookupError as error:
        raise _without_data(game, data, error) from error
    except TypeError as error:
        raise ValueError(f"params: game {game!r} does not take them: {error}") from error
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ValueError(f"game {game!r} is written for a newer Python than {version}; take another") from error
    except ImportError as error:
        raise ValueError(f"game {game!r} needs a package that is not installed: {described(error)}") from error
    take_over("textarena")
    return made


def _without_data(game: str, data: str, error: LookupError) -> Exception:
    """What to say of word lists that are not there; any other error as it is."""
    if type(error) is not LookupError:
        return error
    first = next((line.strip() for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)
    where = f"{data} does not hold them" if data else "no folder is given"
    return ValueError(
        f"game {game!r} needs word lists, and {where} ({first}); fetch them once where there is a network, python -m "
        "nltk.downloader -d FOLDER words averaged_perceptron_tagger_eng, and give data = 'FOLDER'"
    )


@contextmanager
def _offline(data: str) -> Iterator[None]:
    """Word lists come from a folder, and what would fetch them does nothing."""
    if data and not os.path.isdir(data):  # noqa: PTH112  no path is too long
        raise ValueError(f"data: there is no folder {data}; give the one that nltk's word lists lie in")
    if find_spec("nltk") is None:
        yield
        return
    nltk: Any = import_module("nltk")
    fetch, nltk.download = nltk.download, lambda *_, **__: False
    if data and data not in nltk.data.path:
        nltk.data.path.insert(0, data)
    try:
        yield
    finally:
        nltk.download = fetch


def _text(observation: object, names: Mapping[int, str]) -> str:
    """What a player is shown, as a text: with a game's wrappers it is one, without (``…-raw``) the new pieces."""
    if not isinstance(observation, Sequence) or isinstance(observation, str):
        return str(observation).strip()
    return "\n".join(f"[{names.get(sender, 'GAME')}] {message}" for sender, message, *_ in observation).strip()
