"""Plugin ``pettingzoo``: a team, or several sides, in a PettingZoo game, with one game agent per role.

One interface covers both kinds of PettingZoo environments: turns, observations, rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.common.errors import UserError
from marft.common.seeds import derive_seed
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.plugins import import_object
from marft.config.settings import did_you_mean
from marft_envs.generated import describe_unknown_roles
from marft_envs.gyms.seeded import SeededEnvironment, make_pettingzoo_env, supports_ansi
from marft_envs.gyms.texts import ActionSpace, enumerate_actions, format_value, parse_choice, strip_colors


class PettingZooGame:
    """A PettingZoo game.

    Args:
        env: an AEC environment or a parallel environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.turn_based = hasattr(env, "agent_iter")
        self.truncated = False  # True if an agent's game was truncated
        self._observations: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def reset(self, seed: int) -> None:
        """Start a game."""
        initial = self.env.reset(seed=seed)
        if not self.turn_based:
            self._observations, self._infos = initial

    @property
    def active_agents(self) -> tuple[str, ...]:
        """Agents still in the game."""
        return tuple(self.env.agents)

    @property
    def acting_agents(self) -> tuple[str, ...]:
        """Agents in turn."""
        if not self.active_agents:
            return ()
        return (self.env.agent_selection,) if self.turn_based else self.active_agents

    def observe(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        """Return an agent's observation and info."""
        if self.turn_based:
            return self.env.observe(agent), self.env.infos.get(agent, {})
        return self._observations.get(agent), self._infos.get(agent, {})

    def step(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play one round and return each agent's reward."""
        if not self.turn_based:
            self._observations, rewards, terminations, truncations, self._infos = self.env.step(dict(actions))
            self.truncated |= any(truncations.values()) and not any(terminations.values())
            return {agent: float(reward) for agent, reward in rewards.items()}
        env = self.env
        ((agent, action),) = actions.items()
        assert agent == env.agent_selection, "one acts at a time"
        env.step(action)
        step_rewards = {name: float(reward) for name, reward in env.rewards.items()}
        self.truncated |= any(env.truncations.values()) and not any(env.terminations.values())
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # removes a finished agent
        return step_rewards


NO_ACTION = "{} gave no action that is possible, so nothing happened."


class PettingZoo(SeededEnvironment):
    """Any PettingZoo environment with enumerable actions, turn-based (AEC) or simultaneous (parallel).

    Each role plays one of the game's agents. It sees that agent's observations and acts in its turns.
    """

    game_agent_by_role: dict[str, str] = Field(
        default={}, description="game agent by role; default: the agent with the role's name"
    )
    random_others: bool = Field(
        default=False, description="let unassigned game agents act at random; false: raise an error"
    )
    team_reward: str = Field(
        default="mean",
        description=(
            'team\'s reward: "mean" or "sum" of the rewards of the roles\' agents, or the role whose reward counts'
        ),
    )
    rendering: str = Field(
        default="words",
        description=(
            "text form of observations; words: each agent's observation; ansi: the game's terminal rendering, for "
            "every agent; or the import path of a function (observation, environment, agent name) → text"
        ),
    )

    @model_validator(mode="after")
    def _check_seats(self) -> Self:
        if self.random_others and not self.game_agent_by_role:
            raise PydanticCustomError(
                "game_agent_by_role", "name whom the roles play, so that it is known who the others are"
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield errors for unknown roles, and for game agents with two roles."""
        yield from describe_unknown_roles({"game_agent_by_role": list(self.game_agent_by_role)}, roles)
        if self.team_reward not in ("mean", "sum", *roles):
            yield f"environment.team_reward: must be mean, sum or a role{did_you_mean(self.team_reward, roles)}"
        assigned = [self.game_agent_by_role.get(role, role) for role in roles]
        for seat in {seat for seat in assigned if assigned.count(seat) > 1}:
            yield f"environment.game_agent_by_role: two roles play {seat!r}; give each an agent of its own"

    def first_observation(self, seed: int, kwargs: Mapping[str, object]) -> str:
        """Return a game's first observations, for every agent."""
        session = PettingZooSession(self, seed, kwargs, 0)
        try:
            return session.reset_sync().full_text
        finally:
            session.close_sync()

    def start(self, task: Task, seed: int) -> PettingZooSession:
        """Create a session for a game."""
        return PettingZooSession(self, task.data["seed"], task.data["kwargs"], seed)


class PettingZooSession:
    """One game.

    Args:
        settings: the environment.
        seed: seed of the game.
        kwargs: arguments for creating the game.
        opponent_seed: seed for the agents that act at random.
    """

    def __init__(self, settings: PettingZoo, seed: int, kwargs: Mapping[str, Any], opponent_seed: int) -> None:
        self.settings, self.seed, self.kwargs = settings, seed, dict(kwargs)
        self.random = Random(derive_seed(opponent_seed, "others"))
        self.env: Any = None
        self.render: Callable[[Any, Any, str], str] | None = None
        self.game: PettingZooGame
        self.steps = self.invalid_actions = 0
        self.total_reward = 0.0
        self._roles_by_agent = {agent: role for role, agent in settings.game_agent_by_role.items()}
        self._action_spaces: dict[str, ActionSpace] = {}
        self._options: dict[str, tuple[str, ...]] = {}  # legal options, by agent in turn

    async def reset(self) -> Observation:
        """Create the game and return the first observation."""
        return self.reset_sync()

    async def step(self, actions: JointAction) -> Step:
        """Play one round with each acting role's text."""
        return self.step_sync(
            {role: graded_text(action) for role in self._roles_in_turn() if (action := actions.for_role(role))}
        )

    async def close(self) -> None:
        """Close the game."""
        self.close_sync()

    def reset_sync(self) -> Observation:
        """Create the game and return the first observation.

        Raises:
            UserError: the game cannot be created, has no ANSI rendering, or lacks an assigned agent.
        """
        settings = self.settings
        if settings.rendering not in ("words", "ansi"):
            self.render = import_object(settings.rendering)
        extra = {"render_mode": "ansi"} if settings.rendering == "ansi" else {}
        self.env = make_pettingzoo_env(settings.game, {**extra, **self.kwargs})
        if settings.rendering == "ansi" and not supports_ansi(self.env):
            raise UserError(f"environment.rendering: {settings.game} shows itself in no terminal; take words")
        agents = list(self.env.possible_agents)
        for role, agent in settings.game_agent_by_role.items():
            if agent not in agents:
                raise UserError(f"environment.game_agent_by_role: {role} plays {agent!r}{did_you_mean(agent, agents)}")
        self._action_spaces = {
            agent: enumerate_actions(self.env.action_space(agent), settings.action_names) for agent in agents
        }
        self.game = PettingZooGame(self.env)
        self.game.reset(self.seed)
        self._update_options()
        self._play_others()
        return self._build_observation()

    def close_sync(self) -> None:
        """Close the game."""
        if self.env is not None:
            self.env.close()

    def step_sync(self, texts: Mapping[str, str]) -> Step:
        """Play one round; if any role in turn names no legal action, the game does not change.

        Args:
            texts: text by role.
        """
        self.steps += 1
        at_limit = self.steps >= self.settings.max_steps
        named = {
            agent: parse_choice(texts.get(self._role_of(agent), ""), self._options[agent])
            for agent in self._own_agents()
        }
        invalid_roles = [self._role_of(agent) for agent, act in named.items() if not act]
        if invalid_roles:
            self.invalid_actions += len(invalid_roles)
            return self._make_step({}, at_limit, " ".join(NO_ACTION.format(role) for role in invalid_roles))
        random_moves = {
            agent: self.random.choice(self._options[agent]) for agent in self._options if agent not in named
        }
        rewards = self._apply_actions({**named, **random_moves})
        for agent, reward in self._play_others().items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
        return self._make_step(rewards, at_limit)

    def _apply_actions(self, named: Mapping[str, str]) -> dict[str, float]:
        rewards = self.game.step({agent: self._action_spaces[agent].values[act] for agent, act in named.items()})
        self._update_options()
        return rewards

    def _play_others(self) -> dict[str, float]:
        """Play unassigned agents at random until a role's turn, or until no role's agent remains."""
        total: dict[str, float] = {}
        while self._has_own_agents() and not self._own_agents():
            moves = {agent: self.random.choice(options) for agent, options in self._options.items()}
            for agent, reward in self._apply_actions(moves).items():
                total[agent] = total.get(agent, 0.0) + reward
        return total

    def _make_step(self, rewards: Mapping[str, float], at_limit: bool, feedback: str = "") -> Step:
        settings = self.settings
        over = not self._has_own_agents()
        by_role = {self._role_of(agent): reward for agent, reward in rewards.items() if self._is_own_agent(agent)}
        reward = self._team_reward(by_role)
        self.total_reward += reward
        truncated = (over and self.game.truncated) or (at_limit and not over)
        info = self.env.infos if isinstance(getattr(self.env, "infos", None), Mapping) else {}
        flags = {
            key: value
            for agent_info in info.values()
            if isinstance(agent_info, Mapping)
            for key, value in agent_info.items()
        }
        return Step(
            Observation("") if over else self._build_observation(feedback),
            reward * settings.reward_scale,
            terminated=over and not truncated,
            truncated=truncated,
            agent_rewards={role: agent_info * settings.reward_scale for role, agent_info in by_role.items()},
            success=settings.is_success(self.total_reward, flags) if over or truncated else None,
            info={"measures": {"mistakes": self.invalid_actions, "earned": self.total_reward}},
        )

    def _team_reward(self, by_role: Mapping[str, float]) -> float:
        if self.settings.team_reward in ("mean", "sum"):
            total = sum(by_role.values())
            return total / max(1, len(by_role)) if self.settings.team_reward == "mean" else total
        return by_role.get(self.settings.team_reward, 0.0)

    def _update_options(self) -> None:
        """Update the legal options of the agents in turn."""
        self._options = {}
        for agent in self.game.acting_agents:
            observation, info = self.game.observe(agent)
            masked = isinstance(observation, dict) and "action_mask" in observation
            mask = observation["action_mask"] if masked else info.get("action_mask")
            self._options[agent] = self._action_spaces[agent].allowed_actions(mask)

    def _build_observation(self, feedback: str = "") -> Observation:
        views, options = dict[str, str](), dict[str, tuple[str, ...]]()
        for agent in self._own_agents():
            role = self._role_of(agent)
            options[role] = self._options[agent]
            action_list = f"Actions: {', '.join(options[role])}" if self.settings.show_actions else ""
            views[role] = "\n".join(part for part in (self._view(agent), action_list) if part)
        board = strip_colors(str(self.env.render())) if self.settings.rendering == "ansi" else ""
        text = "\n".join(part for part in (feedback, board) if part)
        return Observation(text, views, tuple(options), options)

    def _view(self, agent: str) -> str:
        observation, _ = self.game.observe(agent)
        if self.render:
            return self.render(observation, self.env, agent)
        if self.settings.rendering == "ansi":
            return f"You are {agent}."
        if isinstance(observation, dict) and "action_mask" in observation:
            parts = {name: part for name, part in observation.items() if name != "action_mask"}
            observation = next(iter(parts.values())) if len(parts) == 1 else parts
        return format_value(observation, self.settings.observation_names, self.settings.digits)

    def _roles_in_turn(self) -> list[str]:
        return [self._role_of(agent) for agent in self._own_agents()]

    def _own_agents(self) -> list[str]:
        """Return the game agents in turn that belong to a role."""
        return [agent for agent in self.game.acting_agents if self._is_own_agent(agent)]

    def _has_own_agents(self) -> bool:
        """Return True if a role's agent is still in the game."""
        return any(map(self._is_own_agent, self.game.active_agents))

    def _is_own_agent(self, agent: str) -> bool:
        return agent in self._roles_by_agent or not self.settings.random_others

    def _role_of(self, agent: str) -> str:
        return self._roles_by_agent.get(agent, agent)
