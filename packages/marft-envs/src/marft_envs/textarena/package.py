"""Adapter for games from the TextArena package (Guertler et al. 2025, arXiv 2504.11442).

The package is imported only if a recipe names one of its games. The network is not used. Each match draws from its own
random stream, though the package uses Python's global stream: sessions run on several threads, and seeding a shared
stream would make a match depend on the others.
"""

from __future__ import annotations

import inspect
import math
import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.config.settings import did_you_mean
from marft_envs.textarena.games import LOSS_PAYOFF, WIN_PAYOFF

_thread_state = threading.local()


class MatchRandom:
    """Replacement for the module ``random`` inside the package.

    Its functions draw from the stream of the current thread's match. Without a match they use the global stream.
    """

    def __getattr__(self, name: str) -> object:
        return getattr(getattr(_thread_state, "random", random), name, None) or getattr(random, name)


@contextmanager
def use_stream(stream: random.Random) -> Iterator[None]:
    """Context manager: the package draws from ``stream`` on this thread."""
    previous = getattr(_thread_state, "random", random)
    _thread_state.random = stream
    try:
        yield
    finally:
        _thread_state.random = previous


def patch_random(package: str) -> None:
    """Make every loaded module in a package draw from its match's stream."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for module in modules:
        if getattr(module, "random", None) is random:
            vars(module)["random"] = MatchRandom()


MODEL_JUDGE_NAMES = ("OpenRouter", "OpenAI")  # words in the code of games that query a remote model
_creation_lock = threading.Lock()  # held while a game's modules are imported and nltk downloads are disabled


def check_game(game: str, params: Mapping[str, object], players: int, data: str) -> None:
    """Start a game once, to check its settings.

    Raises:
        UserError: the game does not exist, a parameter or the number of players is invalid, or a requirement is
            missing.
    """
    if game not in _game_registry():
        raise UserError(f"TextArena has no game {game!r}{did_you_mean(game, _game_registry())}")
    TextArenaMatch(game, params, players, 0, data)


class TextArenaMatch:
    """A match in a TextArena game.

    Raises:
        UserError: the game cannot be started. The message gives the remedy.
    """

    def __init__(self, game: str, params: Mapping[str, object], players: int, seed: int, data: str = "") -> None:
        self._players, self._random = players, Random(seed)
        self.illegal_counts, self.is_over = [0] * players, False
        self._texts: dict[int, str] = {}
        self._player_ids: list[int] = []  # the package's player ids, in order of their first moves
        with _creation_lock, use_stream(self._random), _offline(data):
            self._env = _create_game(game, params, data)
            try:
                self._env.reset(num_players=players, seed=seed)
            except AssertionError as error:
                raise UserError(f"game {game!r} is not for {players} players: {error}") from error
            except ValueError as error:
                raise UserError(f"game {game!r} cannot be begun by {players} players: {error}") from error
            except LookupError as error:
                raise _data_error(game, data, error) from error
        self._update_view()

    @property
    def current_player(self) -> int:
        """Player to move."""
        return self._player_ids.index(self._current_id)

    def options(self) -> tuple[str, ...]:
        """Return (): the package does not list legal moves."""
        return ()

    def player_text(self, player: int) -> str:
        """Return the package's last text for a player."""
        return self._texts.get(player, "")

    def play_move(self, move: str) -> None:
        """Play a move under the package's own rules."""
        player_moving, earlier_errors = self.current_player, self._error_count()
        with use_stream(self._random):
            self.is_over, _ = self._env.step(action=move)
            self.illegal_counts[player_moving] += self._error_count() > earlier_errors or (
                self.is_over and self._has_invalid_move(self._current_id)
            )
            if not self.is_over:
                self._update_view()

    def payoffs(self) -> tuple[float, ...]:
        """Return the package's rewards, clipped to [−1, 1]."""
        rewards = self._env.state.rewards or {}
        order = [*self._player_ids, *(n for n in range(self._players) if n not in self._player_ids)]
        return tuple(self._clip_reward(player, rewards.get(player, 0.0)) for player in order)

    def _update_view(self) -> None:
        """Update the player to move and that player's text."""
        with use_stream(self._random):
            self._current_id, observation = self._env.get_observation()
        if self._current_id not in self._player_ids:
            self._player_ids.append(self._current_id)
        self._texts[self.current_player] = _format_observation(observation, self._env.state.role_mapping)

    def _clip_reward(self, player: int, reward: object) -> float:
        """Clip a reward to [−1, 1]; the text that some games pay for a loss by an illegal move counts as −1."""
        if not isinstance(reward, int | float) and self._has_invalid_move(player):
            return LOSS_PAYOFF
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise UserError(f"the game paid {reward!r}, which is no finite number")
        return min(max(float(reward), LOSS_PAYOFF), WIN_PAYOFF)

    def _error_count(self) -> int:
        return int(getattr(self._env.state, "error_count", 0))

    def _has_invalid_move(self, player: int) -> bool:
        information = getattr(self._env.state, "game_info", {})
        return bool(information.get(player, {}).get("invalid_move"))


def _game_registry() -> Mapping[str, Any]:
    if find_spec("textarena") is None:
        raise UserError(
            "environment 'textarena' needs a package that is not installed: "
            f"{install_command('textarena')}; games of our own need none"
        )
    return import_module("textarena.envs.registration").ENV_REGISTRY  # type: ignore[no-any-return]


def _create_game(game: str, params: Mapping[str, object], data: str) -> Any:
    textarena: Any = import_module("textarena")
    entry = str(_game_registry()[game].entry_point)
    try:
        source = inspect.getsource(import_module(entry.partition(":")[0]))
        if any(word in source for word in MODEL_JUDGE_NAMES):
            raise UserError(f"game {game!r} asks a model over the network, and none is reached here; take another")
        env = textarena.make(game, **params)
    except LookupError as error:
        raise _data_error(game, data, error) from error
    except TypeError as error:
        raise UserError(f"params: game {game!r} does not take them: {error}") from error
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise UserError(f"game {game!r} is written for a newer Python than {version}; take another") from error
    except ImportError as error:
        raise UserError(f"game {game!r} needs a package that is not installed: {describe_error(error)}") from error
    patch_random("textarena")
    return env


def _data_error(game: str, data: str, error: LookupError) -> Exception:
    """Convert an error about missing word lists to a clear message; return other errors unchanged."""
    if type(error) is not LookupError:
        return error
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip(" *")), type(error).__name__)
    data_status = f"{data} does not hold them" if data else "no folder is given"
    return UserError(
        f"game {game!r} needs word lists, and {data_status} ({first_line}); fetch them once where there is a network, "
        "python -m nltk.downloader -d FOLDER words averaged_perceptron_tagger_eng, and give data = 'FOLDER'"
    )


@contextmanager
def _offline(data: str) -> Iterator[None]:
    """Context manager: read word lists from a folder and disable downloads."""
    if data and not os.path.isdir(data):  # noqa: PTH112  False for a path that is too long
        raise UserError(f"data: there is no folder {data}; give the one that nltk's word lists lie in")
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


def _format_observation(observation: object, names: Mapping[int, str]) -> str:
    """Convert an observation to text.

    With a game's wrappers it is a text already. Without them (``…-raw``) it is a list of new messages.
    """
    if not isinstance(observation, Sequence) or isinstance(observation, str):
        return str(observation).strip()
    return "\n".join(f"[{names.get(sender, 'GAME')}] {message}" for sender, message, *_ in observation).strip()
