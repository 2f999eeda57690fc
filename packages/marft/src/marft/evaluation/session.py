"""Evaluation session: several checkpoints and the untuned base on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.agents.environment import Split
from marft.agents.game import Attempt
from marft.agents.organizations.turns import Turns
from marft.common.types import Episode, Task
from marft.common.version import __version__
from marft.config.consulting import without_helpers
from marft.config.run import RunSettings
from marft.envs.tasks import digest_of, tasks_of
from marft.evaluation.definitions import Definitions, changes_of, definitions_of, in_short
from marft.evaluation.evaluate import Advance, Evaluation, Mode, attempts_at, name_of, shuffle, summed, team_in
from marft.evaluation.keeping import Place, alone, key_of, played
from marft.evaluation.scenarios import Scenarios
from marft.models.known import files_of, known, remember
from marft.rollout.playing import Rollouts
from marft.runs.checkpoints import Checkpoints, load_policies, verify
from marft.runs.code import digests_of_code
from marft.runs.folder import RunFolder
from marft.runs.stated import STATE, told_at

if TYPE_CHECKING:
    from marft.rollout.rollouts import LocalRollouts
    from marft.rollout.workers.rollouts import WorkerRollouts

BASE = "base"
PLAYS = {  # keys of a recipe that determine the episodes
    "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "engine", "seed",
}  # fmt: skip
LIMITS = {"max_live_episodes", "max_steps", "timeout_seconds"}  # keys of its rollout that determine the episodes


@dataclass(frozen=True, slots=True)
class Keeping:
    """Storage of evaluations.

    Args:
        folder: folder of evaluations.
        again: play again even if an evaluation is saved.
    """

    folder: Path
    again: bool = False


def evaluate_checkpoints(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoints: Sequence[str],
    modes: Sequence[Mode],
    tasks: int,
    shuffled_too: bool,
    advance: Advance,
    note: Callable[[str], None] = lambda _: None,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
    *,
    attempts: int = 1,
    keeping: Keeping | None = None,
    scenarios: Scenarios | None = None,
    reorganized: Mapping[str, Any] = {},
) -> list[Evaluation]:
    """Evaluate each checkpoint once in each mode.

    If all evaluations are saved and the model files are unchanged, no model is loaded and nothing is written.

    Args:
        checkpoints: ``base``, ``last``, ``best`` or names such as ``step_000050``; several names of one checkpoint
            count once.
        shuffled_too: evaluate again with messages of other tasks.
        note: receives messages about checkpoints with several names, and about damaged saved files.
        check: receives the digests of the models before play; its exceptions propagate.
        attempts: number of attempts at each task.
        keeping: storage of evaluations; None plays everything and saves nothing.
        scenarios: replaces modes, tasks and attempts.
        reorganized: differences between the evaluated team and the trained team, recorded in the evaluations.

    Raises:
        ValueError: a checkpoint is missing or damaged; the test split is empty; tasks differ from the scenarios.
        ValueError: messages cannot be shuffled, because the team is a program or passes no messages.
        ValueError: another process evaluates into the same folder; episodes cannot be saved there.
    """
    if shuffled_too and run.team.own_words:
        raise ValueError("messages cannot be shuffled: the team is a program, which passes them on itself")
    if shuffled_too and isinstance(run.team, Turns) and (run.team.sees, run.team.order) == ("nothing", "together"):
        raise ValueError(
            "messages cannot be shuffled: the team passes none on (team.sees = 'nothing'); what agents say reaches "
            "others through the environment, if at all"
        )
    if scenarios is not None:
        run, modes, attempts = _under(run, scenarios.seed), scenarios.modes, scenarios.attempts
    paths = checkpoints_named(run, folder, checkpoints, note)
    chosen = tasks_asked(run, tasks, scenarios)
    asked = [(name, mode) for name in paths for mode in modes]
    advance(len(asked) * (1 + shuffled_too) * len(chosen) * attempts)
    table = _Table(run, {}, paths, chosen, attempts, keeping, scenarios, advance, note, reorganized)
    files = files_of(run)
    digests = known(run, files)
    results = table.all_kept(digests, asked, shuffled_too) if digests else None
    if results is not None and digests:
        check(digests)
    else:
        with alone(keeping.folder if keeping else None) as cannot_keep, opened(run) as rollouts:
            digests = rollouts.models.digests()
            remember(run, files, digests)
            check(digests)
            results = table.all_kept(digests, asked, shuffled_too, definitions_of(rollouts.team))
            if results is None and cannot_keep:
                raise ValueError(cannot_keep)
            results = results or replace(table, models=digests).found(rollouts, asked, shuffled_too)
    if table.kept:
        note(f"{len(table.kept)} of {len(results)} evaluations were kept from before; --again plays them anew")
    return results


def opened(run: RunSettings) -> LocalRollouts | WorkerRollouts:
    """Open the rollouts of a run without helpers; imports PyTorch."""
    from marft.rollout.rollouts import open_rollouts

    return open_rollouts(without_helpers(run))


def tasks_asked(run: RunSettings, tasks: int, scenarios: Scenarios | None) -> list[Task]:
    """Return the first held-out tasks, or those of the scenarios.

    Raises:
        ValueError: the split is empty, or its tasks differ from those of the scenarios.
    """
    return [*tasks_of(run.environment, "test")[:tasks]] if scenarios is None else scenarios.tasks(run)


Found = tuple[Evaluation, list[Episode]]


@dataclass(frozen=True, slots=True)
class _Table:
    """Shared state for the evaluations in a session."""

    run: RunSettings
    models: Mapping[str, str]  # model digests
    paths: Mapping[str, Path | None]  # paths of checkpoints; None is the base
    tasks: Sequence[Task]
    attempts: int
    keeping: Keeping | None
    scenarios: Scenarios | None
    advance: Advance
    note: Callable[[str], None]
    reorganized: Mapping[str, Any]
    kept: list[str] = field(default_factory=list)  # names of the evaluations that were read instead of played

    def all_kept(
        self, models: Mapping[str, str], asked: Sequence[tuple[str, Mode]], shuffled_too: bool,
        tools: Definitions | None = None,
    ) -> list[Evaluation] | None:  # fmt: skip
        """Return every evaluation from storage.

        The result is None if any evaluation is missing, is damaged or was played with other tools.
        """
        silent = replace(self, models=models, note=lambda _: None, advance=lambda _=None: None, kept=[])
        results = []
        for name, mode in asked:
            own = silent.read(name, mode, None, tools)
            others = silent.read(name, mode, shuffle(own[1], self.run.seed), tools) if own and shuffled_too else None
            if own is None or (shuffled_too and others is None):
                return None
            results += [own[0], *([others[0]] if others else [])]
        for _ in range(len(results) * len(self.tasks) * self.attempts):
            self.advance()
        self.kept.extend(silent.kept)
        return results

    def found(
        self, rollouts: LocalRollouts | WorkerRollouts, asked: Sequence[tuple[str, Mode]], shuffled_too: bool
    ) -> list[Evaluation]:
        """Return every evaluation, playing unsaved ones."""
        results, in_place = list[Evaluation](), None
        tools = definitions_of(rollouts.team)
        for name, mode in asked:
            if name != in_place:
                put_in_place(rollouts, self.paths[name], self.reorganized.get("told"))
                in_place = name
            own, episodes = self.read(name, mode, None, tools) or self.play(rollouts, name, mode, None)
            results.append(own)
            if shuffled_too:
                donors = shuffle(episodes, self.run.seed)
                results.append((self.read(name, mode, donors, tools) or self.play(rollouts, name, mode, donors))[0])
        return results

    def read(
        self, name: str, mode: Mode, donors: Sequence[Episode] | None, tools: Definitions | None = None
    ) -> Found | None:
        """Return a saved evaluation with its episodes. The result is None if the evaluation has to be played.

        Args:
            donors: episodes with the messages that agents see instead of their own team's.
            tools: current tool definitions; evaluations with other definitions are played again.
        """
        if self.keeping is None or self.keeping.again:
            return None
        place = self._place(name, mode, donors is not None)
        episodes = place.read(self._attempts(mode, donors))
        if episodes is None:
            return None
        told = place.told().get("tools")
        changed = changes_of(told, tools) if told is not None and tools is not None else []
        if changed:
            self.note(f"{place.name} was played with other tools, and is played anew: {in_short(changed)}")
            return None
        self.kept.append(f"{name}-{mode}")
        for _ in episodes:
            self.advance()
        return replace(self._summed(name, mode, donors, episodes), tools=told), episodes

    def play(self, rollouts: Rollouts, name: str, mode: Mode, donors: Sequence[Episode] | None) -> Found:
        """Play an evaluation with the loaded weights and save the result."""
        place = self._place(name, mode, donors is not None) if self.keeping else None
        if place and self.keeping:
            place.begin(self.keeping.again)
        team, size = team_in(mode, rollouts.team), self.run.evaluation.kept_every
        episodes = played(rollouts, self._attempts(mode, donors), team, size, place, self.advance)
        found = replace(self._summed(name, mode, donors, episodes), tools=definitions_of(rollouts.team))
        if place:
            place.finish(episodes, found.as_json())
        return found, episodes

    @property
    def _split(self) -> Split:
        return self.scenarios.split if self.scenarios else "test"

    def _attempts(self, mode: Mode, donors: Sequence[Episode] | None) -> list[Attempt]:
        return attempts_at(self.tasks, self.attempts, mode, self._split, donors)

    def _summed(
        self, name: str, mode: Mode, donors: Sequence[Episode] | None, episodes: Sequence[Episode]
    ) -> Evaluation:
        roles, shuffled = [agent.role for agent in self.run.agents], donors is not None
        found = summed(roles, name, mode, episodes, split=self._split, shuffled=shuffled, attempts=self.attempts)
        about = {"name": self.scenarios.name, "digest": self.scenarios.digest} if self.scenarios else {}
        key = self._key(name, mode, shuffled)
        return replace(found, key=key, scenarios=about, reorganized=self.reorganized)

    def _place(self, name: str, mode: Mode, shuffled: bool) -> Place:
        assert self.keeping is not None
        scenarios, team = self.scenarios.name if self.scenarios else "", self.reorganized.get("name", "")
        called = name_of(name, mode, shuffled, scenarios, team)
        return Place(self.keeping.folder, called, self._key(name, mode, shuffled), self.note)

    def _key(self, name: str, mode: Mode, shuffled: bool) -> str:
        played = [mode, self._split, self.attempts, shuffled]
        return played_key(self.run, self.models, self.paths[name], self.tasks, played)


def played_key(
    run: RunSettings, models: Mapping[str, str], path: Path | None, tasks: Sequence[Task], how: object
) -> str:
    """Return a digest over the inputs that determine the episodes.

    Args:
        models: digests of the models.
        path: folder of the checkpoint; None for the base.
        how: playing conditions, as JSON values.
    """
    table: dict[str, Any] = {
        "version": __version__,
        "models": models,
        "weights": (path / STATE).read_text(encoding="utf-8") if path else BASE,  # digests of every file
        "recipe": run.model_dump(mode="json", include=PLAYS),
        "limits": run.rollout.model_dump(mode="json", include=LIMITS),
        "together": run.evaluation.kept_every,
        "code": digests_of_code(run),
        "tasks": digest_of(tasks),
        "played": how,
    }
    return key_of(table)


def put_in_place(
    rollouts: LocalRollouts | WorkerRollouts, path: Path | None, told: Mapping[str, str] | None = None
) -> None:
    """Load the weights and the learned prompts of a checkpoint.

    The base has its initial weights and the prompts of the recipe.

    Args:
        path: folder of the checkpoint; None for the base.
        told: for a reorganized team, the trained role whose prompt each role gets; None gives each role its own.
    """
    trained = rollouts.run.trained_policies
    for policy in trained:
        rollouts.models.reset_policy(policy)
    if path is not None:
        load_policies(path, rollouts.models, dict.fromkeys(trained))
    versions = {version.role: version for version in told_at(path)}
    told = {role: role for role in versions} if told is None else told
    rollouts.instruct([replace(versions[like], role=role) for role, like in told.items() if like in versions])


def checkpoints_named(
    run: RunSettings, folder: RunFolder | None, checkpoints: Sequence[str], note: Callable[[str], None]
) -> dict[str, Path | None]:
    """Return checkpoint paths by canonical name. The path of the base is None.

    Raises:
        ValueError: a checkpoint is missing or damaged.
    """
    paths: dict[str, Path | None] = {}
    asked: dict[str, list[str]] = {}
    for name in dict.fromkeys(checkpoints):
        path = find_checkpoint(run, folder, name)
        paths[path.name if path else BASE] = path
        asked.setdefault(path.name if path else BASE, []).append(name)
    for name, names in asked.items():
        if len(names) > 1:
            note(f"{' and '.join(names)} are one checkpoint, {name}: it is evaluated once")
    return paths


def _under(run: RunSettings, seed: int) -> RunSettings:
    """Return the run with another seed."""
    return run if run.seed == seed else run.model_copy(update={"seed": seed})


def find_checkpoint(run: RunSettings, folder: RunFolder | None, name: str) -> Path | None:
    """Return the folder of a checkpoint; None for the untuned base.

    Raises:
        ValueError: the checkpoint is missing or damaged.
    """
    if name == BASE:
        return None
    if folder is None:
        raise ValueError(f"checkpoint {name!r}: a recipe has none; give the folder of a run")
    path = Checkpoints(folder, run.checkpoints).find(name)
    verify(path)
    return path
