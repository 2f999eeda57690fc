"""Agents that remember: their own conversation of the episode, by ids, continued by what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from marft.agents import conversation_memory
from marft.agents.channels import Last
from marft.agents.conversation import Conversation
from marft.agents.conversation_memory import CONCURRENT_ACTIONS, CONTEXT_FULL
from marft.agents.game import Attempt, Game, Replay
from marft.agents.play import play
from marft.agents.prompt_messages import ChatMessage, InexactContinuation, PromptTooLongError, TruncationPolicy
from marft.common.types import (
    Action,
    ActionKey,
    AgentProfile,
    Completion,
    Episode,
    JointAction,
    Observation,
    Prompt,
    SamplingParams,
    Task,
    TokenIds,
    Tool,
)
from marft.config.interfaces.channel import Message
from marft.config.interfaces.organization import Agents, MessageOverride
from marft.rollout.fork_plans import grow_tree, play_counterfactuals
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game, goes_on
from tests.marft.agents.test_conversation import nodes
from tests.marft.agents.test_turns import Acts, Doing, failed, run


def ids_of(text: str) -> TokenIds:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def text_of(ids: TokenIds) -> str:
    return bytes(ids.astype(np.uint8)).decode()


@dataclass
class Plain(FakeRenderer):
    """Messages in brackets; ``[`` begins a turn."""

    size: int = 100_000
    forgets: bool = False  # its template shows no turn again as it was

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        return ids_of("".join(f"[{message['role'][0]}:{message['content']}]" for message in messages) + "[")

    def continue_chat(
        self, policy: str, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:  # fmt: skip
        if self.forgets:
            return InexactContinuation("its chat template forgets", always=True)
        return np.concatenate([ids_of("]"), self.tokenize_prompt(policy, new, tools)])

    def render(self, policy: str, profile: AgentProfile, observation: str, seen: Sequence[Message], *, reserve: int, cut: TruncationPolicy) -> Prompt:  # fmt: skip
        prompt = super().render(policy, profile, observation, seen, reserve=reserve, cut=cut)
        if len(prompt.ids) + reserve > self.size:
            raise PromptTooLongError("the prompt alone is too long")
        return prompt

    def context_length(self, policy: str) -> int:
        return self.size


def remembering(g: Game, *roles: str, cut: TruncationPolicy | None = None, longest: int = 10) -> Game:
    """The game, in which these agents (all, where none is named) remember."""
    agents = tuple(
        replace(agent, memory="own" if agent.role in (roles or [agent.role]) else "none", cut=cut or agent.cut,
                sampling=SamplingParams(max_new_tokens=longest), profile=replace(agent.profile, instructions="I"))
        for agent in g.team.agents
    )  # fmt: skip
    renderer = g.renderer if isinstance(g.renderer, Plain) else Plain()
    return replace(g, team=replace(g.team, agents=agents), renderer=renderer)


def acting(acts: Acts, *roles: str, steps: int = 2, **changes: Any) -> Game:
    script = Script([goes_on(text=f"o{n}") for n in range(1, steps)] + [ends()])
    return game(
        script, *(roles or ("a",)), organization=Doing(acts), engine=changes.pop("engine", Counting()), **changes
    )


class Counting(FakeEngine):
    """Says ``<agent><step><call>``."""

    def __init__(self) -> None:
        super().__init__(lambda key, _: f"{key.agent}{key.step}{key.call}")


async def once(observation: Observation, agents: Agents) -> JointAction:
    return JointAction(await agents.a(observation))


async def at_once(observation: Observation, agents: Agents) -> JointAction:
    await asyncio.gather(*(agents.a(Observation(f"{observation.text}.{n}")) for n in range(3)))
    return JointAction()


def prompts(episode: Episode) -> list[str]:
    return [text_of(action.prompt) for action in episode.actions]


class TestWhatIsRemembered:
    def test_a_prompt_is_the_agents_own_conversation_and_what_is_new(self) -> None:
        episode = run(remembering(acting(once, steps=3)))
        assert prompts(episode) == [
            "[s:I][u:begin][",
            "[s:I][u:begin][a00][u:o1][",
            "[s:I][u:begin][a00][u:o1][a10][u:o2][",
        ]
        assert [action.continues for action in episode.actions] == [(), ("0/a/0",), ("0/a/0", "1/a/0")]
        assert [action.restarted for action in episode.actions] == ["", "", ""]
        assert all(text_of(action.tokens) == action.text for action in episode.actions)

    @pytest.mark.parametrize("behind", ["", "...", "!"])
    def test_the_string_that_ended_a_turn_and_what_was_sampled_with_it_are_not(self, behind: str) -> None:
        class Stopped(FakeEngine):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
                tokens = ids_of(f"said {key.step}!{behind}")
                return Completion(tokens, np.full(len(tokens), -1.0, np.float32), f"said {key.step}", "stop")

        g = remembering(acting(once, steps=2, engine=Stopped()))
        (agent,) = g.team.agents
        agent = replace(agent, sampling=replace(agent.sampling, stop=("!",)))
        episode = run(replace(g, team=replace(g.team, agents=(agent,))))
        assert prompts(episode)[1] == "[s:I][u:begin][said 0][u:o1]["
        assert [text_of(action.tokens) for action in episode.actions] == [f"said {n}!{behind}" for n in range(2)]

    def test_without_a_memory_nothing_is(self) -> None:
        g = remembering(acting(once, steps=3), "nobody")
        assert prompts(run(g)) == ["[s:I][u:begin][", "[s:I][u:o1][", "[s:I][u:o2]["]
        assert all(action.continues == () and action.sees == () for action in run(g).actions)

    def test_what_was_read_or_said_is_not_told_again_and_all_of_it_is_seen(self) -> None:
        done: list[Action] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            done.append(await agents.b(observation))
            done.append(await agents.a(observation, sees=done))
            return JointAction(done[-1])

        episode = run(remembering(acting(act, "a", "b"), "a"))
        first, second = [action for action in episode.actions if action.agent == "a"]
        assert text_of(second.prompt) == ("[s:I][u:begin\n\nMessage from b:\nb00][a00][u:o1\n\nMessage from b:\nb10][")
        assert first.sees == ("0/b/0",)
        assert second.sees == ("0/b/0", "0/a/0", "1/b/0")
        assert second.message_tokens == (0, 0, len("b10"))
        assert [action.continues for action in episode.actions] == [(), (), (), ("0/a/0",)]

    def test_another_part_of_what_was_read_is_new(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            said = await agents.b(observation)
            for part in ("x", "x", "y"):
                await agents.a(observation, sees=[MessageOverride(said, part)])
            return JointAction()

        told = prompts(run(remembering(acting(act, "a", "b", steps=1), "a")))[1:]
        assert [prompt.count("Message from b:\nx") for prompt in told] == [1, 1, 1]
        assert told[-1].endswith("[u:begin\n\nMessage from b:\ny][")

    def test_what_the_channel_left_out_is_still_new(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            said = await agents.b(observation)
            await agents.a(observation, sees=[MessageOverride(said, "x"), MessageOverride(said, "y")])
            return JointAction(await agents.a(observation, sees=[MessageOverride(said, "x")]))

        g = remembering(acting(act, "a", "b", steps=1), "a")
        told = prompts(run(replace(g, team=replace(g.team, channel=Last()))))
        assert [(prompt.count("b:\nx"), prompt.count("b:\ny")) for prompt in told[1:]] == [(0, 1), (1, 1)]

    def test_guidance_stands_at_the_end_of_every_turn(self) -> None:
        g = remembering(acting(once))
        (agent,) = g.team.agents
        told = replace(agent, profile=replace(agent.profile, guidance="G"))
        assert prompts(run(replace(g, team=replace(g.team, agents=(told,)))))[1].endswith("[u:o1\n\nG][")

    def test_a_choice_and_a_turn_that_a_teammate_began_are_remembered_as_they_stand(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            begun = await agents.b(observation)
            await agents.a(observation, begins=begun)
            await agents.a.choose(Observation("which"), ["yes", "no"])
            return JointAction(await agents.a(Observation("last")))

        engine = FakeEngine(lambda key, _: "no" if key.call == 1 else f"{key.agent}!")
        last = run(remembering(acting(act, "a", "b", steps=1, engine=engine), "a")).actions[-1]
        assert text_of(last.prompt) == "[s:I][u:begin][b!a!][u:which][no][u:last]["
        assert last.sees == ("0/b/0", "0/a/0", "0/a/1")

    def test_an_endpoint_is_sent_the_growing_chat(self) -> None:
        chats: list[list[str]] = []

        class Sent(Counting):
            async def sample(self, policy: str, prompt: Prompt, *rest: Any) -> Completion:
                chats.append([message["content"] for message in prompt.chat])
                return await super().sample(policy, prompt, *rest)

        run(remembering(acting(once, steps=2, engine=Sent())))
        assert chats == [["I", "begin"], ["I", "begin", "a00", "o1"]]

    def test_a_template_that_does_not_continue_restarts_with_its_reason(self) -> None:
        g = remembering(replace(acting(once, steps=3), renderer=Plain(forgets=True)))
        episode = run(g)
        assert prompts(episode)[2] == "[s:I][u:begin][a:a00][u:o1][a:a10][u:o2]["
        assert [action.restarted for action in episode.actions] == ["", *["its chat template forgets"] * 2]
        assert episode.actions[2].continues == ("0/a/0", "1/a/0")

    def test_a_template_that_cannot_show_a_conversation_loses_the_episode_alone(self) -> None:
        class Refuses(Plain):
            def continue_chat(self, *_: Any) -> TokenIds | InexactContinuation:
                raise ValueError("roles must alternate")

        failed(remembering(replace(acting(once), renderer=Refuses())), "failed", "a: roles must alternate")


class TestSeveralAtOnce:
    def test_none_knows_the_others_and_the_next_knows_all_in_the_order_asked_for(self) -> None:
        episode = run(remembering(acting(at_once)))
        assert prompts(episode)[:3] == [f"[s:I][u:begin.{n}][" for n in range(3)]
        history = "[s:I][u:begin.0][a00][u:begin.1][a01][u:begin.2][a02]"
        assert prompts(episode)[3:] == [f"{history}[u:o1.{n}][" for n in range(3)]
        assert [a.continues for a in episode.actions[3:]] == [("0/a/0", "0/a/1", "0/a/2")] * 3
        assert [a.restarted for a in episode.actions] == [""] * 3 + [CONCURRENT_ACTIONS] * 3

    def test_one_that_is_not_finished_is_remembered_once_it_is(self) -> None:
        class Uneven(Counting):
            async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
                for _ in range(20 if key.call == 0 else 1):
                    await asyncio.sleep(0)
                return await super().sample(policy, prompt, sampling, key)

        async def act(observation: Observation, agents: Agents) -> JointAction:
            slow = asyncio.ensure_future(agents.a(Observation("slow")))
            await asyncio.sleep(0)
            await agents.a(Observation("quick"))
            await agents.a(Observation("then"))
            await slow
            return JointAction(await agents.a(Observation("last")))

        g = remembering(acting(act, steps=1, engine=Uneven()))
        episode = run(g)
        assert [a.continues for a in episode.actions] == [(), (), ("0/a/1",), ("0/a/0", "0/a/1", "0/a/2")]
        assert prompts(episode)[3] == "[s:I][u:slow][a00][u:quick][a01][u:then][a02][u:last]["
        assert prompts(run(g)) == prompts(episode)
        again = run(g, replay=whole(episode))
        assert again.error == ""
        assert [a.continues for a in again.actions] == [a.continues for a in episode.actions]

    def test_each_action_stands_in_its_conversation_as_sampled_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        records: list[Conversation] = []

        class Kept(Conversation):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                records.append(self)

        monkeypatch.setattr(conversation_memory, "Conversation", Kept)
        episode = run(remembering(acting(at_once, steps=3)))
        turns = [node for node in nodes(records[0].root) if node.action_id]
        once = [node for node in turns if node.is_sampled]
        assert sorted(node.action_id for node in once) == sorted(action.id for action in episode.actions)
        assert len(turns) > len(once)  # others stand in later prompts
        for node in once:
            action = next(action for action in episode.actions if action.id == node.action_id)
            assert node.context.tolist() == [*action.prompt, *action.tokens]


def whole(episode: Episode) -> Replay:
    shown = [transition.observation.text for transition in episode.transitions]
    return Replay(episode.name, "train/0", 0, {a.id: a for a in episode.actions}, observations=shown)


def same(one: Action, other: Action) -> bool:
    fields = ("id", "continues", "restarted", "sees", "text", "truncated_tokens")
    return all(getattr(one, f) == getattr(other, f) for f in fields) and np.array_equal(one.prompt, other.prompt)


class TestServedAgain:
    @pytest.mark.parametrize("acts", [once, at_once])
    def test_what_is_served_is_remembered_as_it_was(self, acts: Acts) -> None:
        g = remembering(acting(acts, steps=3))
        episode = run(g)
        again = run(g, stream="train/0/fork", replay=whole(episode))
        assert again.error == ""
        assert all(same(a, b) for a, b in zip(episode.actions, again.actions, strict=True))

    @pytest.mark.parametrize("acts", [once, at_once])
    @pytest.mark.parametrize("size", [100_000, 60])
    def test_an_action_that_is_sampled_anew_remembers_what_the_recorded_one_did(self, acts: Acts, size: int) -> None:
        g = remembering(replace(acting(acts, steps=3), renderer=Plain(size=size)))
        attempt = Attempt(Task("t0", "begin"), "train/0")

        def play_many(attempts: Sequence[Attempt]) -> list[Episode]:
            return [asyncio.run(play(g, one)) for one in attempts]

        (episode,) = play_many([attempt])
        forks = play_counterfactuals(play_many, [attempt], [episode], 1, ["a"])
        assert len(forks) == len(episode.actions)
        for action, fork in zip(episode.actions, forks, strict=True):
            assert fork.error == ""
            (anew,) = [other for other in fork.actions if other.id == action.id]
            assert same(action, anew)

    @pytest.mark.parametrize("acts", [once, at_once])
    def test_a_tree_carries_conversations_on(self, acts: Acts) -> None:
        g = remembering(acting(acts, steps=2))
        attempts = [Attempt(Task("t0", "begin"), "train/0")]
        came_to, _ = grow_tree(
            lambda some: [asyncio.run(play(g, one)) for one in some], attempts, 2, "best", lambda _: 0.0
        )
        assert came_to[0].error == ""
        plain = run(g)
        assert [a.continues for a in came_to[0].actions] == [a.continues for a in plain.actions]


class TestTooLong:
    def test_the_oldest_exchanges_give_way_whole_and_what_comes_next_goes_on_from_there(self) -> None:
        g = remembering(replace(acting(once, steps=5), renderer=Plain(size=50)))
        episode = run(g)
        assert prompts(episode) == [
            "[s:I][u:begin][",
            "[s:I][u:begin][a00][u:o1][",
            "[s:I][u:begin][a00][u:o1][a10][u:o2][",
            "[s:I][u:o1][a10][u:o2][a20][u:o3][",
            "[s:I][u:o2][a20][u:o3][a30][u:o4][",
        ]
        assert [action.restarted for action in episode.actions] == ["", "", "", CONTEXT_FULL, CONTEXT_FULL]
        assert [action.truncated_tokens for action in episode.actions] == [0, 0, 0, len("[u:begin][a00]"), 11]
        assert episode.actions[3].continues == episode.actions[3].sees == ("1/a/0", "2/a/0")
        assert all(len(action.prompt) <= 40 for action in episode.actions)

    def test_where_even_the_last_exchange_does_not_fit_the_agent_begins_anew(self) -> None:
        episode = run(remembering(replace(acting(once, steps=3), renderer=Plain(size=30))))
        assert prompts(episode) == ["[s:I][u:begin][", "[s:I][u:o1][", "[s:I][u:o2]["]
        assert [action.restarted for action in episode.actions][1:] == [CONTEXT_FULL] * 2
        assert [action.truncated_tokens for action in episode.actions] == [0, len("[u:begin][a00]"), len("[u:o1][a10]")]
        assert all(len(action.prompt) <= 20 for action in episode.actions)

    @pytest.mark.parametrize(("room", "restarted"), [(0, ""), (-1, CONTEXT_FULL)])
    def test_a_conversation_that_just_fits_is_whole(self, room: int, restarted: str) -> None:
        longest = len("[s:I][u:begin][a00][u:o1][a10][u:o2][") + 10
        episode = run(remembering(replace(acting(once, steps=3), renderer=Plain(size=longest + room))))
        assert [action.restarted for action in episode.actions] == ["", "", restarted]

    def test_what_a_message_said_in_an_exchange_that_gave_way_can_be_told_again(self) -> None:
        said: list[Action] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            said[:] = said or [await agents.b(observation)]
            return JointAction(await agents.a(observation, sees=said))

        g = remembering(replace(acting(act, "a", "b", steps=3), renderer=Plain(size=65)), "a")
        actions = [action for action in run(g).actions if action.agent == "a"]
        assert [action.restarted for action in actions] == ["", "", CONTEXT_FULL]
        assert [action.message_tokens for action in actions] == [(3,), (0, 0), (0, 3)]
        assert text_of(actions[1].prompt).count("b00") == 1
        assert text_of(actions[2].prompt) == "[s:I][u:o1][a10][u:o2\n\nMessage from b:\nb00]["

    def test_where_nothing_may_give_way_the_episode_says_what_to_do(self) -> None:
        g = remembering(replace(acting(once, steps=5), renderer=Plain(size=50)), cut=TruncationPolicy("none"))
        failed(g, "failed", "agent 'a': its conversation has 48 tokens", "leaves 40", "agents.context.truncate")


class TestWhatACriticReads:
    def test_it_is_the_conversation_with_what_the_agent_did_not_see(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            await agents.b(observation)
            return JointAction(await agents.a(observation))

        episode = run(remembering(acting(act, "a", "b"), "a"), record_critic_states=True)
        states = [a.state for a in episode.actions if a.agent == "a"]
        assert states[1] is not None
        assert text_of(states[1]) == "[s:I][u:begin][a00][u:o1\n\nMessage from b:\nb10]["

    def test_the_end_of_a_truncated_episode_goes_on_from_all_that_was_said(self) -> None:
        g = remembering(replace(acting(once, steps=3), max_steps=2))
        bootstrap = run(g, record_critic_states=True).bootstrap
        assert text_of(bootstrap["a"]) == "[s:I][u:begin][a00][u:o1][a10][u:o2]["

    def test_where_not_all_of_it_fits_a_critic_reads_the_last_of_it(self) -> None:
        g = remembering(replace(acting(once, steps=4), max_steps=3, renderer=Plain(size=50)))
        bootstrap = run(g, record_critic_states=True).bootstrap
        assert text_of(bootstrap["a"]) == "[s:I][u:o1][a10][u:o2][a20][u:o3]["
