"""vLLM in an environment of its own samples what the in-process engine would: ``make test-vllm``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
pytest.importorskip("openai", reason="needs openai: pip install 'marft[remote]'")

from openai import OpenAI

import marft_serve
from marft.agents.game import Attempt
from marft.agents.play import play_all
from marft.common.errors import RunError
from marft.common.token_data import Grammar
from marft.common.types import ActionKey, Choice, Completion, Episode, Option, Prompt, SamplingParams, VersionRange
from marft.config import load_recipe, parse_recipe
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.inference.remote import HumanSampler
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import load_policies
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_serve.gateway.client import Client
from tests.chat_families import FAMILIES
from tests.endpoint import says, serving
from tests.helpers import recipe, settings
from tests.servings import command

PYTHON = os.environ.get("MARFT_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="minutes, and gigabytes: make test-vllm installs vLLM and runs them"),
]
VLLM = ("--engine", f"{{kind = 'vllm', python = '{PYTHON}', engine_args = {{enforce_eager = true}}}}")
CLOSE = 1e-4  # nats a token
PROMPT = Prompt(np.arange(5, 29, dtype=np.int32))
OPTIONS = [Option(np.array(ids, np.int32), len(ids)) for ids in ([7, 8, 2], [7, 9, 2], [11, 2])]


def key(call: int = 0) -> ActionKey:
    return ActionKey("train/0", "t", 0, 0, "actor", call)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRolloutRunner]:
    """One adapter that has learned, and one that is as it began."""
    with LocalRolloutRunner(settings("tiny", tmp_path_factory.mktemp("there"), *VLLM)) as rollouts:
        moved(rollouts)
        rollouts.publish(3)
        yield rollouts


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRolloutRunner]:
    with LocalRolloutRunner(settings("tiny", tmp_path_factory.mktemp("here"))) as rollouts:
        moved(rollouts)
        rollouts.publish(3)
        yield rollouts


def moved(rollouts: LocalRolloutRunner, by: float = 0.02) -> None:
    for weights in rollouts.models.policies["actor"].parameters().values():
        weights.data.add_(by)


def said(rollouts: LocalRolloutRunner, policy: str = "actor", call: int = 0, **sampling: Any) -> Completion:
    how = SamplingParams(**{"max_new_tokens": 12, **sampling})
    return rollouts.wait_for(rollouts.engine.sample(policy, PROMPT, how, key(call)))


def chosen(rollouts: LocalRolloutRunner, temperature: float) -> tuple[Choice, VersionRange]:
    return rollouts.wait_for(
        rollouts.engine.choose("actor", PROMPT, OPTIONS, SamplingParams(temperature=temperature), key())
    )


@pytest.mark.parametrize("policy", ["actor", "reasoner"])
def test_greedy_answers_and_their_log_probs_are_the_same(
    here: LocalRolloutRunner, there: LocalRolloutRunner, policy: str
) -> None:
    one, other = (said(each, policy, temperature=0.0) for each in (here, there))
    assert one.tokens.tolist() == other.tokens.tolist()
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert (one.text, one.finish) == (other.text, other.finish)
    assert other.versions == VersionRange(3, 3)


def test_a_key_draws_the_same_answer_again_and_another_key_another(there: LocalRolloutRunner) -> None:
    first, again, other = (said(there, call=call).tokens.tolist() for call in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_choices_are_as_likely_as_here_and_the_same_one_is_drawn(
    here: LocalRolloutRunner, there: LocalRolloutRunner, temperature: float
) -> None:
    (one, _), (other, versions) = chosen(here, temperature), chosen(there, temperature)
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert one.chosen == other.chosen
    assert versions == VersionRange(3, 3)


def test_texts_that_stop_an_action_and_listeners_are_ours(here: LocalRolloutRunner, there: LocalRolloutRunner) -> None:
    whole = said(here, temperature=0.0)
    stop = whole.text[len(whole.text) // 2 :][:3]
    heard: list[int] = []
    one = said(here, temperature=0.0, stop=(stop,))
    other = said(there, temperature=0.0, stop=(stop,), on_token=heard.append)
    assert other.tokens.tolist() == one.tokens.tolist() == heard
    assert (other.text, other.finish) == (one.text, "stop")


def test_alternatives_are_those_of_here(here: LocalRolloutRunner, there: LocalRolloutRunner) -> None:
    one, other = (said(each, temperature=0.0, max_new_tokens=3, alternatives=2) for each in (here, there))
    assert [[id for id, _ in step] for step in one.alternatives] == [[id for id, _ in s] for s in other.alternatives]


GRAMMARS = [
    Grammar("regex", r"[0-9]{1,3}(\+[0-9]{1,3}){0,2}"),
    Grammar("lark", 'start: "the " /[a-z]{1,9}/ " is " /[0-9]+/'),
    Grammar("json", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_texts_are_held_to_grammars_as_here(
    here: LocalRolloutRunner, there: LocalRolloutRunner, grammar: Grammar
) -> None:
    one, other = (said(each, temperature=0.0, grammar=grammar) for each in (here, there))
    assert (other.text, other.finish, other.forced) == (one.text, one.finish, one.forced)
    assert np.abs(one.log_probs - other.log_probs).max() < CLOSE
    assert one.masks
    assert other.masks
    assert other.masks.mask_indices(len(other.tokens)).tolist() == one.masks.mask_indices(len(one.tokens)).tolist()
    assert other.masks.table == one.masks.table


def test_what_is_published_is_what_samples(here: LocalRolloutRunner, there: LocalRolloutRunner) -> None:
    for each in (here, there):
        moved(each, 0.05)
        each.publish(4)
    one, other = (said(each, temperature=0.0) for each in (here, there))
    assert np.abs(one.log_probs - other.log_probs[: len(one.log_probs)]).max() < CLOSE
    assert other.versions == VersionRange(4, 4)


def test_a_process_that_is_killed_is_started_again_and_asked_again(there: LocalRolloutRunner) -> None:
    task = there.run.environment.tasks("train")[0]  # type: ignore[attr-defined]
    before = [said(there, call=call).tokens.tolist() for call in range(3)]

    def kill(_: int) -> None:
        if not killed:
            killed.extend(servers())
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    said(there, on_token=kill)
    assert [said(there, call=call).tokens.tolist() for call in range(3)] == before
    assert there.usage()["engine_restarts"] == 1
    assert there.play([Attempt(task, "train/1")])[0].status == "terminated"


def servers() -> list[int]:
    """Processes that serve vLLM, without the subreapers above them."""
    found = [(file.parent.name, file.read_bytes()) for file in Path("/proc").glob("[0-9]*/cmdline")]
    return [
        int(pid)
        for pid, words in found
        if words.startswith(PYTHON.encode()) and b"subprocess_engine.vllm_server" in words
    ]


def test_a_training_run_learns_from_what_the_learner_would_have_sampled(tmp_path: Path) -> None:
    """One policy is an adapter, the other has all its weights sent at every step: two processes."""
    run = settings("tiny", tmp_path, *VLLM, "--policies.actor.train", "full", "--training.steps", "4")
    train(run, folder := RunFolder.create(run))
    assert furthest(folder) < CLOSE
    assert {row.get("engine_restarts") for row in folder.read_metrics()} == {0.0}


def test_a_team_that_is_held_to_grammars_is_learned_from_over_the_same_tokens(tmp_path: Path) -> None:
    """Were other tokens allowed for there than here, log-probs over them would be others."""
    number, phrase = r"-?[0-9]{1,4}(\.[0-9]+)?", 'start: /[a-z]+/ (" " /[a-z]+/)* "."'
    run = settings(
        "tiny", tmp_path, *VLLM, "--agents.actor.sampling.regex", number, "--agents.reasoner.sampling.grammar", phrase
    )
    train(run, folder := RunFolder.create(run))
    episodes = played(folder)
    assert {episode.status for episode in episodes} == {"terminated"}
    assert all(action.masks for episode in episodes for action in episode.actions)
    assert furthest(folder) < CLOSE


def furthest(folder: RunFolder) -> float:
    """Nats that a token's log-prob was from the learner's, in any step."""
    differences = [
        value
        for row in folder.read_metrics()
        for name, value in row.items()
        if name.endswith("log_prob_difference_max")
    ]
    assert differences
    return max(differences)


class TestClients:
    """Programs that ask over HTTP are answered by vLLM as by the in-process engine."""

    @pytest.fixture
    def tools(self, tmp_path: Path) -> tuple[str, ...]:
        """The demo whose actor is frozen, greedy and told of tools."""
        template = tmp_path / "template.jinja"
        template.write_text(str(FAMILIES["qwen2.5"].template), encoding="utf-8")
        frozen = ("--policies.actor.train", "frozen", "--agents.actor.sampling.temperature", "0")
        room = ("--agents.actor.sampling.max_new_tokens", "96")
        return ("--device", "cpu", "--threads", "1", "--models.base.chat_template", str(template), *frozen, *room)

    def test_words_streams_calls_and_forms_are_those_of_here(self, tools: tuple[str, ...]) -> None:
        answers = []
        for engine in ((), VLLM):
            with marft_serve.Gateway("demo", [*tools, *engine]) as gateway, gateway.session("?") as session:
                answers.append(asked(session.clients["actor"]))
                assert all(action.sampled_mask.any() for action in session.end().actions)
        assert answers[0] == answers[1]
        said, streamed, call, form = answers[1]
        assert said == streamed
        assert json.loads(str(call))["a"] in (1, 2)
        assert json.loads(str(form))["a"] in (1, 2)

    @pytest.mark.parametrize("program", ["marft_serve.examples.openai_team:solve", "tests.streaming_team:solve"])
    def test_a_program_of_their_own_is_learned_from(self, tmp_path: Path, program: str) -> None:
        small = ("--training.steps", "2", "--rollout.tasks_per_step", "2", "--algorithm.critic.warmup_steps", "0")
        team = ("--team", f"{{ organization = 'program', call = '{program}' }}")
        words = ("--output", str(tmp_path), "--device", "cpu", "--threads", "1", *small, *team, *VLLM)
        run = load_recipe("demo", words)
        train(run, folder := RunFolder.create(run))
        assert {episode.status for episode in played(folder)} == {"terminated"}
        assert furthest(folder) < CLOSE

    def test_a_team_that_is_served_answers_as_it_was_evaluated(self, trained: RunFolder) -> None:
        run = trained.settings()
        tasks = read_tasks(run.environment, "test")[:4]
        with LocalRolloutRunner(run) as rollouts:
            load_policies(trained.saved_steps()[-1], rollouts.models, dict.fromkeys(run.trained_policies))
            rollouts.publish(0)
            expected = [episode.actions[-1].text for episode in evaluate(rollouts, "last", "greedy", tasks)[1]]
        with command(str(trained.path), "--checkpoint", "last", *VLLM) as (url, _):
            for stream in (False, True):
                assert [served(url, task.prompt, stream=stream) for task in tasks] == expected


def asked(client: Client) -> list[str | None]:
    """What an agent says, says in pieces, calls, and says in a form."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    add: Any = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": schema}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    question: Any = {"model": "any", "messages": [{"role": "user", "content": "12 + 30 ="}]}
    with OpenAI(**client.keywords, max_retries=0) as talk:  # type: ignore[arg-type]
        said = talk.chat.completions.create(**question).choices[0].message.content
        chunks = talk.chat.completions.create(**question, stream=True)
        streamed = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        calls = talk.chat.completions.create(**question, tools=[add], tool_choice="required").choices[0].message
        formed = talk.chat.completions.create(**question, response_format=form).choices[0].message.content
    return [said, streamed, calls.tool_calls[0].function.arguments, formed]


def served(url: str, text: str, *, stream: bool) -> str:
    """What a team that is served answers."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as talk:
        question: Any = {"model": "team", "messages": [{"role": "user", "content": text}], "temperature": 0}
        if not stream:
            return talk.chat.completions.create(**question).choices[0].message.content or ""
        chunks = talk.chat.completions.create(**question, stream=True)
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def played(folder: RunFolder) -> list[Episode]:
    return [episode for file in sorted(folder.episodes.iterdir()) for episode in read_episodes(file)]


def test_a_person_takes_a_seat_beside_it(there: LocalRolloutRunner) -> None:
    person = HumanSampler(there.game.renderer, lambda role, options: "The first step is 1.", there.decode)
    game = replace(there.game, engine=there.engine.with_agent_samplers({"reasoner": person}))
    task = there.run.environment.tasks("train")[0]  # type: ignore[attr-defined]
    (episode,) = there.wait_for(play_all(game, [Attempt(task, "train/1")], 1))
    assert episode.actions[0].text == "The first step is 1."
    assert episode.actions[1].log_probs.any()


def test_two_bases_whole_weights_and_an_endpoint_are_one_team(tmp_path: Path, random_model: Path) -> None:
    """Three processes of vLLM: adapters of one base, those of another, and a policy with weights of its own."""
    table = recipe("tiny", tmp_path)
    table["models"]["other"] = {"path": str(random_model)}
    whole, other, far = {"model": "base", "train": "full"}, {"model": "other"}, {"model": "teacher", "train": "frozen"}
    table["policies"] = {"reasoner": {"model": "base"}, "critic": other, "teacher": far, "actor": whole}
    seat = {"instructions": "Say.", "sampling": {"max_new_tokens": 8}}
    asides = [{"role": role, "policy": role, **seat} for role in ("critic", "teacher")]
    table["agents"] = [table["agents"][0], *asides, table["agents"][1]]
    with serving(lambda body, number: says("Carry the one.")) as endpoint:
        table["models"]["teacher"] = {"path": "gpt-x", "endpoint": {"url": endpoint.url, "max_retries": 0}}
        run = parse_recipe(table, VLLM)
        train(run, folder := RunFolder.create(run))
        assert len(endpoint.requests) == 8
    assert {episode.status for episode in played(folder)} == {"terminated"}
    assert furthest(folder) < CLOSE
    assert {row["engine_restarts"] for row in folder.read_metrics()} == {0.0}


def test_replicas_that_rest_draw_what_one_would(
    here: LocalRolloutRunner, there: LocalRolloutRunner, tmp_path: Path
) -> None:
    calls = range(12)
    expected = [said(there, call=call).tokens.tolist() for call in calls]
    options = ("--engine.replicas", "2", "--engine.sleep", "true")
    with LocalRolloutRunner(settings("tiny", tmp_path, *VLLM, *options)) as both:
        for name, weights in both.models.policies["actor"].parameters().items():
            weights.data.copy_(there.models.policies["actor"].parameters()[name])
        both.publish(4)
        for _ in range(2):
            found = both.wait_for(many(both, calls))
            assert [one.tokens.tolist() for one in found] == expected
            assert {one.versions for one in found} == {VersionRange(4, 4)}
            both.wait_for(both.engine.wait_idle())  # they rest, and are awake again for the next
        assert len(servers()) == 3
        assert both.usage()["engine_restarts"] == 0


async def many(rollouts: LocalRolloutRunner, calls: Iterable[int]) -> list[Completion]:
    """Each of another task, so that the replicas share them."""
    how = SamplingParams(max_new_tokens=12)
    asking = [rollouts.engine.sample("actor", PROMPT, how, key(call)) for call in calls]
    return list(await asyncio.gather(*asking))


def test_a_context_that_is_full_ends_an_action_and_a_prompt_beyond_it_is_refused(there: LocalRolloutRunner) -> None:
    context = there.models.policies["actor"].context
    filled = said(there, max_new_tokens=context, stop=("no such text",))
    assert len(filled.tokens) <= context - len(PROMPT.ids)
    beyond = Prompt(np.full(context + 5, 7, np.int32))
    for prompt in (beyond, Prompt(np.zeros(0, np.int32))):
        with pytest.raises(RunError, match="vllm"):
            there.wait_for(there.engine.sample("actor", prompt, SamplingParams(max_new_tokens=4), key()))
    assert len(said(there).tokens)


def test_an_argument_that_vllm_has_not_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"engine\.engine_args: vLLM .* takes no no_such_thing"):
        LocalRolloutRunner(settings("tiny", tmp_path, *VLLM, "--engine.engine_args.no_such_thing", "1")).close()
