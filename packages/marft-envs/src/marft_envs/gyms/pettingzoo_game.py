"""Plugin ``pettingzoo``: a team, or several sides, in a PettingZoo game, with one game agent per role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import text_said
from marft.common.seeds import derive_seed
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.plugins import import_path
from marft.config.settings import did_you_mean
from marft_envs.gyms.acts import Acts, acts_of, chosen
from marft_envs.gyms.making import ansi_of, pettingzoo_env
from marft_envs.gyms.seeded import Seeded
from marft_envs.gyms.tables import Table
from marft_envs.gyms.worded import plain, worded

NO_ACTION = "{} gave no action that is possible, so nothing happened."


class PettingZoo(Seeded):
    """Any PettingZoo environment with enumerable actions, turn-based (AEC) or simultaneous (parallel).

    Each role plays one of the game's agents. It sees that agent's observations and acts in its turns.
    """

    seats: dict[str, str] = {}  # game agent by role; the default is the agent with the role's name
    others: bool = False  # let unassigned game agents act at random; if false, they are an error
    # team's reward: "mean" or "sum" of the rewards of the roles' agents, or the role whose reward counts
    team_reward: str = "mean"
    # text form of observations; words: each agent's observation; ansi: the game's terminal rendering, for all; or the
    # import path of a function from an observation, the environment and the agent's name to text
    rendering: str = "words"

    @model_validator(mode="after")
    def _others_have_names(self) -> Self:
        if self.others and not self.seats:
            raise PydanticCustomError("seats", "name whom the roles play, so that it is known who the others are")
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield errors for unknown roles, and for game agents with two roles."""
        for role in self.seats:
            if role not in roles:
                yield f"environment.seats: no agent is called {role!r}{did_you_mean(role, roles)}"
        if self.team_reward not in ("mean", "sum", *roles):
            yield f"environment.team_reward: must be mean, sum or a role{did_you_mean(self.team_reward, roles)}"
        taken = [self.seats.get(role, role) for role in roles]
        for seat in {seat for seat in taken if taken.count(seat) > 1}:
            yield f"environment.seats: two roles play {seat!r}; give each an agent of its own"

    def first_shown(self, seed: int, kwargs: Mapping[str, Any]) -> str:
        """Return a game's first observations, for every agent."""
        session = PettingZooSession(self, seed, kwargs, 0)
        try:
            return session.begin().whole
        finally:
            session.end()

    def start(self, task: Task, seed: int) -> PettingZooSession:
        """Create a session for a game."""
        return PettingZooSession(self, task.data["seed"], task.data["kwargs"], seed)


class PettingZooSession:
    """One game.

    Args:
        settings: the environment.
        seed: seed of the game.
        kwargs: arguments for creating the game.
        drawn: seed for the agents that act at random.
    """

    def __init__(self, settings: PettingZoo, seed: int, kwargs: Mapping[str, Any], drawn: int) -> None:
        self.settings, self.seed, self.kwargs = settings, seed, dict(kwargs)
        self.random = Random(derive_seed(drawn, "others"))
        self.env: Any = None
        self.render: Callable[[Any, Any, str], str] | None = None
        self.table: Table
        self.steps = self.mistakes = 0
        self.earned = 0.0
        self._role = {agent: role for role, agent in settings.seats.items()}
        self._acts: dict[str, Acts] = {}
        self._options: dict[str, tuple[str, ...]] = {}  # legal options, by agent in turn

    async def reset(self) -> Observation:
        """Create the game and return the first observation."""
        return self.begin()

    async def step(self, actions: JointAction) -> Step:
        """Play one round with each acting role's text."""
        return self.take({role: text_said(action) for role in self._asked() if (action := actions.of(role))})

    async def close(self) -> None:
        """Close the game."""
        self.end()

    def begin(self) -> Observation:
        """Create the game and return the first observation.

        Raises:
            ValueError: the game cannot be created, has no ANSI rendering, or lacks an assigned agent.
        """
        settings = self.settings
        if settings.rendering not in ("words", "ansi"):
            self.render = import_path(settings.rendering)
        more = {"render_mode": "ansi"} if settings.rendering == "ansi" else {}
        self.env = pettingzoo_env(settings.game, {**more, **self.kwargs})
        if settings.rendering == "ansi" and not ansi_of(self.env):
            raise ValueError(f"environment.rendering: {settings.game} shows itself in no terminal; take words")
        agents = list(self.env.possible_agents)
        for role, agent in settings.seats.items():
            if agent not in agents:
                raise ValueError(f"environment.seats: {role} plays {agent!r}{did_you_mean(agent, agents)}")
        self._acts = {agent: acts_of(self.env.action_space(agent), settings.action_names) for agent in agents}
        self.table = Table(self.env)
        self.table.begin(self.seed)
        self._look()
        self._others_act()
        return self._observed()

    def end(self) -> None:
        """Close the game."""
        if self.env is not None:
            self.env.close()

    def take(self, texts: Mapping[str, str]) -> Step:
        """Play one round; if any role in turn names no legal action, the game does not change.

        Args:
            texts: text by role.
        """
        self.steps += 1
        cut = self.steps >= self.settings.max_steps
        named = {agent: chosen(texts.get(self._role_of(agent), ""), self._options[agent]) for agent in self._ours()}
        silent = [self._role_of(agent) for agent, act in named.items() if not act]
        if silent:
            self.mistakes += len(silent)
            return self._stepped({}, cut, " ".join(NO_ACTION.format(role) for role in silent))
        chance = {agent: self.random.choice(self._options[agent]) for agent in self._options if agent not in named}
        earned = self._acted({**named, **chance})
        for agent, more in self._others_act().items():
            earned[agent] = earned.get(agent, 0.0) + more
        return self._stepped(earned, cut)

    def _acted(self, named: Mapping[str, str]) -> dict[str, float]:
        earned = self.table.act({agent: self._acts[agent].named[act] for agent, act in named.items()})
        self._look()
        return earned

    def _others_act(self) -> dict[str, float]:
        """Play unassigned agents at random until a role's turn, or until no role's agent remains."""
        total: dict[str, float] = {}
        while self._playing() and not self._ours():
            moves = {agent: self.random.choice(options) for agent, options in self._options.items()}
            for agent, reward in self._acted(moves).items():
                total[agent] = total.get(agent, 0.0) + reward
        return total

    def _stepped(self, earned: Mapping[str, float], cut: bool, told: str = "") -> Step:
        settings = self.settings
        over = not self._playing()
        by_role = {self._role_of(agent): reward for agent, reward in earned.items() if self._is_ours(agent)}
        reward = self._team(by_role)
        self.earned += reward
        truncated = (over and self.table.truncated) or (cut and not over)
        info = self.env.infos if isinstance(getattr(self.env, "infos", None), Mapping) else {}
        flags = {key: value for each in info.values() if isinstance(each, Mapping) for key, value in each.items()}
        return Step(
            Observation("") if over else self._observed(told), reward * settings.scale,
            terminated=over and not truncated, truncated=truncated,
            agent_rewards={role: each * settings.scale for role, each in by_role.items()},
            success=settings.succeeded(self.earned, flags) if over or truncated else None,
            info={"measures": {"mistakes": self.mistakes, "earned": self.earned}},
        )  # fmt: skip

    def _team(self, by_role: Mapping[str, float]) -> float:
        if self.settings.team_reward in ("mean", "sum"):
            total = sum(by_role.values())
            return total / max(1, len(by_role)) if self.settings.team_reward == "mean" else total
        return by_role.get(self.settings.team_reward, 0.0)

    def _look(self) -> None:
        """Update the legal options of the agents in turn."""
        self._options = {}
        for agent in self.table.acting:
            observation, info = self.table.seen_by(agent)
            masked = isinstance(observation, dict) and "action_mask" in observation
            mask = observation["action_mask"] if masked else info.get("action_mask")
            self._options[agent] = self._acts[agent].allowed(mask)

    def _observed(self, told: str = "") -> Observation:
        views, options = dict[str, str](), dict[str, tuple[str, ...]]()
        for agent in self._ours():
            role = self._role_of(agent)
            options[role] = self._options[agent]
            listed = f"Actions: {', '.join(options[role])}" if self.settings.tells_actions else ""
            views[role] = "\n".join(part for part in (self._view(agent), listed) if part)
        board = plain(str(self.env.render())) if self.settings.rendering == "ansi" else ""
        text = "\n".join(part for part in (told, board) if part)
        return Observation(text, views, tuple(options), options)

    def _view(self, agent: str) -> str:
        observation, _ = self.table.seen_by(agent)
        if self.render:
            return self.render(observation, self.env, agent)
        if self.settings.rendering == "ansi":
            return f"You are {agent}."
        if isinstance(observation, dict) and "action_mask" in observation:
            rest = {name: part for name, part in observation.items() if name != "action_mask"}
            observation = next(iter(rest.values())) if len(rest) == 1 else rest
        return worded(observation, self.settings.observation_names, self.settings.digits)

    def _asked(self) -> list[str]:
        return [self._role_of(agent) for agent in self._ours()]

    def _ours(self) -> list[str]:
        """Return the game agents in turn that belong to a role."""
        return [agent for agent in self.table.acting if self._is_ours(agent)]

    def _playing(self) -> bool:
        """Return True if a role's agent is still in the game."""
        return any(map(self._is_ours, self.table.alive))

    def _is_ours(self, agent: str) -> bool:
        return agent in self._role or not self.settings.others

    def _role_of(self, agent: str) -> str:
        return self._role.get(agent, agent)
