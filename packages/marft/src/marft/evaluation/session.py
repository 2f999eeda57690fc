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
from marft.config.helpers import without_helpers
from marft.config.run import RunSettings
from marft.envs.tasks import digest_tasks, read_tasks
from marft.evaluation.evaluate import (
    Evaluation,
    Mode,
    ProgressCallback,
    aggregate_episodes,
    build_attempts,
    evaluation_name,
    shuffle_episodes,
    team_for_mode,
)
from marft.evaluation.scenarios import ScenarioSet
from marft.evaluation.store import EvaluationStore, digest_inputs, lock_folder, play_attempts
from marft.evaluation.tool_definitions import ToolDefinitions, collect_definitions, diff_definitions, summarize_changes
from marft.models.digest_cache import list_model_files, load_digests, save_digests
from marft.rollout.runner import RolloutRunner
from marft.runs.checkpoints import CheckpointManager, load_policies, verify
from marft.runs.run_folder import RunFolder
from marft.runs.state_schema import STATE_FILE, read_learned_prompts
from marft.runs.user_code import hash_user_code

if TYPE_CHECKING:
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft.rollout.workers.worker_runner import WorkerRolloutRunner

BASE = "base"
EPISODE_KEYS = {  # keys of a recipe that determine the episodes
    "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "engine", "seed",
}  # fmt: skip
# keys of its rollout that determine the episodes
ROLLOUT_KEYS = {"max_concurrent_episodes", "max_steps", "timeout_seconds"}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Storage of evaluations.

    Args:
        folder: folder of evaluations.
        overwrite: play again even if an evaluation is saved.
    """

    folder: Path
    overwrite: bool = False


def evaluate_checkpoints(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoints: Sequence[str],
    modes: Sequence[Mode],
    tasks: int,
    shuffled_too: bool,
    advance: ProgressCallback,
    note: Callable[[str], None] = lambda _: None,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
    *,
    attempts: int = 1,
    storage: StorageOptions | None = None,
    scenarios: ScenarioSet | None = None,
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
        storage: storage of evaluations; None plays everything and saves nothing.
        scenarios: replaces modes, tasks and attempts.
        reorganized: differences between the evaluated team and the trained team, recorded in the evaluations.

    Raises:
        ValueError: a checkpoint is missing or damaged; the test split is empty; tasks differ from the scenarios.
        ValueError: messages cannot be shuffled, because the team is a program or passes no messages.
        ValueError: another process evaluates into the same folder; episodes cannot be saved there.
    """
    if shuffled_too and run.team.writes_prompts:
        raise ValueError("messages cannot be shuffled: the team is a program, which passes them on itself")
    if shuffled_too and isinstance(run.team, Turns) and (run.team.visible, run.team.order) == ("none", "simultaneous"):
        raise ValueError(
            "messages cannot be shuffled: the team passes none on (team.visible = 'none'); what agents say reaches "
            "others through the environment, if at all"
        )
    if scenarios is not None:
        run, modes, attempts = _with_seed(run, scenarios.seed), scenarios.modes, scenarios.attempts
    paths = resolve_checkpoints(run, folder, checkpoints, note)
    selected = select_tasks(run, tasks, scenarios)
    requests = [(name, mode) for name in paths for mode in modes]
    advance(len(requests) * (1 + shuffled_too) * len(selected) * attempts)
    session = _EvaluationSession(run, {}, paths, selected, attempts, storage, scenarios, advance, note, reorganized)
    files = list_model_files(run)
    digests = load_digests(run, files)
    results = session.read_all(digests, requests, shuffled_too) if digests else None
    if results is not None and digests:
        check(digests)
    else:
        with lock_folder(storage.folder if storage else None) as storage_problem, open_runner(run) as rollouts:
            digests = rollouts.models.compute_digests()
            save_digests(run, files, digests)
            check(digests)
            results = session.read_all(digests, requests, shuffled_too, collect_definitions(rollouts.team))
            if results is None and storage_problem:
                raise ValueError(storage_problem)
            results = results or replace(session, models=digests).run_all(rollouts, requests, shuffled_too)
    if session.reused:
        note(f"{len(session.reused)} of {len(results)} evaluations were kept from before; --rerun plays them anew")
    return results


def open_runner(run: RunSettings) -> LocalRolloutRunner | WorkerRolloutRunner:
    """Open the rollouts of a run without helpers; imports PyTorch."""
    from marft.rollout.local_runner import open_rollouts

    return open_rollouts(without_helpers(run))


def select_tasks(run: RunSettings, tasks: int, scenarios: ScenarioSet | None) -> list[Task]:
    """Return the first held-out tasks, or those of the scenarios.

    Raises:
        ValueError: the split is empty, or its tasks differ from those of the scenarios.
    """
    return [*read_tasks(run.environment, "test")[:tasks]] if scenarios is None else scenarios.load_tasks(run)


EvaluationResult = tuple[Evaluation, list[Episode]]


@dataclass(frozen=True, slots=True)
class _EvaluationSession:
    """Shared state for the evaluations in a session."""

    run: RunSettings
    models: Mapping[str, str]  # model digests
    paths: Mapping[str, Path | None]  # paths of checkpoints; None is the base
    tasks: Sequence[Task]
    attempts: int
    storage: StorageOptions | None
    scenarios: ScenarioSet | None
    advance: ProgressCallback
    note: Callable[[str], None]
    reorganized: Mapping[str, Any]
    reused: list[str] = field(default_factory=list)  # names of the evaluations that were read instead of played

    def read_all(
        self,
        models: Mapping[str, str],
        requests: Sequence[tuple[str, Mode]],
        shuffled_too: bool,
        tools: ToolDefinitions | None = None,
    ) -> list[Evaluation] | None:
        """Return every evaluation from storage.

        The result is None if any evaluation is missing, is damaged or was played with other tools.
        """
        silent = replace(self, models=models, note=lambda _: None, advance=lambda _=None: None, reused=[])
        results = []
        for name, mode in requests:
            result = silent.read_saved(name, mode, None, tools)
            shuffled_result = (
                silent.read_saved(name, mode, shuffle_episodes(result[1], self.run.seed), tools)
                if result and shuffled_too
                else None
            )
            if result is None or (shuffled_too and shuffled_result is None):
                return None
            results += [result[0], *([shuffled_result[0]] if shuffled_result else [])]
        for _ in range(len(results) * len(self.tasks) * self.attempts):
            self.advance()
        self.reused.extend(silent.reused)
        return results

    def run_all(
        self,
        rollouts: LocalRolloutRunner | WorkerRolloutRunner,
        requests: Sequence[tuple[str, Mode]],
        shuffled_too: bool,
    ) -> list[Evaluation]:
        """Return every evaluation, playing unsaved ones."""
        results, loaded = list[Evaluation](), None
        tools = collect_definitions(rollouts.team)
        for name, mode in requests:
            if name != loaded:
                load_checkpoint(rollouts, self.paths[name], self.reorganized.get("told"))
                loaded = name
            evaluation, episodes = self.read_saved(name, mode, None, tools) or self.play(rollouts, name, mode, None)
            results.append(evaluation)
            if shuffled_too:
                message_episodes = shuffle_episodes(episodes, self.run.seed)
                results.append(
                    (
                        self.read_saved(name, mode, message_episodes, tools)
                        or self.play(rollouts, name, mode, message_episodes)
                    )[0]
                )
        return results

    def read_saved(
        self, name: str, mode: Mode, message_episodes: Sequence[Episode] | None, tools: ToolDefinitions | None = None
    ) -> EvaluationResult | None:
        """Return a saved evaluation with its episodes. The result is None if the evaluation has to be played.

        Args:
            message_episodes: episodes with the messages that agents see instead of their own team's.
            tools: current tool definitions; evaluations with other definitions are played again.
        """
        if self.storage is None or self.storage.overwrite:
            return None
        store = self._get_store(name, mode, message_episodes is not None)
        episodes = store.read_episodes(self._build_attempts(mode, message_episodes))
        if episodes is None:
            return None
        saved_tools = store.read_result().get("tools")
        changes = diff_definitions(saved_tools, tools) if saved_tools is not None and tools is not None else []
        if changes:
            self.note(f"{store.name} was played with other tools, and is played anew: {summarize_changes(changes)}")
            return None
        self.reused.append(f"{name}-{mode}")
        for _ in episodes:
            self.advance()
        return replace(self._aggregate(name, mode, message_episodes, episodes), tools=saved_tools), episodes

    def play(
        self, rollouts: RolloutRunner, name: str, mode: Mode, message_episodes: Sequence[Episode] | None
    ) -> EvaluationResult:
        """Play an evaluation with the loaded weights and save the result."""
        store = self._get_store(name, mode, message_episodes is not None) if self.storage else None
        if store and self.storage:
            store.prepare(self.storage.overwrite)
        team, size = team_for_mode(mode, rollouts.team), self.run.evaluation.save_every
        episodes = play_attempts(
            rollouts, self._build_attempts(mode, message_episodes), team, size, store, self.advance
        )
        evaluation = replace(
            self._aggregate(name, mode, message_episodes, episodes), tools=collect_definitions(rollouts.team)
        )
        if store:
            store.finish(episodes, evaluation.as_json())
        return evaluation, episodes

    @property
    def _split(self) -> Split:
        return self.scenarios.split if self.scenarios else "test"

    def _build_attempts(self, mode: Mode, message_episodes: Sequence[Episode] | None) -> list[Attempt]:
        return build_attempts(self.tasks, self.attempts, mode, self._split, message_episodes)

    def _aggregate(
        self, name: str, mode: Mode, message_episodes: Sequence[Episode] | None, episodes: Sequence[Episode]
    ) -> Evaluation:
        roles, shuffled = [agent.role for agent in self.run.agents], message_episodes is not None
        evaluation = aggregate_episodes(
            roles, name, mode, episodes, split=self._split, shuffled=shuffled, attempts=self.attempts
        )
        scenario_info = {"name": self.scenarios.name, "digest": self.scenarios.digest} if self.scenarios else {}
        key = self._compute_key(name, mode, shuffled)
        return replace(evaluation, key=key, scenarios=scenario_info, reorganized=self.reorganized)

    def _get_store(self, name: str, mode: Mode, shuffled: bool) -> EvaluationStore:
        assert self.storage is not None
        scenarios, team = self.scenarios.name if self.scenarios else "", self.reorganized.get("name", "")
        store_name = evaluation_name(name, mode, shuffled, scenarios, team)
        return EvaluationStore(self.storage.folder, store_name, self._compute_key(name, mode, shuffled), self.note)

    def _compute_key(self, name: str, mode: Mode, shuffled: bool) -> str:
        conditions = [mode, self._split, self.attempts, shuffled]
        return episodes_key(self.run, self.models, self.paths[name], self.tasks, conditions)


def episodes_key(
    run: RunSettings, models: Mapping[str, str], path: Path | None, tasks: Sequence[Task], conditions: object
) -> str:
    """Return a digest over the inputs that determine the episodes.

    Args:
        models: digests of the models.
        path: folder of the checkpoint; None for the base.
        conditions: playing conditions, as JSON values.
    """
    table: dict[str, Any] = {
        "version": __version__,
        "models": models,
        "weights": (path / STATE_FILE).read_text(encoding="utf-8") if path else BASE,  # digests of every file
        "recipe": run.model_dump(mode="json", include=EPISODE_KEYS),
        "limits": run.rollout.model_dump(mode="json", include=ROLLOUT_KEYS),
        "save_every": run.evaluation.save_every,
        "code": hash_user_code(run),
        "tasks": digest_tasks(tasks),
        "played": conditions,
    }
    return digest_inputs(table)


def load_checkpoint(
    rollouts: LocalRolloutRunner | WorkerRolloutRunner, path: Path | None, prompt_roles: Mapping[str, str] | None = None
) -> None:
    """Load the weights and the learned prompts of a checkpoint.

    The base has its initial weights and the prompts of the recipe.

    Args:
        path: folder of the checkpoint; None for the base.
        prompt_roles: for a reorganized team, the trained role whose prompt each role gets; None gives each role its
            own.
    """
    trained = rollouts.run.trained_policies
    for policy in trained:
        rollouts.models.reset_policy(policy)
    if path is not None:
        load_policies(path, rollouts.models, dict.fromkeys(trained))
    versions = {version.role: version for version in read_learned_prompts(path)}
    prompt_roles = {role: role for role in versions} if prompt_roles is None else prompt_roles
    rollouts.instruct(
        [
            replace(versions[source_role], role=role)
            for role, source_role in prompt_roles.items()
            if source_role in versions
        ]
    )


def resolve_checkpoints(
    run: RunSettings, folder: RunFolder | None, checkpoints: Sequence[str], note: Callable[[str], None]
) -> dict[str, Path | None]:
    """Return checkpoint paths by canonical name. The path of the base is None.

    Raises:
        ValueError: a checkpoint is missing or damaged.
    """
    paths: dict[str, Path | None] = {}
    names_by_checkpoint: dict[str, list[str]] = {}
    for name in dict.fromkeys(checkpoints):
        path = find_checkpoint(run, folder, name)
        paths[path.name if path else BASE] = path
        names_by_checkpoint.setdefault(path.name if path else BASE, []).append(name)
    for name, names in names_by_checkpoint.items():
        if len(names) > 1:
            note(f"{' and '.join(names)} are one checkpoint, {name}: it is evaluated once")
    return paths


def _with_seed(run: RunSettings, seed: int) -> RunSettings:
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
    path = CheckpointManager(folder, run.checkpoints).find(name)
    verify(path)
    return path
