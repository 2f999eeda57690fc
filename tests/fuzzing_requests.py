"""Mutated requests of all protocols to one team that is served, or that plays behind the gateway: what is asked of them
all, and 20,000 of them by hand.

python -m tests.fuzzing_requests              # 20,000 to a served team; or a number, and a first seed
python -m tests.fuzzing_requests --gateway    # 20,000 to the gateway; or a number, and a first seed
python -m tests.fuzzing_requests --calls      # 20,000 calls of A2A and MCP alone to a served team

After any of them, a plain request is answered as before: the demo's team on the bundled model that uses tools, sampled by
the engine in this process. About a third of the requests are sampled. A2A and MCP are drawn for a served team alone.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from marft.agents.game import Attempt
from marft.common.types import Task
from marft.config import parse_recipe
from marft.config.bundled import bundled_recipe
from marft.config.python_objects import ObjectPlaceholder
from marft.rollout.local_runner import LocalRolloutRunner
from marft_serve.gateway.client import Client
from marft_serve.gateway.listener import Listener
from marft_serve.gateway.program import Program
from marft_serve.serving.a2a import build_agent_routes
from marft_serve.serving.app import App
from marft_serve.serving.loader import load_team
from marft_serve.serving.mcp import build_team_server, combine_apps
from marft_serve.serving.options import ServeOptions
from marft_serve.serving.settings import ServedTeam, build_served_table
from marft_serve.serving.team_handler import TeamHandler
from tests.gateways import Response, send

T = TypeVar("T")
USER = {"role": "user", "content": "2 + 3 ="}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GREEDY = {"seed": 1, "max_tokens": 3, "temperature": 0}
SHARED = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "stream": False}
FUNCTION = {"name": "add", "description": "Add.", "parameters": SCHEMA}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
WHOLE: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [
            {"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "2 + 3 ="}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "7"}, USER,
        ],
        "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto", "parallel_tool_calls": True,
        "n": 1, "stop": ["!"], "stream_options": {"include_usage": True}, "max_tokens": 4, "max_completion_tokens": 4,
        "logprobs": True, "top_logprobs": 2, "metadata": {"a": "b"}, **SHARED,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    },
    "responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2 + 3 ="}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "7"}, USER,
        ],
        "instructions": "x", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "auto", "max_output_tokens": 4,
        "parallel_tool_calls": False, "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "store": False, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "metadata": {"a": "b"}, **SHARED,
    },
    "messages": {
        "messages": [
            USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "7"},
                                         {"type": "text", "text": "?"}]},
        ],
        "max_tokens": 4, "system": [{"type": "text", "text": "x"}], "stop_sequences": ["!"], **SHARED,
        "tools": [{"name": "add", "description": "Add.", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "metadata": {"user_id": "x"},
    },
}  # fmt: skip
WHOLE["messages/count_tokens"] = {key: WHOLE["messages"][key] for key in ("messages", "system", "tools")}
KNOWN = "the-task-that-is-known"  # stands for the id of an A2A task that has ended
MESSAGE = {
    "messageId": "m", "contextId": "c", "role": "ROLE_USER", "metadata": {"a": 1}, "extensions": ["x"],
    "parts": [{"text": "2 + 3 =", "mediaType": "text/plain", "metadata": {"a": 1}}, {"text": "?"}],
}  # fmt: skip
SENT = {
    "message": MESSAGE, "metadata": {"a": 1}, "tenant": "",
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 2, "returnImmediately": False},
}  # fmt: skip
BEFORE = {
    "message": {"kind": "message", "messageId": "m", "contextId": "c", "role": "user", "metadata": {"a": 1},
                "parts": [{"kind": "text", "text": "2 + 3 =", "metadata": {"a": 1}}]},
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 2, "blocking": True}, "metadata": {"a": 1},
}  # fmt: skip
PUSHED = {
    "taskId": KNOWN,
    "id": "p",
    "url": "https://example.org",
    "token": "x",
    "authentication": {"scheme": "Bearer"},
}
ABOUT = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"}, "progressToken": 1,
}  # fmt: skip
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "a2a": [
        *[("SendMessage", SENT), ("SendStreamingMessage", SENT), ("message/send", BEFORE), ("message/stream", BEFORE)] * 3,
        ("GetTask", {"id": KNOWN, "historyLength": 2, "tenant": ""}), ("tasks/get", {"id": KNOWN, "historyLength": 2}),
        ("ListTasks", {"contextId": "c", "status": "TASK_STATE_COMPLETED", "pageSize": 5, "pageToken": "", "historyLength": 2,
                       "statusTimestampAfter": "2026-01-01T00:00:00Z", "includeArtifacts": True}),
        ("CancelTask", {"id": KNOWN, "metadata": {"a": 1}}), ("tasks/cancel", {"id": KNOWN, "metadata": {"a": 1}}),
        ("SubscribeToTask", {"id": KNOWN}), ("tasks/resubscribe", {"id": KNOWN}), ("GetExtendedAgentCard", {"tenant": ""}),
        ("agent/getAuthenticatedExtendedCard", {}), ("CreateTaskPushNotificationConfig", PUSHED),
        ("GetTaskPushNotificationConfig", {"taskId": KNOWN, "id": "p"}), ("ListTaskPushNotificationConfigs", {"taskId": KNOWN}),
        ("DeleteTaskPushNotificationConfig", {"taskId": KNOWN, "id": "p"}), ("tasks/pushNotificationConfig/get", {"id": KNOWN}),
        ("tasks/pushNotificationConfig/set", {"taskId": KNOWN, "pushNotificationConfig": {"url": "https://example.org"}}),
    ],
    "mcp": [
        *[("tools/call", {"name": "ask_team", "arguments": {"task": "2 + 3 ="}, "_meta": ABOUT})] * 4,
        ("tools/list", {"cursor": "x", "_meta": ABOUT}), ("ping", {"_meta": ABOUT}), ("server/discover", {"_meta": ABOUT}),
        ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {"roots": {"listChanged": True}},
                        "clientInfo": {"name": "x", "version": "1"}}),
        ("resources/list", {"_meta": ABOUT}), ("resources/read", {"uri": "file:///x"}), ("prompts/list", {"cursor": "x"}),
        ("prompts/get", {"name": "x", "arguments": {"a": "b"}}), ("logging/setLevel", {"level": "info"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}}),
        ("notifications/initialized", {}), ("notifications/cancelled", {"requestId": 1, "reason": "x"}),
        ("notifications/progress", {"progressToken": 1, "progress": 0.5, "total": 1}),
    ],
}  # fmt: skip
STATUSES = (200, 400, 404, 413)
MCP_STATUSES = (202, *STATUSES, 406)
EPISODE = 500  # requests behind the gateway
INTERNAL = -32603  # JSON-RPC's 500
SPARE = (
    "tools",
    "tool_choice",
    "response_format",
    "text",
    "output_config",
    "top_logprobs",
    "logprobs",
    "messages",
    "input",
)
UNKNOWN = ("guided_json", "stop", "n", "top_k", "best_of", "min_p", "logit_bias", "functions", "x", "stop_token_ids")
EXTREMES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**30, -(10**30), 10**400, 0.5, -0.5, 5e-324, 1e308, -1e308,
    float("nan"), float("inf"), -float("inf"), "", " ", "x", "\0", "\ud800", "\udfff", "é" * 300, "日本", "x" * 5000, "assistant",
    "tool", "system", "<|im_end|>", "{{ x }}", "{% raw %}", [], {}, [[]], [{}], [None], {"": ""}, {"type": "text", "text": "x"},
    {"type": "image_url", "image_url": "x"}, [{"type": "text"}], {"$ref": "#"}, {"$ref": "https://example.org/x.json"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"enum": []}, {"const": 10**30},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, {"not": {}},
    {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(a|b){1,9999}"}, {"type": "array", "minItems": 10**9},
    {"type": "integer", "minimum": 5, "maximum": 1}, {"type": "number", "multipleOf": 0}, "required", "any", "none",
    {"type": "function", "function": {"name": "nobody"}}, {"type": "json_object"}, {"type": "tool", "name": "add"}, USER,
    "[" * 2000, '{"a":' * 500, "1" * 5000, '{"a": NaN}', '{"a": 1e999}', "[" * 900 + "]" * 900,
]  # fmt: skip


def places(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a request."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def _change(table: dict[str, Any], chance: random.Random) -> None:
    path = chance.choice(list(places(table)) or [("x",)])
    owner: Any = table
    for key in path[:-1]:
        owner = owner[key]
    how, key = chance.random(), path[-1]
    if how < 0.6:
        owner[key] = copy.deepcopy(chance.choice(EXTREMES))
    elif how < 0.7 and key in table:
        del table[key]
    elif how < 0.8:
        table[chance.choice(UNKNOWN)] = copy.deepcopy(chance.choice(EXTREMES))
    elif how < 0.9:
        value: Any = 1
        for _ in range(chance.choice((3, 50, 150, 400))):
            value = [value] if chance.random() < 0.5 else {"properties": value}
        owner[key] = value
    elif isinstance(owner, list):
        owner.extend(copy.deepcopy(owner) * chance.choice((1, 3, 100)))


def _vary(table: dict[str, Any], chance: random.Random) -> None:
    """Set the sampling of a request within its bounds, and leave out what few clients send: it is sampled."""
    for name in ("logprobs", "top_logprobs", "response_format", "text", "output_config", "include", "stream_options"):
        table.pop(name, None)
    for name in ("messages", "input"):
        if name in table and chance.random() < 0.5:
            table[name] = [
                {"role": "user", "content": chance.choice(("2 + 3 =", "é" * 300, "日本", "<|im_end|>", "{{ x }}"))}
            ]
    drawn = {
        "temperature": chance.choice((0, 1, chance.random())), "top_p": chance.choice((1, 0.01, chance.random())),
        "top_k": chance.choice((1, 5, 10**6)), "seed": chance.randrange(2**31),
        "stop": chance.choice((["!"], ["1"], ["1", "+ "])), "stop_sequences": chance.choice((["!"], ["=", "2"])),
    }  # fmt: skip
    table.update({name: value for name, value in drawn.items() if name in table})
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if name in table:
            table[name] = chance.choice((1, 2, 4, 30))


class Mutated(NamedTuple):
    """A request: where it goes, and what it is."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def one(seed: int, paths: Sequence[str] = tuple(WHOLE)) -> Mutated:
    """Return the request of a seed.

    Args:
        paths: of which it is one: requests of ``WHOLE``, and calls of ``CALLS``.
    """
    chance = random.Random(seed)
    path = chance.choice(list(paths))
    if path in CALLS:
        return _call(path, chance)
    table = copy.deepcopy(WHOLE[path])
    for name in SPARE:
        if name in table and name not in ("messages", "input") and chance.random() < 0.5:
            del table[name]
    table["model"] = chance.choice(("team", "reasoner", "actor", "actor", "actor"))
    table["stream"] = chance.random() < 0.2
    if path.endswith("tokens"):
        del table["stream"]
    if chance.random() < 0.4:
        _vary(table, chance)
        changes = chance.choice((0, 0, 1))
    else:
        changes = chance.choice((1, 1, 1, 2, 3))
    for _ in range(changes):
        _change(table, chance)
    return Mutated(path, _perhaps_cut(json.dumps(table).encode(), chance), {})


def _perhaps_cut(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body))] if chance.random() < 0.03 else body


def _call(path: str, chance: random.Random) -> Mutated:
    """A call of A2A or MCP: of JSON-RPC's shape, or of none."""
    method, params = chance.choice(CALLS[path])
    table: Any = {
        "jsonrpc": "2.0",
        "id": chance.choice((1, "1", 2**53)),
        "method": method,
        "params": copy.deepcopy(params),
    }
    if method.startswith("notifications/"):
        del table["id"]
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
        _change(table, chance)
    if chance.random() < 0.05:
        table = chance.choice(
            ([table], [table, table], [], [[table]], "x", 3, None, {}, {"result": 1, "id": 1, "jsonrpc": "2.0"})
        )
    body = json.dumps(table).encode()
    if chance.random() < 0.05:
        body = body.replace(b": 1", b": " + chance.choice((b"9" * 5000, b"1e999", b"-0", b"[" * 3000 + b"]" * 3000)), 1)
    headers = {"content-type": "application/json", "accept": "application/json"}
    if path == "mcp":
        headers |= {"mcp-method": method, "mcp-name": "ask_team"} if chance.random() < 0.5 else {}
        headers["mcp-protocol-version"] = chance.choice(("2025-03-26", "2025-06-18", "2026-07-28", "2026-07-28", "x"))
    elif method[0].isupper():
        headers["a2a-version"] = chance.choice(("1.0", "1.0", "1.0", "0.3", "x"))
    for name in list(headers):
        if chance.random() < 0.02:
            headers[name] = chance.choice(("", "x", "*/*", "text/plain", "9" * 1000, "é"))
    return Mutated(path, _perhaps_cut(body, chance), headers)


class Pestered:
    """A team that is asked at an address, and what a plain request was answered at first.

    Args:
        url: where its agents are asked.
        plain: the fields of a plain request, beside its model and messages.
        root: where it takes calls of A2A and MCP too; "" for a team that takes none.
        paths: to which requests go; all that it takes by default.
    """

    def __init__(self, url: str, plain: Mapping[str, object], root: str = "", paths: Sequence[str] = ()) -> None:
        self.url, self.fields, self.root = url, plain, root
        self.paths = paths or (*WHOLE, *(CALLS if root else ()))
        self.first = self.plain()
        self.known = self._task() if root else ""

    def _task(self) -> str:
        """The id of an A2A task that has ended."""
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": SENT}
        return str(send(f"{self.root}/a2a", call, {"a2a-version": "1.0"}, timeout=60).table["result"]["task"]["id"])

    def plain(self) -> str:
        """What a plain request is answered."""
        answer = send(f"{self.url}/chat/completions", {"model": "actor", "messages": [USER], **self.fields}, timeout=60)
        assert answer.status == 200, answer.body
        return answer.said

    def judged(self, seed: int) -> int:
        """The status of a mutated request.

        Raises:
            AssertionError: it is none of a good server, or the next plain request is answered otherwise.
        """
        path, body, headers = one(seed, self.paths)
        if path in CALLS:
            body = body.replace(KNOWN.encode(), self.known.encode())
            answer = send(f"{self.root}/{path}", body, headers, timeout=60)
            assert answer.status in (MCP_STATUSES if path == "mcp" else STATUSES), (answer.status, answer.body[:500])
            status = _judge_call(answer)
        else:
            answer = send(f"{self.url}/{path}", body, headers, timeout=60)
            assert answer.status in STATUSES, answer.body[:500]
            _check(answer, path)
            status = answer.status
        assert self.plain() == self.first, "a plain request is answered otherwise"
        return status


def _judge_call(answer: Response) -> int:
    """See that what came back is JSON-RPC's → 200 where the call was answered, 202 where it asks for no answer, else 400."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[5:] for line in answer.body.splitlines() if line.startswith(b"data:")]
    else:
        lines = [answer.body]
    if answer.status == 400 and "json" not in answer.headers.get("content-type", ""):
        assert answer.body.strip()
        return 400
    if not b"".join(lines).strip():
        assert answer.status in (202, 406), answer.status
        return 202 if answer.status == 202 else 400
    if answer.status == 202:
        assert json.loads(lines[0]) is None
        return 202
    good = answer.status == 200
    for said in map(json.loads, lines):
        if "error" not in said:
            assert answer.status == 200, said
            assert "result" in said, said
            good &= not (isinstance(said["result"], dict) and said["result"].get("isError"))
            continue
        assert said["error"].get("code") != INTERNAL, said
        assert said["error"]["message"].strip(), said
        good = False
    return 200 if good else 400


def _check(answer: Response, path: str) -> None:
    """See that an answer is one of its protocol."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert b'"server_error"' not in answer.body, answer.body[-500:]
        assert b'"api_error"' not in answer.body, answer.body[-500:]
        return
    table = answer.table
    if answer.status != 200:
        assert table["error"]["message"].strip()
        assert (table.get("type") == "error") is path.startswith("messages")


def _recipe() -> dict[str, Any]:
    """The demo's recipe, on a model whose template shows tools."""
    table = {"name": "demo", **tomllib.loads(bundled_recipe("demo").read_text(encoding="utf-8"))}
    table["models"]["base"]["path"] = "tiny-tools"
    return table


def with_team(work: Callable[[Pestered], T], paths: Sequence[str] = ()) -> T:
    """Do something with the demo's team, untrained, behind a server in this process: an agent of A2A, a tool of MCP."""
    served = ServedTeam(parse_recipe(build_served_table(_recipe()), ["--threads", "1"]))
    with load_team(served) as rollouts:

        async def serve() -> T:
            app = App(TeamHandler(rollouts.game, "demo"), asyncio.get_running_loop(), ServeOptions())
            app.asgi.routes.extend(build_agent_routes(app, served))
            listener = Listener(combine_apps(app, build_team_server(app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
            url = listener.address
            try:
                return await asyncio.to_thread(lambda: work(Pestered(f"{url}/v1", GREEDY, url, paths)))
            finally:
                listener.close()

        return rollouts.wait_for(serve())


def with_gateway(work: Callable[[Pestered], T]) -> T:
    """Do something with the demo's team, untrained, as a program of one long episode: behind the gateway."""
    found: list[T] = []

    def solve(_: Task, clients: Mapping[str, Client]) -> str:
        found.append(work(Pestered(clients["actor"].base_url, {})))
        return ""

    program = Program(call=ObjectPlaceholder(solve), timeout_seconds=1e6)  # type: ignore[arg-type]
    table = _recipe()
    for agent in table["agents"]:
        agent["sampling"]["temperature"] = 0.01  # a plain request is answered alike, whatever is drawn
    with LocalRolloutRunner(parse_recipe(table, ["--threads", "1", "--rollout.timeout_seconds", "1e6"])) as rollouts:
        attempts = [Attempt(rollouts.game.environment.tasks("train")[0], "fuzzing")]
        (episode,) = rollouts.play(attempts, replace(rollouts.team, organization=program))
    assert episode.status == "terminated", episode.error
    return found[0]


def pester(team: Pestered, seeds: Sequence[int], each: Callable[[int, BaseException], None]) -> Counter[int]:
    """Send mutated requests → how often each status came.

    Args:
        each: told what goes wrong, and of which seed.
    """
    statuses = Counter[int]()
    for seed in seeds:
        if seed % EPISODE == EPISODE - 1:
            print(f"seed {seed}: {dict(statuses)}", flush=True)
        try:
            statuses[team.judged(seed)] += 1
        except Exception as error:
            each(seed, error)
    return statuses


def pester_anew(
    served: Callable[[Callable[[Pestered], Counter[int]]], Counter[int]], seeds: range,
    each: Callable[[int, BaseException], None],
) -> Counter[int]:  # fmt: skip
    """The same; behind the gateway in one episode after another, for in a long one each request takes longer."""
    statuses = Counter[int]()
    size = EPISODE if served is with_gateway else max(1, len(seeds))
    for first in seeds[::size]:
        part = range(first, min(first + size, seeds.stop))
        statuses += served(lambda team, part=part: pester(team, part, each))  # type: ignore[misc]
    return statuses


def main() -> None:
    words = [int(word) for word in sys.argv[1:] if not word.startswith("--")]
    served: Callable[[Callable[[Pestered], Counter[int]]], Counter[int]] = (
        with_gateway if "--gateway" in sys.argv else with_team
    )
    if "--calls" in sys.argv:
        served = partial(with_team, paths=tuple(CALLS))
    count, first = (*words, *(20_000, 0)[len(words) :])[:2]
    faults, began = Counter[str](), time.perf_counter()

    def say(seed: int, error: BaseException) -> None:
        kind = f"{type(error).__name__}: {str(error)[:200]}"
        faults[kind[:60]] += 1
        if faults[kind[:60]] <= 3:
            print(f"seed {seed}: {kind}", flush=True)

    statuses = pester_anew(served, range(first, first + count), say)
    print(dict(statuses), f"in {time.perf_counter() - began:.0f} s; {sum(faults.values())} faults")
    for kind, number in faults.most_common(30):
        print(number, kind)


if __name__ == "__main__":
    main()
