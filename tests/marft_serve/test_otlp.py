"""Our episodes as OpenTelemetry's spans: what they say, and how they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from marft.common.types import ActionKey, AgentProfile, Episode, Fork, Task, ToolCall
from marft_serve.traces.types import TracedEpisode
from marft_serve.tracing import episode_spans
from marft_serve.tracing.episode_spans import MAX_SPANS, Tracer, make_batches
from marft_serve.tracing.messages import split_turns, strip_tool_calls
from marft_serve.tracing.otlp import encode_json_line, encode_protobuf
from marft_serve.tracing.span import MAX_TEXT_CHARS, Span
from marft_serve.tracing.team_metadata import AgentMetadata, TeamMetadata
from tests.episodes import episodes, make_action
from tests.otlp import BEGAN, CAST, named, spans_in, team
from tests.tracing import read

# what spans say


def test_every_action_answer_tool_step_and_term_has_a_span_under_what_it_is_part_of() -> None:
    spans = Tracer("r", CAST).build_spans(team())
    inside = {span.id: span for span in spans}
    assert [(span.name, inside[span.parent].name if span.parent else "") for span in spans] == [
        ("invoke_workflow demo", ""),
        ("step 0", "invoke_workflow demo"),
        ("invoke_agent reasoner", "step 0"),
        ("chat tiny:reasoner", "invoke_agent reasoner"),
        ("invoke_agent actor", "step 0"),
        ("chat tiny:actor", "invoke_agent actor"),
        ("execute_tool add", "invoke_agent actor"),
        ("chat tiny:actor", "invoke_agent actor"),
        ("environment.step", "step 0"),
        ("reward right", "step 0"),
        ("reward short", "step 0"),
    ]


def test_spans_say_what_the_conventions_ask_for() -> None:
    spans = Tracer("r", CAST).build_spans(team())
    root, actor, tool = spans[0], named(spans, "invoke_agent actor"), named(spans, "execute_tool add")
    assert root.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert (root.attributes["marft.reward"], root.attributes["marft.success"]) == (1.0, True)
    assert root.attributes["marft.policies.actor.version_highest"] == 3
    assert actor.attributes["gen_ai.agent.name"] == "actor"
    assert actor.attributes["gen_ai.request.model"] == "tiny:actor"
    assert {span.attributes["agent.trajectory.step"] for span in spans[1:]} == {0}
    assert tool.attributes["gen_ai.tool.name"] == "add"
    first, second = (span.attributes for span in spans if span.name == "chat tiny:actor")
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 2)
    assert (second["gen_ai.usage.input_tokens"], second["gen_ai.usage.output_tokens"]) == (7, 2)
    assert (first["gen_ai.response.finish_reasons"], second["gen_ai.response.finish_reasons"]) == (
        ["tool_call"],
        ["stop"],
    )
    share = named(spans, "reward short").attributes
    assert (share["gen_ai.evaluation.name"], share["gen_ai.evaluation.score.value"]) == ("short", -0.5)
    assert share["gen_ai.agent.name"] == "actor"


def test_calls_of_one_action_have_ids_of_their_own_which_their_answers_bear() -> None:
    plan, act = team().actions
    two = replace(act, calls=(ToolCall("add", "{}", "5"), ToolCall("add", "{}", "6", index=1)))
    spans = Tracer("r", CAST, include_content=True).build_spans(replace(team(), actions=(plan, two)))
    ids = [span.attributes["gen_ai.tool.call.id"] for span in spans if span.name == "execute_tool add"]
    assert len(set(ids)) == 2
    (*_, last) = (span.attributes for span in spans if span.name == "chat tiny:actor")
    asked = json.loads(str(last["gen_ai.input.messages"]))
    assert [part["id"] for message in asked for part in message["parts"] if part["type"] == "tool_call_response"] == ids


def test_instructions_are_said_once_and_guidance_where_it_stood() -> None:
    seat = AgentMetadata(AgentProfile("reasoner", "Plan well.", "Be brief."), "model")
    said = named(
        Tracer("r", TeamMetadata("d", {"reasoner": seat}), include_content=True).build_spans(team()), "chat model"
    ).attributes
    assert "Plan well." in str(said["gen_ai.system_instructions"])
    assert "Plan well." not in str(said["gen_ai.input.messages"])
    assert "Be brief." in str(said["gen_ai.input.messages"])


def test_what_an_action_saw_is_linked() -> None:
    spans = Tracer("r").build_spans(team())
    assert [link.span for link in named(spans, "invoke_agent actor").links] == [
        named(spans, "invoke_agent reasoner").id
    ]
    assert not named(spans, "invoke_agent reasoner").links


def test_times_are_those_recorded_from_the_beginning_of_the_episode_on() -> None:
    spans = Tracer("r").build_spans(team())
    seconds = {s.name: (s.start_time / 1e9 - BEGAN, s.end_time / 1e9 - BEGAN) for s in spans}
    assert seconds["invoke_workflow marft"] == pytest.approx((0.0, 1.25), abs=1e-5)
    assert seconds["invoke_agent actor"] == pytest.approx((0.5, 1.0), abs=1e-5)
    assert seconds["environment.step"] == pytest.approx((1.0, 1.25), abs=1e-5)
    tool = seconds["execute_tool add"]
    assert tool[1] - tool[0] == pytest.approx(0.1, abs=1e-5)


def test_nothing_that_was_said_leaves_without_being_asked_for() -> None:
    episode = replace(team("a secret"), error="a secret", status="failed", task=Task("t", "a secret"))
    assert "secret" not in encode_json_line(Tracer("r", CAST).build_spans(episode), {})
    assert "secret" in encode_json_line(Tracer("r", CAST, include_content=True).build_spans(episode), {})


def test_a_fork_is_linked_to_where_it_departs_from_and_takes_no_times_of_it() -> None:
    origin = team()
    served, fresh = origin.actions[0], replace(origin.actions[1], key=ActionKey("train/0/fork", "t", 0, 0, "actor", 0))
    fork = replace(origin, stream="train/0/fork", actions=(served, fresh), fork=Fork(origin.name, fresh.id))
    tracer = Tracer("r")
    there, spans = tracer.build_spans(origin), tracer.build_spans(fork)
    assert (spans[0].links[0].trace, spans[0].links[0].span) == (there[0].trace, named(there, "invoke_agent actor").id)
    replayed = named(spans, "invoke_agent reasoner")
    assert replayed.attributes["marft.replayed"] is True
    assert replayed.start_time == replayed.end_time == spans[0].start_time


@settings(max_examples=40)
@given(episodes(), st.floats(0, 5), st.floats(0, 2e9))
def test_every_episode_is_one_tree_whose_spans_lie_within_it(episode: Episode, seconds: float, began: float) -> None:
    acted = [replace(a, started=seconds * i / 9, ended=seconds * (i + 1) / 9) for i, a in enumerate(episode.actions)]
    episode = replace(episode, actions=tuple(acted), seconds=seconds, start_time=began)
    spans = Tracer("r", include_content=True).build_spans(episode)
    assert spans == Tracer("r", include_content=True).build_spans(episode)
    met: dict[str, Span] = {}
    for span in spans:
        assert span.id not in met
        assert (span.parent in met) if met else not span.parent
        outer = met.get(span.parent, span)
        assert outer.start_time <= span.start_time <= span.end_time <= max(outer.end_time, outer.start_time)
        met[span.id] = span
    ids = {(span.trace, span.id) for span in spans}
    assert all((link.trace, link.span) in ids for span in spans for link in span.links)
    assert sum(span.name.startswith("invoke_agent") for span in spans) == len(episode.actions)
    assert sum(span.name.startswith("step ") for span in spans) == len(episode.transitions)


def test_no_two_episodes_share_an_id() -> None:
    one, two = team(), team(sample=1)
    traces = {
        Tracer(run).build_spans(e)[0].trace for run in ("a", "b") for e in (one, two, replace(one, stream="train/1"))
    }
    assert len(traces) == 6


def test_an_episode_in_which_nobody_acted_is_one_span_that_says_why() -> None:
    episode = Episode(Task("t", "?"), "train/0", 0, (), "timed_out", error="reset() took over 1 s", start_time=BEGAN)
    (span,) = Tracer("r", include_content=True).build_spans(episode)
    assert (span.failed, span.error, span.attributes["error.type"]) == (True, episode.error, "timed_out")
    assert "marft.reward" not in span.attributes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<think>add {"name": 1}</think> I add. <call>{"name": "add"}', '<think>add {"name": 1}</think> I add.'),
        ('[TOOL_CALLS][{"name": "add", "arguments": {}}]', ""),
        ('{"name": "other"} and no call', '{"name": "other"} and no call'),
        ("{" * 100_000, "{" * 100_000),
        ('{"a":' * 100_000, '{"a":' * 100_000),
    ],
    ids=["thought", "list", "other", "braces", "nested"],
)
def test_what_is_said_beside_calls_ends_where_they_begin(text: str, said: str) -> None:
    assert strip_tool_calls(text, [ToolCall("add")]) == said


def test_turns_share_the_time_that_tools_did_not_take() -> None:
    first, second = split_turns(team().actions[1], 0.5, 1.0)
    assert (first.start_time, second.end_time) == (0.5, 1.0)
    assert first.end_time - first.start_time == pytest.approx(0.2)
    assert second.start_time - first.end_time == pytest.approx(0.1)


# how they are written


def hexed(message: dict[str, Any]) -> dict[str, Any]:
    """Protobuf's JSON as OTLP has it: ids in hexadecimal digits."""
    import base64

    def ids(table: dict[str, Any]) -> dict[str, Any]:
        return {
            k: base64.b64decode(v).hex() if k in ("traceId", "spanId", "parentSpanId") else v for k, v in table.items()
        }

    for whole in message["resourceSpans"]:
        for scope in whole["scopeSpans"]:
            scope["spans"] = [ids({**s, "links": list(map(ids, s.get("links", [])))}) for s in scope["spans"]]
    return message


@settings(max_examples=20)
@given(st.text(max_size=20), st.floats(allow_nan=True), st.text(max_size=9))
def test_json_says_what_protobuf_says(text: str, number: float, role: str) -> None:
    episode = team(text)
    step = replace(episode.transitions[0], terms={f"right/{role}": number})
    spans = Tracer("r", CAST, include_content=True).build_spans(replace(episode, transitions=(step,)))
    resource = {"service.name": "marft"}
    message = ExportTraceServiceRequest.FromString(encode_protobuf(spans, resource))
    told = hexed(MessageToDict(message, use_integers_for_enums=True))
    written = json.loads(encode_json_line(spans, resource))
    for one in written["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        one.setdefault("links", [])
    assert json.dumps(told, sort_keys=True) == json.dumps(written, sort_keys=True)


def test_texts_that_no_receiver_would_take_are_made_safe_and_short() -> None:
    episode = team("\ud800 half, \0 nul, " + "x" * 10_000_000)
    spans = Tracer("r", CAST, include_content=True).build_spans(replace(episode, task=Task("\0\udfff", "\0" * 10)))
    body, line = encode_protobuf(spans, {}), encode_json_line(spans, {})
    assert len(body) < 4 * MAX_TEXT_CHARS
    line.encode()
    texts = [a.value.string_value for s in spans_in(body) for a in s.attributes]
    assert not any("\0" in text for text in texts)
    assert any("more characters" in text for text in texts)


def test_batches_are_bounded_and_leave_nothing_out() -> None:
    long = replace(team(), actions=tuple(make_action("a", call=n, index=n) for n in range(MAX_SPANS)))
    everything = [team(), long, *(team(sample=n) for n in range(1, 60))]
    tracer = Tracer("r")
    found = list(make_batches(everything, tracer))
    assert all(len(batch.spans) <= MAX_SPANS for batch in found)
    assert [s.id for b in found for s in b.spans] == [s.id for e in everything for s in tracer.build_spans(e)]
    assert sum(batch.episodes for batch in found) == len(everything)


# there and back


def traced_back(episode: Episode, folder: Path) -> TracedEpisode:
    file = folder / "traces.jsonl"
    file.write_text(
        encode_json_line(Tracer("r", CAST, include_content=True).build_spans(episode), {}), encoding="utf-8"
    )
    (found,), tally = read(file)
    assert not tally.skipped
    return found


def test_our_own_reader_of_traces_reads_what_is_written(tmp_path: Path) -> None:
    back = traced_back(team("<think>2 and 3</think>It is 5."), tmp_path)
    assert (back.task, back.reward, back.answer) == ("t", 1.0, "5")
    plan, call, last = back.turns
    assert [turn.agent for turn in back.turns] == ["reasoner", "actor", "actor"]
    assert (plan.reasoning, plan.text) == ("2 and 3", "It is 5.")
    assert (call.text, call.calls[0].name, call.calls[0].output) == ("I add.", "add", "5")
    assert json.loads(call.calls[0].arguments) == {"a": 2, "b": 3}
    assert call.parents == (plan.id,)
    assert last.text == "5"
    assert plan.usage is not None
    assert plan.usage.completion_tokens == 2


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), min_size=1, max_size=3))
def test_any_words_come_back(words: list[str]) -> None:
    import tempfile

    actions = [
        replace(make_action("a", call=n, index=n, text=word), started=n, ended=n + 1) for n, word in enumerate(words)
    ]
    episode = replace(team(), actions=tuple(actions), seconds=9.0)
    with tempfile.TemporaryDirectory() as folder:
        back = traced_back(episode, Path(folder))
    clean = [word.replace("\0", "\ufffd") for word in words]
    assert [turn.text for turn in back.turns if "think>" not in turn.text] == [w for w in clean if "think>" not in w]


def test_episodes_that_fit_into_a_batch_are_whole_in_it() -> None:
    tracer = Tracer("r", include_content=True)
    for texts, least in (([""] * 120, 40), (["x" * 50_000] * 40, 4)):
        some = [team(text, sample) for sample, text in enumerate(texts)]
        found = list(make_batches(some, tracer))
        each = len(tracer.build_spans(some[0]))
        assert all(len(batch.spans) == each * batch.episodes for batch in found)
        assert all(batch.episodes >= least for batch in found[:-1]), "as many as there is room for"
        assert all(sum(map(characters, batch.spans)) <= episode_spans.MAX_TEXT_CHARS for batch in found)
        assert sum(batch.episodes for batch in found) == len(some)


def test_an_episode_of_many_words_takes_several_batches_of_bounded_size() -> None:
    actions = [make_action("a", index=n, call=n, text=f"{n}" + "x" * 50_000) for n in range(60)]
    episode = replace(team(), actions=tuple(actions))
    tracer = Tracer("r", include_content=True)
    found = list(make_batches([team(), episode, team(sample=1)], tracer))
    assert sum(len(batch.spans) for batch in found) == sum(
        len(tracer.build_spans(one)) for one in (team(), episode, team(sample=1))
    )
    assert all(sum(map(characters, batch.spans)) <= episode_spans.MAX_TEXT_CHARS for batch in found)
    assert [batch.episodes for batch in found] == [1, *[0] * (len(found) - 2), 2]


def characters(span: Span) -> int:
    return sum(len(str(value)) for value in span.attributes.values())
