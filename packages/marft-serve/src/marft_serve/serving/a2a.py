"""Team behind the Agent2Agent protocol (A2A): an agent card, and tasks at ``/a2a``."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import Event, EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from marft.common.version import __version__
from marft_serve.gateway.errors import RequestError
from marft_serve.serving.admission import BusyError
from marft_serve.serving.app import App
from marft_serve.serving.options import A2A_PATH
from marft_serve.serving.rpc_checks import read_call, replay_body
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.team_handler import TEAM_ALIAS, TeamHandler

FINAL_STATES = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_REJECTED,
)
ACCEPTED_MODES = ("text/plain", "text/*", "*/*", "text")  # MIME types for answers, in the forms that clients use
MAX_FINISHED_TASKS, MAX_FINISHED_BYTES = 1000, 64 * 2**20  # limits for finished tasks: number, total bytes
QUIET_LOGGERS = (  # loggers that would log client errors
    "a2a.server.routes.jsonrpc_dispatcher",
    "a2a.compat.v0_3.jsonrpc_adapter",
    "a2a.server.request_handlers.request_handler",
)
PROTOCOL_VERSIONS = ("1.0", "0.3")  # supported protocol versions, in order of preference
TEXT_MODES = ("text/plain",)


def build_agent_routes(app: App, served_team: ServedTeam, address: str = "") -> list[Route]:
    """Return the A2A routes for a team; its tasks share the request queue.

    Args:
        app: the server's app.
        served_team: the team.
        address: public URL of the server; "" for the URL in the request for the card.
    """
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)

    def build_card(base: str) -> AgentCard:
        """Return the agent card for a base URL."""
        return build_agent_card(app.handler, served_team, bool(app.options.token), base.rstrip("/") + A2A_PATH)

    handler = A2aRequestHandler(TeamExecutor(app), BoundedTaskStore(), build_card(address))
    rpc = create_jsonrpc_routes(handler, A2A_PATH, enable_v0_3_compat=True)[0].endpoint

    async def answer_call(request: Request) -> Response:
        """Check a call, then pass it on."""
        body = await read_call(app, request, 200)
        if isinstance(body, Response):
            return body
        response: Response = await rpc(Request(request.scope, replay_body(body, request.receive)))
        return response

    async def serve_card(request: Request) -> Response:
        """Respond with the agent card."""
        response: Response = await create_agent_card_routes(build_card(address or str(request.base_url)))[0].endpoint(
            request
        )
        return response

    return [
        Route(AGENT_CARD_WELL_KNOWN_PATH, serve_card, methods=["GET"]),
        Route(A2A_PATH, answer_call, methods=["POST"]),
    ]


class StatusUpdater(TaskUpdater):
    """Publisher for a task's status; ignores updates after a final status, for example after a cancellation."""

    async def update_status(self, *arguments: Any, **named: Any) -> None:
        """Publish a status; do nothing after a final status."""
        with suppress(RuntimeError):  # raised after a final status
            await super().update_status(*arguments, **named)


class TeamExecutor(AgentExecutor):
    """Executor that runs each task as a request to the whole team.

    Messages from the agents update the task's status. The answer is its artifact.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._updaters: dict[str, StatusUpdater] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run a task to its end."""
        id, message = context.task_id, context.message
        assert id
        assert context.context_id
        assert message
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        task = Task(id=id, context_id=context.context_id, status=status, history=[message])
        updater = self._updaters[id] = StatusUpdater(event_queue, id, context.context_id)
        try:
            await event_queue.enqueue_event(task)
            await self._run_task(get_text(message), updater)
        finally:
            del self._updaters[id]

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:  # noqa: ARG002
        """Publish the cancellation of a task; the caller ends its work."""
        updater = self._updaters.get(context.task_id or "")
        if updater is not None:
            await updater.cancel()

    async def _run_task(self, text: str, updater: StatusUpdater) -> None:
        async def report(progress: Mapping[str, str]) -> None:
            """Publish progress."""
            await _publish_progress(progress, updater)

        try:
            name, result = await self.app.ask_team(text, report)
        except RequestError as error:
            metadata: dict[str, object] = {"status": error.status}
            if isinstance(error, BusyError):
                await updater.reject(
                    _build_message(updater, str(error), {**metadata, "retryAfterSeconds": error.retry_seconds})
                )
            else:
                await updater.failed(_build_message(updater, str(error), metadata))
            return
        answer = str(result.replies[0].message["content"])
        metadata = {"request": name, "tokens": {"read": result.prompt_tokens, "sampled": result.sampled_tokens}}
        await updater.add_artifact([Part(text=answer)], name="answer", metadata=metadata, last_chunk=True)
        await updater.complete()


async def _publish_progress(progress: Mapping[str, str], updater: StatusUpdater) -> None:
    """Publish progress: the requested agent, or a finished action.

    The update for an action includes its text unless it is the answer.
    """
    if progress["state"] == "asked":
        await updater.update_status(TaskState.TASK_STATE_WORKING, metadata={"asked": progress["agent"]})
    elif progress["state"] == "acted":
        metadata = {"agent": progress["agent"], "action": progress["action"]}
        if "text" in progress:
            await updater.start_work(_build_message(updater, progress["text"], metadata))
        else:
            await updater.update_status(TaskState.TASK_STATE_WORKING, metadata=metadata)


def _build_message(updater: StatusUpdater, text: str, metadata: Mapping[str, object]) -> Message:
    return updater.new_agent_message([Part(text=text)], dict(metadata))


class A2aRequestHandler(DefaultRequestHandler):
    """Request handler with immediate A2A errors for unsupported requests."""

    def __init__(self, executor: TeamExecutor, store: BoundedTaskStore, card: AgentCard) -> None:
        super().__init__(agent_executor=executor, task_store=store, agent_card=card)

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Message | Task:
        """Run a task and respond at its end."""
        check_message(params)
        answer: Message | Task = await super().on_message_send(params, context)
        return answer

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Run a task and stream its events."""
        check_message(params)
        async for event in super().on_message_send_stream(params, context):
            yield event

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List a context's tasks.

        All clients share one token, or need none. So a client only sees tasks from contexts that it can name.
        """
        if not params.context_id:
            raise UnsupportedOperationError("clients are not told apart here: name a contextId, or ask for a task")
        listed: ListTasksResponse = await super().on_list_tasks(params, context)
        return listed


def check_message(params: SendMessageRequest) -> None:
    """Check that a team can work on a message.

    Raises:
        PushNotificationNotSupportedError: it asks for push notifications.
        ContentTypeNotSupportedError: it has another content type than text, or asks for another one.
        UnsupportedOperationError: it continues a task.
        InvalidParamsError: it has no text.
    """
    modes, message = params.configuration.accepted_output_modes, params.message
    if params.configuration.HasField("task_push_notification_config"):
        raise PushNotificationNotSupportedError
    if modes and not set(modes) & set(ACCEPTED_MODES):
        raise ContentTypeNotSupportedError(f"a team answers in text/plain, and {', '.join(modes)} is asked for")
    if message.task_id:
        raise UnsupportedOperationError("a team works on a task once: send a message without taskId")
    for part in message.parts:
        kind = part.media_type.partition(";")[0].strip()
        if part.WhichOneof("content") != "text" or kind not in ("", "text/plain"):
            raise ContentTypeNotSupportedError("a team reads text/plain alone")
    if message.parts and not get_text(message).strip():
        raise InvalidParamsError("the message has no text")


def get_text(message: Message) -> str:
    """Return a message's text: its text parts, joined by line breaks."""
    return "\n".join(part.text for part in message.parts)


class BoundedTaskStore(InMemoryTaskStore):
    """Store for all running tasks and the latest finished tasks, limited by number and total bytes."""

    def __init__(self, max_tasks: int = MAX_FINISHED_TASKS, max_bytes: int = MAX_FINISHED_BYTES) -> None:
        super().__init__()
        self._max_tasks, self._max_bytes = max_tasks, max_bytes
        self._finished_sizes: dict[str, int] = {}  # size in bytes by id, in order of completion

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task's current state; drop the oldest finished tasks beyond the limits."""
        await super().save(task, context)
        if task.status.state not in FINAL_STATES:
            return
        self._finished_sizes[task.id] = task.ByteSize()
        while len(self._finished_sizes) > self._max_tasks or sum(self._finished_sizes.values()) > self._max_bytes:
            oldest = next(iter(self._finished_sizes))
            del self._finished_sizes[oldest]
            await self.delete(oldest, context)


def build_agent_card(handler: TeamHandler, served_team: ServedTeam, token: bool, url: str) -> AgentCard:
    """Return the agent card for a team.

    Args:
        handler: the request handler of the team.
        served_team: the team.
        token: True if requests need a token.
        url: URL for tasks.
    """
    name = handler.team_names[0]
    usage = (
        "Give it a task in words; it works on it once, in one go, and its answer is a text. Each message is a task of "
        "its own: earlier ones of the same context are not read."
    )
    skill = AgentSkill(
        id=TEAM_ALIAS,
        name=f"Ask the team {name}",
        description=usage,
        tags=["marft", "multi-agent"],
        input_modes=TEXT_MODES,
        output_modes=TEXT_MODES,
    )
    card = AgentCard(
        name=name,
        description=f"{describe_team(served_team)} {usage}",
        version=_get_checkpoint_name(served_team) or __version__,
        skills=[skill],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=TEXT_MODES,
        default_output_modes=TEXT_MODES,
    )
    for version in PROTOCOL_VERSIONS:
        card.supported_interfaces.add(url=url, protocol_binding="JSONRPC", protocol_version=version)
    if token:
        card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
        card.security_schemes["key"].api_key_security_scheme.location = "header"
        card.security_schemes["key"].api_key_security_scheme.name = "x-api-key"
        for scheme in ("bearer", "key"):  # one of the two is enough
            card.security_requirements.add().schemes[scheme].SetInParent()
    return card


def describe_team(served_team: ServedTeam) -> str:
    """Return a description with the team's agents, organization, weights and accuracy."""
    agents = [agent.role + (" (answers)" if agent.answers else "") for agent in served_team.run.agents]
    organization = served_team.run.model_dump(mode="json", include={"team"})["team"]["organization"]
    sentences = [
        f"A team of language models that was trained with MARFT: {', '.join(agents)}.",
        f"Organization: {organization}.",
    ]
    weights = _get_checkpoint_name(served_team)
    if weights:
        sentences.append(f"Weights: {weights}.")
    return " ".join([*sentences, *_describe_accuracies(served_team)])


def _get_checkpoint_name(served_team: ServedTeam) -> str:
    if served_team.export is not None:
        return served_team.export.manifest.checkpoint.name
    return served_team.checkpoint.name if served_team.checkpoint is not None else ""


def _describe_accuracies(served_team: ServedTeam) -> list[str]:
    """Return sentences with the accuracies in an export's manifest."""
    if served_team.export is None:
        return []
    weights = _get_checkpoint_name(served_team)
    return [
        f"Accuracy on {evaluation['tasks']} held-out tasks: "
        f"{100 * evaluation['accuracy']:.1f} % ({evaluation['mode']})."
        for evaluation in served_team.export.manifest.evaluations
        if evaluation["checkpoint"] == weights
        and evaluation.get("accuracy") is not None
        and not evaluation["shuffled_messages"]
    ]
