"""Adapter for games from the TextArena package (Guertler et al. 2025, arXiv 2504.11442).

The package is imported only if a recipe names one of its games. The network is not used.
"""

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

JUDGED = ("OpenRouter", "OpenAI")  # words in the code of games that query a remote model
_making = threading.Lock()  # held while a game's modules are imported and nltk downloads are disabled


def known_games() -> list[str]:
    """Return every TextArena game id.

    Raises:
        ValueError: the package is not installed.
    """
    return sorted(_registry())


def check(game: str, params: Mapping[str, object], players: int, data: str) -> None:
    """Start a game once, to check its settings.

    Raises:
        ValueError: the game does not exist, a parameter or the number of players is invalid, or a requirement is
            missing.
    """
    if game not in _registry():
        raise ValueError(f"TextArena has no game {game!r}{did_you_mean(game, _registry())}")
    Played(game, params, players, 0, data)


class Played:
    """A match in a TextArena game.

    Raises:
        ValueError: the game cannot be started. The message gives the remedy.
    """

    def __init__(self, game: str, params: Mapping[str, object], players: int, seed: int, data: str = "") -> None:
        self._players, self._random = players, Random(seed)
        self.illegal, self.over = [0] * players, False
        self._shown: dict[int, str] = {}
        self._seats: list[int] = []  # the package's player ids, in order of their first moves
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
        """Player to move."""
        return self._seats.index(self._now)

    def options(self) -> tuple[str, ...]:
        """Return (): the package does not list legal moves."""
        return ()

    def shown(self, player: int) -> str:
        """Return the package's last text for a player."""
        return self._shown.get(player, "")

    def play(self, move: str) -> None:
        """Play a move under the package's own rules."""
        mover, before = self.mover, self._errors()
        with drawing_from(self._random):
            self.over, _ = self._env.step(action=move)
            self.illegal[mover] += self._errors() > before or (self.over and self._lost_by_error(self._now))
            if not self.over:
                self._look()

    def paid(self) -> tuple[float, ...]:
        """Return the package's rewards, clipped to [−1, 1]."""
        rewards = self._env.state.rewards or {}
        order = [*self._seats, *(n for n in range(self._players) if n not in self._seats)]
        return tuple(self._held(player, rewards.get(player, 0.0)) for player in order)

    def _look(self) -> None:
        """Update the player to move and that player's text."""
        with drawing_from(self._random):
            self._now, observation = self._env.get_observation()
        if self._now not in self._seats:
            self._seats.append(self._now)
        self._shown[self.mover] = _text(observation, self._env.state.role_mapping)

    def _held(self, player: int, reward: object) -> float:
        """Clip a reward to [−1, 1]; the text that some games pay for a loss by an illegal move counts as −1."""
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
    """Convert an error about missing word lists to a clear message; return other errors unchanged."""
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
    """Context manager: read word lists from a folder and disable downloads."""
    if data and not os.path.isdir(data):  # noqa: PTH112  False for a path that is too long
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
    """Convert an observation to text.

    With a game's wrappers it is a text already. Without them (``…-raw``) it is a list of new messages.
    """
    if not isinstance(observation, Sequence) or isinstance(observation, str):
        return str(observation).strip()
    return "\n".join(f"[{names.get(sender, 'GAME')}] {message}" for sender, message, *_ in observation).strip()
