"""Plugin ``gymnasium``: one agent in the team acts in a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.plugins import import_object
from marft_envs.generated import describe_unknown_roles
from marft_envs.gyms.seeded import SeededEnvironment, make_gymnasium_env, supports_ansi
from marft_envs.gyms.texts import ActionSpace, enumerate_actions, format_value, parse_choice, strip_colors

NO_ACTION = "That was no action that is possible."


class Gymnasium(SeededEnvironment):
    """Any Gymnasium environment with enumerable actions.

    Observations become text: the environment's own ANSI rendering if available, otherwise the observation in words,
    or the result of your function.
    """

    actor: str = Field(default="solver", description="role whose action counts")
    rendering: str = Field(
        default="auto",
        description=(
            "text form of observations: ansi, words, or the import path of a function (observation, environment) → "
            "text; auto: ansi if available, else words"
        ),
    )

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error if the actor is unknown."""
        return describe_unknown_roles({"actor": (self.actor,)}, roles)

    def first_observation(self, seed: int, kwargs: Mapping[str, object]) -> str:
        """Return a game's first observation."""
        session = GymnasiumSession(self, seed, kwargs)
        try:
            return session.reset_sync().text
        finally:
            session.close_sync()

    def start(self, task: Task, seed: int) -> GymnasiumSession:  # noqa: ARG002  the task has the seed
        """Create a session for a game."""
        return GymnasiumSession(self, task.data["seed"], task.data["kwargs"])


class GymnasiumSession:
    """One game."""

    def __init__(self, settings: Gymnasium, seed: int, kwargs: Mapping[str, Any]) -> None:
        self.settings, self.seed, self.kwargs = settings, seed, dict(kwargs)
        self.env: Any = None
        self.render: Callable[[Any, Any], str] | None = None
        self.steps = self.invalid_actions = 0
        self.total_reward = 0.0
        self._action_space: ActionSpace = ActionSpace({}, {})
        self._text, self._options = "", tuple[str, ...]()

    async def reset(self) -> Observation:
        """Create the game and return the first observation."""
        return self.reset_sync()

    async def step(self, actions: JointAction) -> Step:
        """Apply the actor's action, or else the answer."""
        return self.step_sync(actions.for_role(self.settings.actor) or actions.answer)

    async def close(self) -> None:
        """Close the game."""
        self.close_sync()

    def reset_sync(self) -> Observation:
        """Create the game and return the first observation."""
        self.env, self.render = self._create_env()
        self._action_space = enumerate_actions(self.env.action_space, self.settings.action_names)
        observation, info = self.env.reset(seed=self.seed)
        self._update_view(observation, info)
        return self._build_observation()

    def close_sync(self) -> None:
        """Close the game."""
        if self.env is not None:
            self.env.close()

    def step_sync(self, action: Any) -> Step:
        """Apply one action; an invalid action only triggers an error text, and still uses up a step."""
        settings = self.settings
        self.steps += 1
        action_name = parse_choice(graded_text(action), self._options)
        at_limit = self.steps >= settings.max_steps
        if not action_name:
            self.invalid_actions += 1
            return self._make_step(0.0, False, at_limit, {}, feedback=NO_ACTION)
        observation, reward, terminated, truncated, info = self.env.step(self._action_space.values[action_name])
        self.total_reward += float(reward)
        if not terminated:
            self._update_view(observation, info)
        return self._make_step(float(reward), bool(terminated), not terminated and (bool(truncated) or at_limit), info)

    def _make_step(
        self, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any], feedback: str = ""
    ) -> Step:
        over = terminated or truncated
        return Step(
            Observation("") if terminated else self._build_observation(feedback),
            reward * self.settings.reward_scale,
            terminated=terminated,
            truncated=truncated,
            success=self.settings.is_success(self.total_reward, info) if over else None,
            info={"measures": {"mistakes": self.invalid_actions, "earned": self.total_reward}},
        )

    def _update_view(self, observation: Any, info: Mapping[str, Any]) -> None:
        """Update the shown text and the legal options."""
        settings = self.settings
        mask = info.get("action_mask")
        if isinstance(observation, dict) and "action_mask" in observation:
            mask = observation["action_mask"]
            observation = {name: part for name, part in observation.items() if name != "action_mask"}
        self._options = self._action_space.allowed_actions(mask)
        if self.render:
            self._text = self.render(observation, self.env)
        elif getattr(self.env, "render_mode", None) == "ansi":
            self._text = strip_colors(str(self.env.render()))
        else:
            self._text = format_value(observation, settings.observation_names, settings.digits)

    def _build_observation(self, feedback: str = "") -> Observation:
        actor = self.settings.actor
        action_list = f"Actions: {', '.join(self._options)}" if self.settings.show_actions else ""
        text = "\n".join(part for part in (feedback, self._text, action_list) if part)
        return Observation(text, turn=(actor,), options={actor: self._options})

    def _create_env(self) -> tuple[Any, Callable[[Any, Any], str] | None]:
        settings = self.settings
        if settings.rendering not in ("auto", "ansi", "words"):
            return make_gymnasium_env(settings.game, self.kwargs), import_object(settings.rendering)
        env = make_gymnasium_env(settings.game, self.kwargs)
        if settings.rendering != "words" and "render_mode" not in self.kwargs and supports_ansi(env):
            env.close()
            env = make_gymnasium_env(settings.game, {**self.kwargs, "render_mode": "ansi"})
        return env, None
