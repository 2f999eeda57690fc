"""The whole team is an agent that clients of the Agent2Agent protocol find and give tasks to."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.nights import NIGHT

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("a2a", reason="needs A2A: pip install 'marft[a2a]'")

from a2a.client import A2AClientError
from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from marft.runs.export.exporter import export_run
from marft.runs.run_folder import RunFolder
from marft_serve.serving.a2a import BoundedTaskStore
from marft_serve.serving.options import ServeOptions
from tests.agents import WORDS, agent, client, message, sent, told
from tests.docs import blocks
from tests.gateways import send
from tests.helpers import until
from tests.servings import Held, bearer, command

TASK = "State the final answer to the following arithmetic problem: 23 + 45 - 12 ="
CARD = "/.well-known/agent-card.json"


def test_the_card_says_who_it_is_and_how_it_is_asked() -> None:
    with agent() as s:
        response = send(s.url + CARD, None, method="GET")
        card = response.table
        assert response.status == 200
        assert card["name"] == "demo"
        assert "trained with MARFT: reasoner, actor (answers). Organization: chain." in card["description"]
        assert card["capabilities"] == {"streaming": True, "pushNotifications": False}
        assert [skill["id"] for skill in card["skills"]] == ["team"]
        urls = [(one["url"], one["protocolBinding"], one["protocolVersion"]) for one in card["supportedInterfaces"]]
        assert urls == [(f"{s.url}/a2a", "JSONRPC", "1.0"), (f"{s.url}/a2a", "JSONRPC", "0.3")]
        assert "securitySchemes" not in card


def test_the_card_names_the_address_that_it_is_told() -> None:
    with agent(address="https://team.example.org/") as s:
        card = send(s.url + CARD, None, method="GET").table
        assert card["supportedInterfaces"][0]["url"] == "https://team.example.org/a2a"


def test_a_message_is_a_task_whose_artifact_is_the_answer() -> None:
    with agent() as s:
        (event,) = asyncio.run(sent(s.url, message("1 +", "2?")))
        assert WORDS[event.task.status.state] == "completed"
        (artifact,) = event.task.artifacts
        assert artifact.parts[0].text == "b says 0"
        (episode,) = s.episodes
        assert episode.task.prompt == "1 +\n2?"
        tokens = artifact.metadata["tokens"]
        assert tokens["sampled"] == sum(len(action.tokens) for action in episode.actions)
        assert tokens["read"] == sum(len(action.prompt) for action in episode.actions)
        assert 'marft_requests_total{model="demo",status="200"} 1.0' in s.app.metrics.format_text().decode()


def test_a_stream_says_who_works_and_what_they_have_said() -> None:
    with agent() as s:
        events = asyncio.run(sent(s.url, message(), streaming=True))
        assert told(events) == [
            "task submitted", "asked a", "a: a says 0", "asked b", "b has acted", "answer b says 0", "completed",
        ]  # fmt: skip


def test_what_the_docs_show_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("python") if block.page == "docs/ship.md" and "from a2a" in block.text)
    with agent() as s:
        exec(compile(block.text.replace("http://127.0.0.1:8000", s.url), block.place, "exec"), {})
    assert capsys.readouterr().out == "b says 0\n"


def test_clients_of_the_protocol_before_are_answered_too() -> None:
    with agent() as s:
        for method in ("message/send", "message/stream"):
            params = {"message": {"messageId": "1", "role": "user", "parts": [{"kind": "text", "text": "1 + 2?"}]}}
            response = send(f"{s.url}/a2a", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            assert b'"text":"b says 0"' in response.body


def test_it_needs_the_token_and_the_card_says_so() -> None:
    with agent(token="secret") as s:
        refused = send(f"{s.url}/a2a", {})
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        with pytest.raises(A2AClientError, match="401"):
            asyncio.run(sent(s.url, message()))
        assert not s.episodes
        assert told(asyncio.run(sent(s.url, message(), "secret"))) == ["task completed"]
        card = send(s.url + CARD, None, method="GET").table
        schemes = card["securitySchemes"]
        assert schemes["bearer"]["httpAuthSecurityScheme"] == {"scheme": "Bearer"}
        assert schemes["key"]["apiKeySecurityScheme"] == {"location": "header", "name": "x-api-key"}
        assert [list(one["schemes"]) for one in card["securityRequirements"]] == [["bearer"], ["key"]]


def _other(**changes: Any) -> Any:
    request = message()
    for name, value in changes.items():
        if name == "modes":
            request.configuration.accepted_output_modes.extend(value)
        elif name == "push":
            request.configuration.task_push_notification_config.url = value
        else:
            del request.message.parts[:]
            request.message.parts.extend(value)
    return request


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (_other(parts=[]), InvalidParamsError),
        (_other(parts=[Part(text=" \n")]), InvalidParamsError),
        (_other(parts=[Part(text="1 + 2?"), Part(url="https://example.org/a.png")]), ContentTypeNotSupportedError),
        (_other(parts=[Part(raw=b"1 + 2?", media_type="text/plain")]), ContentTypeNotSupportedError),
        (_other(parts=[Part(text="{}", media_type="application/json")]), ContentTypeNotSupportedError),
        (_other(modes=["image/png"]), ContentTypeNotSupportedError),
        (_other(push="https://example.org"), PushNotificationNotSupportedError),
        (message(task="nobody's"), UnsupportedOperationError),
    ],
    ids=["no parts", "no text", "a file", "bytes", "json", "for a picture", "push", "an old task"],
)
def test_what_a_team_cannot_do_is_refused_at_once(request_: Any, error: type[A2AError]) -> None:
    with agent() as s:
        for streaming in (False, True):
            with pytest.raises(error):
                asyncio.run(sent(s.url, request_, streaming=streaming))
        assert not s.episodes


def test_what_is_no_request_gets_the_protocols_errors() -> None:
    with agent() as s:
        for body, code in [
            (b"{", -32700), ([], -32600), ({"jsonrpc": "2.0", "id": 1, "method": "Sing"}, -32601),
            ({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": 1}}, -32602),
        ]:  # fmt: skip
            response = send(f"{s.url}/a2a", body, {"A2A-Version": "1.0"})
            assert (response.status, response.table["error"]["code"]) == (200, code)
        assert send(f"{s.url}/a2a", b"x" * (s.app.body_limits.max_body_bytes + 1)).status == 413


def test_tasks_are_found_by_their_ids_and_contexts_alone() -> None:
    async def look(url: str) -> None:
        async with client(url, streaming=False) as one:
            (event,) = [event async for event in one.send_message(message())]
            again = await one.get_task(GetTaskRequest(id=event.task.id))
            assert again.artifacts == event.task.artifacts
            listed = await one.list_tasks(ListTasksRequest(context_id=event.task.context_id))
            assert [task.id for task in listed.tasks] == [event.task.id]
            assert not (await one.list_tasks(ListTasksRequest(context_id="another"))).tasks
            with pytest.raises(UnsupportedOperationError, match="name a contextId"):
                await one.list_tasks(ListTasksRequest())
            with pytest.raises(TaskNotFoundError):
                await one.get_task(GetTaskRequest(id="another"))
            with pytest.raises(TaskNotCancelableError):
                await one.cancel_task(CancelTaskRequest(id=event.task.id))

    with agent() as s:
        asyncio.run(look(s.url))


def test_a_task_goes_on_without_its_client() -> None:
    async def leave_and_look(url: str, engine: Held) -> list[str]:
        async with client(url, streaming=False, polling=True) as one:
            (event,) = [event async for event in one.send_message(message())]
        async with client(url) as one:
            stream = one.subscribe(SubscribeToTaskRequest(id=event.task.id))
            events = [event, await anext(stream)]
            engine.may.set()
            return told(events + [event async for event in stream])

    with agent(engine=(engine := Held())) as s:
        words = asyncio.run(leave_and_look(s.url, engine))
        assert (words[0], *words[-2:]) == ("task submitted", "answer b says 0", "completed")


def test_a_cancelled_task_ends_and_makes_room() -> None:
    engine = Held()

    async def cancel(url: str) -> list[str]:
        async with client(url) as one:
            stream = one.send_message(message())
            events = [await anext(stream), await anext(stream)]
            await asyncio.to_thread(until, lambda: engine.waiting == 1)
            task = await one.cancel_task(CancelTaskRequest(id=events[0].task.id))
            assert WORDS[task.status.state] == "canceled"
            return told(events + [event async for event in stream])

    with agent(engine=engine, options=ServeOptions(concurrency=1, queue=0)) as s:
        assert asyncio.run(cancel(s.url)) == ["task submitted", "asked a", "canceled"]
        until(lambda: engine.waiting == 0 and s.app.admission.running == 0)
        engine.may.set()
        assert s.ask().status == 200
        assert 'status="499"} 1.0' in s.app.metrics.format_text().decode()


def test_places_are_those_of_all_requests() -> None:
    engine = Held()

    async def crowd(url: str) -> list[str]:
        first = asyncio.create_task(sent(url, message()))
        await asyncio.to_thread(until, lambda: engine.waiting == 1)
        refused = await sent(url, message(), streaming=True)
        status = refused[-1].status_update.status
        assert status.message.metadata["retryAfterSeconds"] >= 1
        assert "all places are taken" in status.message.parts[0].text
        engine.may.set()
        return [WORDS[status.state], *told(await first)]

    with agent(engine=engine, options=ServeOptions(concurrency=1, queue=0)) as s:
        assert asyncio.run(crowd(s.url)) == ["rejected", "task completed"]
        assert len(s.episodes) == 1


def test_a_team_that_cannot_answer_fails_its_task() -> None:
    with agent(engine=Held(), options=ServeOptions(timeout_seconds=0.05)) as s:
        (event,) = asyncio.run(sent(s.url, message()))
        assert WORDS[event.task.status.state] == "failed"
        assert event.task.status.message.parts[0].text == "the answer took over 0.05 s"
        assert event.task.status.message.metadata["status"] == 504


def test_of_tasks_that_have_ended_the_last_ones_are_kept() -> None:
    async def keep(**bounds: int) -> list[str]:
        kept, context = BoundedTaskStore(**bounds), ServerCallContext()
        for number, state in enumerate(("WORKING", "COMPLETED", "FAILED", "COMPLETED")):
            status = TaskStatus(state=TaskState.Value(f"TASK_STATE_{state}"))
            await kept.save(Task(id=str(number), context_id="1", status=status), context)
        return [name for name in "0123" if await kept.get(name, context)]

    size = Task(id="1", context_id="1", status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED)).ByteSize()
    assert asyncio.run(keep()) == ["0", "1", "2", "3"]
    assert asyncio.run(keep(max_tasks=2)) == ["0", "2", "3"]
    assert asyncio.run(keep(max_bytes=size)) == ["0", "3"]


def test_it_is_offered_over_http_alone_and_at_an_address() -> None:
    with pytest.raises(ValueError, match="--mcp stdio listens nowhere"):
        ServeOptions(mcp="stdio", a2a=True).check()
    with pytest.raises(ValueError, match="is no address such as https://"):
        ServeOptions(a2a=True, public_url="team.example.org").check()
    ServeOptions(mcp="http", a2a=True, public_url="https://team.example.org").check()


def test_a_page_of_another_host_is_refused() -> None:
    with agent() as s:
        assert send(f"{s.url}/a2a", {}, {"origin": "https://example.org"}).status == 403
    with agent(token="secret") as s:
        assert send(f"{s.url}/a2a", {}, {"origin": "https://example.org", **bearer("secret")}).status == 200


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="test_serve_command.py starts one by day: make nightly")
def test_as_a_command_it_answers_as_the_other_addresses_do_and_ends_when_told(
    trained: RunFolder, tmp_path: Path
) -> None:
    export = export_run(trained, "last", tmp_path / "team")
    coldly = [f"--agents.{role}.sampling.temperature=0" for role in ("reasoner", "actor")]

    async def ask(url: str, process: subprocess.Popen[str]) -> tuple[list[str], list[str]]:
        whole = told(await sent(url, message(TASK), "secret", streaming=True))
        async with client(url, "secret") as one:
            stream = one.send_message(message(TASK))
            first = await anext(stream)
            process.send_signal(signal.SIGTERM)
            return whole, told([first, *[event async for event in stream]])

    with command(str(export), "--a2a", "--token", "secret", *coldly) as (url, process):
        body = {"model": "team", "messages": [{"role": "user", "content": TASK}]}
        expected = send(f"{url}/v1/chat/completions", body, bearer("secret"), timeout=120).said
        assert "Weights: step_000002" in send(url + CARD, None, method="GET").table["description"]
        whole, begun = asyncio.run(ask(url, process))
        assert whole[-2:] == [f"answer {expected}", "completed"]
        assert [words for words in whole if words.startswith("asked")] == ["asked reasoner", "asked actor"]
        assert begun == whole
        assert process.wait(60) == 0
