"""What endpoints answer, read strictly: what is paid for is counted, and nothing goes on unread or unlimited."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from marft.common.errors import EpisodeFailedError
from marft.common.usage import Usage
from marft.inference.endpoints.client import MAX_RESPONSE_BYTES, clean_text
from marft.inference.endpoints.responses import compute_usage, parse_body, parse_response
from tests.endpoint import Reply, error, says, serving
from tests.remotely import ask, asking, teammates


@pytest.mark.slow
def test_a_server_that_does_not_count_loses_nothing() -> None:
    table = json.loads(says("five").body)
    table["usage"] = {"prompt_tokens": None, "completion_tokens": 3, "total_tokens": None}
    with serving(lambda body, n: Reply(json.dumps(table).encode())) as server, asking(server) as endpoint:
        done = ask(teammates(endpoint))
        body = parse_body(json.dumps(table).encode())
        assert compute_usage(body, endpoint.settings, 2) == Usage(0, 3, retries=2)
    assert (done.text, done.usage) == ("five", Usage(0, 3))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (says("Half of it", finish="content_filter"), "content_filter, the server has held it back"),
        (says(None), "neither content nor tool calls"),
    ],
)
def test_what_comes_to_nothing_is_a_failure_that_has_been_paid_for(reply: Reply, reason: str) -> None:
    with (
        serving(lambda body, n: reply) as server,
        asking(server, price_per_million_prompt_tokens=1e6) as endpoint,
        pytest.raises(EpisodeFailedError, match=reason),
    ):
        ask(teammates(endpoint))
    assert endpoint.total_usage == Usage(7, 3, 7.0)


def test_no_name_of_a_tool_is_a_book() -> None:
    body: dict[str, Any] = {"choices": [{"message": {"tool_calls": [{"function": {"name": "x" * 100_000}}]}}]}
    with pytest.raises(ValueError, match="at most 200 characters") as caught:
        parse_response(parse_body(json.dumps(body).encode()), Usage())
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("reply", [Reply(b" " * (MAX_RESPONSE_BYTES + 1)), error(500, "x" * MAX_RESPONSE_BYTES)])
def test_no_more_of_an_answer_is_read_than_anybody_could_mean(reply: Reply) -> None:
    with (
        serving(lambda body, n: reply) as server,
        asking(server, max_retries=3) as endpoint,
        pytest.raises(EpisodeFailedError, match=r"'teacher' \(.*\) sent an answer of more than 16 MiB"),
    ):
        ask(teammates(endpoint))
    assert len(server.requests) == 1


def test_an_answer_whose_size_cannot_be_known_is_refused() -> None:
    packed = Reply(gzip.compress(says("x").body), headers={"Content-Encoding": "gzip"})
    with (
        serving(lambda body, n: packed) as server,
        asking(server) as endpoint,
        pytest.raises(EpisodeFailedError, match="in 'gzip', which was not asked for"),
    ):
        ask(teammates(endpoint))
    assert server.headers[0]["accept-encoding"] == "identity"


def test_what_a_server_says_of_an_error_can_be_stored_and_shown() -> None:
    assert clean_text("a\x1b[2Jb\x00c\ud800\x9b d\n\te sk-1", ["sk-1"]) == "a\ufffd[2Jb\ufffdc?\ufffd d e ***"
    with (
        serving(lambda body, n: error(400, "\x1b]0;title\x07 no")) as server,
        asking(server) as endpoint,
        pytest.raises(EpisodeFailedError, match=r"It said: .*title") as caught,
    ):
        ask(teammates(endpoint))
    assert "\x1b" not in str(caught.value)
