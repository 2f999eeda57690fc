"""Recipes with remote models: what is refused, and what must be there."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marft.common.types import SamplingParams
from marft.config import parse_recipe
from marft.config.endpoint import OMITTABLE_FIELDS, EndpointSettings
from marft.inference.endpoints.client import Endpoint
from marft.inference.remote import _sampling_fields
from marft.rollout.local_runner import LocalRolloutRunner
from tests.endpoint import says, serving
from tests.helpers import recipe, shown_in_docs
from tests.remotely import ENDPOINT, team


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policies.reasoner.train": "lora"}, "set train = 'frozen'"),
        ({"policies.reasoner.adapter": "x"}, "takes no adapter"),
        ({"models.teacher.endpoint.local_model": "bas"}, "did you mean 'base'?"),
        ({"models.teacher.endpoint.local_model": "teacher"}, "is remote too"),
        ({"models.teacher.dtype": "float32"}, "a local model alone"),
        ({"models.teacher.endpoint.url": "localhost:8000"}, "must look like https://host/v1"),
        ({"models.teacher.endpoint.url": "http://me:secret@host/v1"}, "name the environment variable that holds it"),
        ({"models.teacher.endpoint.url": "http://host:99999/v1"}, "must look like https://host/v1"),
        ({"models.teacher.endpoint.url": "http://host /v1"}, "must look like https://host/v1"),
        ({"models.teacher.endpoint.extra_body": "{ n = 2 }"}, "must not hold n: one answer is read"),
        (
            {"models.teacher.endpoint.extra_body": "{ messages = [] }"},
            "must not hold messages: they are what the agent sees",
        ),
        ({"models.teacher.endpoint.omit": "['model']"}, "cannot leave out 'model': it has a key of its own"),
        (
            {"models.teacher.endpoint.omit": "['sed']"},
            "cannot leave out 'sed': no such field is sent; did you mean 'seed'?",
        ),
        ({"models.teacher.endpoint.max_retrys": "3"}, "did you mean 'max_retries'?"),
        ({"algorithm.teammate_text.coefficient": "0.5"}, "an endpoint (policies.reasoner) does not say"),
    ],
)
def test_recipes_that_cannot_work_are_refused(changes: dict[str, str], complaint: str) -> None:
    table = recipe()
    table["models"]["teacher"] = {"path": "gpt-x", "endpoint": ENDPOINT}
    table["policies"]["reasoner"] = {"model": "teacher", "train": "frozen"}
    words = [word for key, value in changes.items() for word in (f"--{key}", value)]
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(table, words)
    assert complaint in str(caught.value)


def test_the_example_of_the_docs_can_be_read() -> None:
    run = parse_recipe({"name": "shown", **shown_in_docs("docs/teams.md", "[models.teacher]")})
    assert run.trained_policies == ("actor",)
    assert set(type(run.models["teacher"].endpoint).model_fields) == run.models["teacher"].endpoint.model_fields_set  # type: ignore[union-attr]


def test_a_reader_is_needed_and_counts_as_used() -> None:
    table = recipe()
    table["models"] = {"teacher": {"path": "gpt-x", "endpoint": ENDPOINT}}
    table["policies"] = {name: {"model": "teacher", "train": "frozen"} for name in ("reasoner", "actor")}
    with pytest.raises(ValueError, match=r"add one: \[models.reader\] path = 'tiny'"):
        parse_recipe(table)
    table["models"]["reader"] = {"path": "tiny"}
    parse_recipe(table)
    table["models"]["other"] = {"path": "tiny"}
    with pytest.raises(ValueError, match=r"models.other: no policy uses it"):
        parse_recipe(table)


def test_a_key_that_is_not_there_and_a_context_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    with serving(lambda body, n: says("x")) as server:
        with pytest.raises(ValueError, match=r"export NOT_THERE="):
            LocalRolloutRunner(team(server, tmp_path, api_key_variable="NOT_THERE"))
        with pytest.raises(ValueError, match=r"models.teacher.context_length: 99999 tokens are more than"):
            LocalRolloutRunner(team(server, tmp_path, "--models.teacher.context_length", "99999"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.inference.endpoints.client.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install .*marft.*\[remote\]"):
        Endpoint("teacher", EndpointSettings(**ENDPOINT), "gpt-x")


def test_a_proxy_that_cannot_be_used_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://me:hush@127.0.0.1:1")
    before = threading.active_count()
    with pytest.raises(ValueError, match=r"endpoint 'teacher' cannot be used: .*check ALL_PROXY") as caught:
        Endpoint("teacher", EndpointSettings(**ENDPOINT), "gpt-x")
    assert "hush" not in str(caught.value)
    assert threading.active_count() == before


def test_a_recipe_may_leave_out_all_that_is_sent_and_no_more() -> None:
    sampling = SamplingParams(top_k=5, stop=("x",))
    assert {*_sampling_fields(sampling, 1), "response_format"} == set(OMITTABLE_FIELDS)


@pytest.mark.slow
def test_nothing_imports_the_client_before_it_is_needed() -> None:
    code = "import marft.inference.remote, marft.rewards.judge, marft.cli.main, sys; assert 'openai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
