"""A trace told again is what play would have made of the same words: prompts, tokens, dependencies, tools, rewards."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.agents.prompt_messages import build_messages
from marft.cli.shutdown import handle_sigterm
from marft.common.types import Action, TokenSource
from marft.config import RunSettings, parse_recipe
from marft.config.interfaces.channel import Message
from marft.envs.tasks import read_tasks
from marft.models.tokenizer_format import load_tokenizer_formats
from marft.rollout.local_runner import open_rollout_runner
from marft_serve.traces.reader import read_traces
from marft_serve.traces.replayer import ReplayedTrace, ReplayEngine, TraceReplayer
from marft_serve.traces.types import SkipCounter
from marft_serve.traces.warm_start import (
    iter_trainable_actions,
    load_imitation_data,
    mask_zero_weight_turns,
    plan_steps,
)
from tests.episodes import make_action
from tests.helpers import recipe, settings
from tests.sources import ROOT
from tests.tracing import agent_attributes, current, otlp, span, write

TOOLS = str(ROOT / "benchmarks" / "calculator.jinja")


def prompt_of(run: RunSettings, number: int = 0) -> str:
    return read_tasks(run.environment, "train")[number].prompt


def said(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "name": name, "content": text, **more}


def told(run: RunSettings, path: Path, grade: bool = False) -> tuple[list[ReplayedTrace], SkipCounter, list[Action]]:
    """The traces of a file told again, and the actions that are imitated."""
    tally = SkipCounter()
    with TraceReplayer(run, tally) as stage:
        found = list(stage.replay(read_traces([path], tally), grade))
        return found, tally, [action for one in found for action in iter_trainable_actions(one, stage, tally)]


def text_of(run: RunSettings, ids: np.ndarray) -> str:
    with TraceReplayer(run, SkipCounter()) as stage:
        return str(stage.renderer.formats["actor"].tokenizer.decode(ids.tolist()))


def chain_file(run: RunSettings, tmp_path: Path, *more: dict[str, Any], **fields: Any) -> Path:
    messages = [{"role": "user", "content": prompt_of(run)}, said("Reasoner", "Add."), said("actor", "It is 3."), *more]
    return write(tmp_path / "t.jsonl", [{"messages": messages, **fields}])


def test_prompts_are_those_of_the_recipes_team(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path)
    (one,), tally, actions = told(run, chain_file(run, tmp_path))
    reasoner, actor = one.episode.actions
    assert (one.episode.status, actor.sees) == ("terminated", (reasoner.id,))
    with TraceReplayer(run, SkipCounter()) as stage:
        for action, agent in zip(actions, stage._parts.game.team.agents, strict=True):
            seen = [Message("reasoner", "Add.")] if action is actor else []
            chat = build_messages(agent.profile, prompt_of(run), seen)
            assert np.array_equal(action.prompt, stage.renderer.tokenize_prompt(agent.policy, chat, ()))
            assert np.array_equal(action.tokens, stage.renderer.tokenize_option(agent.policy, action.text))
            assert action.sampled_mask.all()
            assert action.tokens[-1] in stage.renderer.formats[agent.policy].stop_ids
    assert not tally.skipped


def test_a_signal_ends_the_telling_and_not_the_episode_that_it_strikes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sampled = settings("tiny", tmp_path), ReplayEngine.sample

    async def struck(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return await sampled(*given)

    monkeypatch.setattr(ReplayEngine, "sample", struck)
    before = signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        with pytest.raises(SystemExit):
            told(run, chain_file(run, tmp_path))
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_what_a_team_played_is_told_again_token_by_token(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path)
    with open_rollout_runner(run) as rollouts:
        played = rollouts.play([Attempt(task, "train/0") for task in read_tasks(run.environment, "train")[:4]])
    lines = []
    for episode in played:
        turns = [said(a.agent, a.text) for a in episode.actions]
        lines.append({"messages": [{"role": "user", "content": episode.task.prompt}, *turns]})
    found, tally, _ = told(run, write(tmp_path / "t.jsonl", lines), grade=True)
    whole = 0
    for one, episode in zip(found, played, strict=True):
        assert (one.episode.task.id, one.episode.total_reward) == (episode.task.id, episode.total_reward)
        assert one.episode.success == episode.success
        for mine, theirs in zip(one.episode.actions, episode.actions, strict=True):
            assert np.array_equal(mine.prompt, theirs.prompt)
            assert (mine.sees, mine.message_tokens, mine.text) == (theirs.sees, theirs.message_tokens, theirs.text)
            whole += np.array_equal(mine.tokens, theirs.tokens)
    assert whole >= 1  # a text that ran into the limit has no end of turn, and some have other tokens for the same text
    assert not tally.skipped


def test_a_traces_own_messages_are_gone_on_from_by_ids(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, "--sft.prompts", "trace", "--sft.roles", "{ assistant = 'actor' }")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 ="}]
    answer, more = {"role": "assistant", "content": "2"}, {"role": "user", "content": "And one more?"}
    path = write(tmp_path / "t.jsonl", [{"messages": [*chat, answer, more, {"role": "assistant", "content": "3"}]}])
    _, tally, (first, second) = told(run, path)
    assert np.array_equal(second.prompt[: len(first.prompt) + len(first.tokens)], [*first.prompt, *first.tokens])
    with TraceReplayer(run, SkipCounter()) as stage:
        whole = stage.renderer.tokenize_prompt("actor", [*chat, answer, more], ())
    assert np.array_equal(second.prompt, whole)
    assert not second.restarted
    assert not tally.skipped


def test_links_are_what_a_turn_sees(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, "--sft.prompts", "trace")
    asked = [{"role": "user", "content": "1 + 1 ="}]
    spans = [span(1, "a", agent_attributes("reasoner")), span(3, "b", agent_attributes("actor"), links=[1])]
    for number, parent in ((2, 1), (4, 3)):
        attributes, _ = current(asked, {"role": "assistant", "content": "A hint that nobody repeats."})
        spans.append(span(number, "chat", attributes, parent))
    (one,), _, _ = told(run, write(tmp_path / "t.jsonl", otlp(spans)))
    assert [action.sees for action in one.episode.actions] == [(), (one.episode.actions[0].id,)]


class TestTools:
    def calling(self, tmp_path: Path, *overrides: str) -> RunSettings:
        table = recipe("tiny", tmp_path)
        table["models"]["base"]["chat_template"] = TOOLS
        table["tools"] = {"sum": {"name": "function", "call": "tests.tools:add"}}
        table["agents"][1] |= {"tools": ["sum"], "sampling": {"max_new_tokens": 200}}
        return parse_recipe(table, overrides)

    def path(self, run: RunSettings, tmp_path: Path, name: str = "add", answer: bool = True) -> Path:
        call = {"id": "x", "function": {"name": name, "arguments": '{"a": 20, "b": 22}'}}
        answers = [{"role": "tool", "tool_call_id": "x", "content": "1234"}] if answer else []
        messages = [
            {"role": "user", "content": prompt_of(run)}, said("reasoner", "Add."),
            said("actor", "", tool_calls=[call], weight=0), *answers, said("actor", "It is 1234."),
        ]  # fmt: skip
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
        return write(tmp_path / "tools.jsonl", [{"messages": messages, "tools": tools}])

    def test_they_answer_what_was_recorded(self, tmp_path: Path) -> None:
        run = self.calling(tmp_path)
        (one,), tally, (_, actor) = told(run, self.path(run, tmp_path))
        assert (one.episode.error, one.episode.status) == ("", "terminated")
        played = one.episode.actions[1]
        assert [(call.name, call.output) for call in played.calls] == [("add", "1234")]
        text = text_of(run, played.tokens)
        assert '<tool_call>\n{"name": "add", "arguments": {"a": 20, "b": 22}}\n</tool_call>' in text
        assert "<tool_response>\n1234" in text
        trained = text_of(run, actor.tokens[actor.sampled_mask])
        assert trained.replace("<|im_end|>", "").strip() == "It is 1234."  # the turn of weight 0 is read alone
        assert actor.num_decisions == len(actor.log_probs) < len(played.log_probs)
        assert not tally.skipped

    def test_an_answer_that_is_not_recorded_loses_the_episode(self, tmp_path: Path) -> None:
        run = self.calling(tmp_path)
        (one,), tally, actions = told(run, self.path(run, tmp_path, answer=False))
        assert (one.episode.status, one.episode.error) == ("failed", "the trace does not say what 'add' answered")
        assert not actions
        assert tally.count("episode") == 1

    def test_a_program_makes_its_calls_itself(self, tmp_path: Path) -> None:
        run = self.calling(tmp_path, "--sft.prompts", "trace")
        (one,), tally, actions = told(run, self.path(run, tmp_path))
        assert [action.agent for action in one.episode.actions] == ["reasoner", "actor", "actor"]
        assert [call.name for call in one.episode.actions[1].calls] == ["add"]
        assert "1234" in text_of(run, one.episode.actions[2].prompt)
        assert len(actions) == 2
        assert list(tally.skipped) == ["turn: its weight is 0"]

    def test_calls_of_an_agent_without_tools_are_not_learned(self, tmp_path: Path) -> None:
        plain = settings("tiny", tmp_path)
        (one,), tally, actions = told(plain, self.path(plain, tmp_path))
        assert one.episode.status == "failed"
        assert "it calls tools, and the agent is offered none" in one.episode.error
        assert not actions
        assert tally.count("episode") == 1

    @pytest.mark.parametrize("prompts", ["recipe", "trace"])
    def test_a_call_of_a_tool_that_the_recipe_lacks_is_not_learned_and_named(
        self, tmp_path: Path, prompts: str
    ) -> None:
        run = self.calling(tmp_path, "--sft.prompts", prompts)
        path = self.path(run, tmp_path, "mul")
        path.write_text(path.read_text().replace('"name": "add"', '"name": "mul"'))  # which the trace offers
        _, tally, actions = told(run, path)
        assert "actor" not in {action.agent for action in actions if action.calls}
        (reason,) = [
            reason for reason in tally.skipped if "it calls 'mul', and the agent is offered add alone" in reason
        ]
        assert "tools.jsonl:1" in reason or tally.skipped[reason][1] == ["tools.jsonl:1"]


class TestThoughts:
    @pytest.mark.parametrize(
        ("thinking", "text"), [("keep", "<think>\nHm.\n</think>\n\nIt is 3."), ("drop", "It is 3.")]
    )
    def test_they_are_trained_as_the_recipe_says(self, tmp_path: Path, thinking: str, text: str) -> None:
        run = settings("tiny", tmp_path, "--sft.thinking", thinking)
        messages = [
            {"role": "user", "content": prompt_of(run)}, said("reasoner", "Add."),
            said("actor", "It is 3.", reasoning_content="Hm."),
        ]  # fmt: skip
        (one,), _, _ = told(run, write(tmp_path / "t.jsonl", [{"messages": messages}]))
        assert one.episode.actions[1].text == text


class TestWhatIsLeftOut:
    def test_who_is_no_role_and_is_asked_for_nothing(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        path = chain_file(run, tmp_path, said("tester", "Good."), said("actor", "Once more: 3."))
        _, tally, actions = told(run, path)
        assert len(actions) == 2
        assert any("the recipe has no agent 'tester'" in reason for reason in tally.skipped)
        assert tally.skipped["turn: the recipe's team does not ask actor for it"] == (1, ["t.jsonl:1"])

    def test_an_episode_in_which_an_agent_says_too_little(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        messages = [{"role": "user", "content": prompt_of(run)}, said("reasoner", "Add.")]
        (one,), tally, actions = told(run, write(tmp_path / "t.jsonl", [{"messages": messages}]))
        assert not actions
        assert "asks actor more often than the trace has turns of it (0)" in one.episode.error
        assert tally.count("episode") == 1

    def test_what_the_environment_was_never_asked_is_not_graded(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        messages = [{"role": "user", "content": "Who?"}, said("reasoner", "Me."), said("actor", "You.")]
        path = write(tmp_path / "t.jsonl", [{"messages": messages}])
        assert told(run, path, grade=True)[0] == []
        (one,), tally, actions = told(run, path)
        assert (one.episode.transitions[0].observation.text, len(actions)) == ("Who?", 2)
        assert not tally.skipped

    def test_what_does_not_fit_the_context(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--models.base.context_length", "128")
        messages = [
            {"role": "user", "content": prompt_of(run)},
            said("reasoner", "1 + 1 = 2 " * 40),
            said("actor", "2"),
        ]
        _, tally, actions = told(run, write(tmp_path / "t.jsonl", [{"messages": messages}]))
        assert [action.agent for action in actions] == ["actor"]  # what it was told was cut, as in play
        assert tally.skipped["turn: with its prompt it has more tokens than the context, 128"] == (1, ["t.jsonl:1"])

    def test_a_turn_that_was_cut_short_has_no_end(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--sft.prompts", "trace")
        attributes, _ = current([{"role": "user", "content": "1 + 1 ="}], {"role": "assistant", "content": "It is"})
        attributes["gen_ai.output.messages"] = attributes["gen_ai.output.messages"].replace('"stop"', '"length"')
        spans = [span(1, "a", agent_attributes("actor")), span(2, "chat", attributes, 1)]
        _, _, (action,) = told(run, write(tmp_path / "t.jsonl", otlp(spans)))
        assert (text_of(run, action.tokens), action.finish) == ("It is", "length")

    def test_frozen_policies_do_not_learn(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--policies.reasoner.train", "frozen")
        _, _, actions = told(run, chain_file(run, tmp_path))
        assert [action.agent for action in actions] == ["actor"]


class TestLessons:
    def data(self, tmp_path: Path, *overrides: str, count: int = 10) -> tuple[RunSettings, Any]:
        run = settings("tiny", tmp_path)
        lines = [
            {
                "messages": [
                    {"role": "user", "content": prompt_of(run, n)},
                    said("reasoner", f"Add {n}."),
                    said("actor", "3"),
                ]
            }
            for n in range(count)
        ]
        path = write(tmp_path / "t.jsonl", lines)
        run = settings("tiny", tmp_path, "--sft.traces", json.dumps([str(path)]), *overrides)
        return run, load_imitation_data(run, load_tokenizer_formats(run), SkipCounter())

    def test_whole_episodes_are_held_out_and_nothing_is_lost(self, tmp_path: Path) -> None:
        _, lessons = self.data(tmp_path, "--sft.held_out_fraction", "0.3")
        apart, trained = ([s.action.key for s in some] for some in (lessons.held_out, lessons.train))
        assert (len(apart), len(trained), lessons.episodes) == (6, 14, 10)
        assert not {key.task for key in apart} & {key.task for key in trained}

    def test_one_is_left_to_learn_from(self, tmp_path: Path) -> None:
        _, lessons = self.data(tmp_path, "--sft.held_out_fraction", "0.96")
        assert len({sample.action.key.task for sample in lessons.train}) == 1
        _, lessons = self.data(tmp_path, "--sft.held_out_fraction", "0.01")
        assert len({sample.action.key.task for sample in lessons.held_out}) == 1, "and one to measure by"

    def test_every_epoch_takes_every_turn_once_in_an_order_of_its_own(self, tmp_path: Path) -> None:
        run, lessons = self.data(
            tmp_path, "--sft.epochs", "2", "--sft.batch_tokens", "200", "--sft.held_out_fraction", "0"
        )
        steps = plan_steps(lessons.train, run)
        orders = [[n for at, batch in steps if at == epoch for n in batch] for epoch in (0, 1)]
        assert [sorted(order) for order in orders] == [list(range(20))] * 2
        assert orders[0] != orders[1]
        sizes = [sum(len(lessons.train[n].action.prompt) for n in batch) for _, batch in steps]
        assert max(sizes) <= 200
        assert plan_steps(lessons.train, run) == steps

    def test_other_turns_have_another_digest(self, tmp_path: Path) -> None:
        _, lessons = self.data(tmp_path)
        _, again = self.data(tmp_path)
        _, others = self.data(tmp_path, count=9)
        assert lessons.digest == again.digest != others.digest

    def test_traces_without_a_turn_are_refused_with_the_reasons(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.jsonl", [{"a": 1}])
        run = settings("tiny", tmp_path, "--sft.traces", json.dumps([str(path)]))
        with pytest.raises(ValueError, match=r"no turn that a policy(.|\n)*1 × line: it is neither"):
            load_imitation_data(run, load_tokenizer_formats(run), SkipCounter())


def test_turns_of_weight_0_are_marked_as_read() -> None:
    marks = (TokenSource.SAMPLED, TokenSource.SAMPLED, TokenSource.TOOL, TokenSource.SAMPLED, TokenSource.SAMPLED)
    action = make_action(
        "actor", tokens=(4, 5, 6, 7, 8), marks=tuple(map(int, marks)), log_probs=(-1.0, -2.0, -3.0, -4.0)
    )
    left = mask_zero_weight_turns(action, [(0.0, 2), (1.0, 2)])
    assert left.sampled_mask.tolist() == [False, False, False, True, True]
    assert left.log_probs.tolist() == [-3.0, -4.0]
    assert mask_zero_weight_turns(action, [(1.0, 2), (1.0, 2)]) is action
    assert mask_zero_weight_turns(action, [(0.0, 2), (0.0, 2)]).num_decisions == 0


def test_a_programs_prompts_are_its_own_messages(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
    program = {"organization": "program", "call": "marft_serve.examples.openai_team:solve"}
    for team, by_messages in ((program, True), ({"organization": "chain"}, False)):
        with TraceReplayer(parse_recipe(recipe("tiny", tmp_path, team=team)), SkipCounter()) as stage:
            assert stage.uses_trace_prompts is by_messages
