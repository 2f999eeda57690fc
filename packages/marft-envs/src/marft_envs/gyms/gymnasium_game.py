"""Plugin ``gymnasium``: one agent in the team acts in a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.plugins import import_path
from marft.config.settings import did_you_mean
from marft_envs.gyms.acts import Acts, acts_of, chosen
from marft_envs.gyms.making import ansi_of, gymnasium_env
from marft_envs.gyms.seeded import Seeded
from marft_envs.gyms.worded import plain, worded

NO_ACTION = "That was no action that is possible."


class Gymnasium(Seeded):
    """Any Gymnasium environment with enumerable actions.

    Observations become text: the environment's own ANSI rendering if available, otherwise the observation in words,
    or the result of your function.
    """

    actor: str = "solver"  # role whose action counts
    # text form of observations: ansi, words, or the import path of a function from an observation and the environment
    # to text; auto: ansi if available, otherwise words
    rendering: str = "auto"

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error if the actor is unknown."""
        if self.actor not in roles:
            yield f"environment.actor: no agent is called {self.actor!r}{did_you_mean(self.actor, roles)}"

    def first_shown(self, seed: int, kwargs: Mapping[str, Any]) -> str:
        """Return a game's first observation."""
        session = GymnasiumSession(self, seed, kwargs)
        try:
            return session.begin().text
        finally:
            session.end()

    def start(self, task: Task, seed: int) -> GymnasiumSession:  # noqa: ARG002  the task has the seed
        """Create a session for a game."""
        return GymnasiumSession(self, task.data["seed"], task.data["kwargs"])


class GymnasiumSession:
    """One game."""

    def __init__(self, settings: Gymnasium, seed: int, kwargs: Mapping[str, Any]) -> None:
        self.settings, self.seed, self.kwargs = settings, seed, dict(kwargs)
        self.env: Any = None
        self.render: Callable[[Any, Any], str] | None = None
        self.steps = self.mistakes = 0
        self.earned = 0.0
        self._acts: Acts = Acts({}, {})
        self._shown, self._options = "", tuple[str, ...]()

    async def reset(self) -> Observation:
        """Create the game and return the first observation."""
        return self.begin()

    async def step(self, actions: JointAction) -> Step:
        """Apply the actor's action, or else the answer."""
        return self.take(actions.of(self.settings.actor) or actions.answer)

    async def close(self) -> None:
        """Close the game."""
        self.end()

    def begin(self) -> Observation:
        """Create the game and return the first observation."""
        self.env, self.render = self._opened()
        self._acts = acts_of(self.env.action_space, self.settings.action_names)
        observation, info = self.env.reset(seed=self.seed)
        self._look(observation, info)
        return self._observed()

    def end(self) -> None:
        """Close the game."""
        if self.env is not None:
            self.env.close()

    def take(self, action: Any) -> Step:
        """Apply one action; an invalid action only triggers an error text, and still uses up a step."""
        settings = self.settings
        self.steps += 1
        act = chosen(text_said(action), self._options)
        cut = self.steps >= settings.max_steps
        if not act:
            self.mistakes += 1
            return self._stepped(0.0, False, cut, {}, told=NO_ACTION)
        observation, reward, terminated, truncated, info = self.env.step(self._acts.named[act])
        self.earned += float(reward)
        if not terminated:
            self._look(observation, info)
        return self._stepped(float(reward), bool(terminated), not terminated and (bool(truncated) or cut), info)

    def _stepped(
        self, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any], told: str = ""
    ) -> Step:  # fmt: skip
        over = terminated or truncated
        return Step(
            Observation("") if terminated else self._observed(told), reward * self.settings.scale,
            terminated=terminated, truncated=truncated,
            success=self.settings.succeeded(self.earned, info) if over else None,
            info={"measures": {"mistakes": self.mistakes, "earned": self.earned}},
        )  # fmt: skip

    def _look(self, observation: Any, info: Mapping[str, Any]) -> None:
        """Update the shown text and the legal options."""
        settings = self.settings
        mask = info.get("action_mask")
        if isinstance(observation, dict) and "action_mask" in observation:
            mask = observation["action_mask"]
            observation = {name: part for name, part in observation.items() if name != "action_mask"}
        self._options = self._acts.allowed(mask)
        if self.render:
            self._shown = self.render(observation, self.env)
        elif getattr(self.env, "render_mode", None) == "ansi":
            self._shown = plain(str(self.env.render()))
        else:
            self._shown = worded(observation, settings.observation_names, settings.digits)

    def _observed(self, told: str = "") -> Observation:
        actor = self.settings.actor
        listed = f"Actions: {', '.join(self._options)}" if self.settings.tells_actions else ""
        text = "\n".join(part for part in (told, self._shown, listed) if part)
        return Observation(text, turn=(actor,), options={actor: self._options})

    def _opened(self) -> tuple[Any, Callable[[Any, Any], str] | None]:
        settings = self.settings
        if settings.rendering not in ("auto", "ansi", "words"):
            return gymnasium_env(settings.game, self.kwargs), import_path(settings.rendering)
        env = gymnasium_env(settings.game, self.kwargs)
        if settings.rendering != "words" and "render_mode" not in self.kwargs and ansi_of(env):
            env.close()
            env = gymnasium_env(settings.game, {**self.kwargs, "render_mode": "ansi"})
        return env, None
