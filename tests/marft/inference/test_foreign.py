"""An engine of somebody else's that does anything wrong ends the run in one sentence with its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from marft.common.errors import EpisodeFailedError, RunError
from marft.common.reasoning import StopString
from marft.common.token_data import GrammarMasks
from marft.common.types import ActionKey, Completion, Prompt, SamplingParams
from marft.config.interfaces.engine import Engine
from marft.inference.engine_settings import Local
from marft.inference.plugin_engine import PluginEngine, _has_valid_masks, find_problem
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings

FINE = Completion(np.array([5, 6, 2], np.int32), np.array([-0.1, -0.2, -0.3], np.float32), "ab", "stop")


async def raises(*_: object) -> None:
    raise RuntimeError("the server is gone")


def nothing_to_open(engine: Any) -> Any:
    return None


def a_method_raises(method: str) -> Callable[[Any], Any]:
    def spoil(engine: Any) -> Any:
        setattr(engine, method, raises)
        return engine

    return spoil


def usage_in_words(engine: Any) -> Any:
    engine.usage = lambda: {"sampled_tokens": "many"}
    return engine


def other_ids(engine: Any) -> Any:
    sample = engine.sample

    async def spoiled(*asked: Any) -> Completion:
        found: Completion = await sample(*asked)
        return replace(found, tokens=np.full(len(found.tokens), 10**6, np.int32))

    engine.sample = spoiled
    return engine


async def lost(*_: object) -> None:
    raise EpisodeFailedError("failed", "one request was lost")


def loses_all(engine: Any) -> Any:
    engine.sample = lost
    return engine


def test_it_is_asked_to_stop_at_texts_and_at_no_marks_of_ours() -> None:
    asked: list[SamplingParams] = []

    class Listening:
        async def sample(self, *given: Any) -> Completion:
            asked.append(given[2])
            return FINE

    engine = PluginEngine("theirs", cast("Engine", Listening()), {"p": 10})
    key = ActionKey("train/0", "t", sample=0, step=0, agent="a", call=0)
    prompt = Prompt(np.array([3], np.int32))
    asyncio.run(engine.sample("p", prompt, SamplingParams(stop=("\n", StopString("</call>", in_reasoning=False))), key))
    assert asked == [SamplingParams(stop=("\n",))]


SPOILS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing to open": (nothing_to_open, r"open\(\) returned a NoneType, which has no sample, no choose"),
    "sampling raises": (
        a_method_raises("sample"),
        r"sample\(\) raised RuntimeError: the server is gone \(test_foreign",
    ),
    "publishing raises": (a_method_raises("publish"), r"publish\(\) raised RuntimeError"),
    "settling raises": (a_method_raises("wait_idle"), r"wait_idle\(\) raised RuntimeError"),
    "usage in words": (usage_in_words, r"usage\(\) returned .*no numbers with 'sampled_tokens'"),
    "ids that no model knows": (
        other_ids,
        r"sample\(\) returned ids from 1000000 to 1000000, and the model knows those",
    ),
}


class Spoiled(Local):
    """The engine of this process with a misdeed."""

    how: str

    def open(self, *parts: Any) -> Any:
        return SPOILS[self.how][0](super().open(*parts)) if self.how in SPOILS else loses_all(super().open(*parts))


@pytest.mark.parametrize("how", SPOILS)
def test_the_run_ends_with_its_name(how: str, tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, engine={"kind": "tests.marft.inference.test_foreign:Spoiled", "how": how})
    with pytest.raises(
        (RunError, ValueError), match=f"^engine 'tests.marft.inference.test_foreign:Spoiled': {SPOILS[how][1]}"
    ):
        train(run, RunFolder(tmp_path / "test"))


def test_an_episode_that_it_cannot_sample_is_lost_alone(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, engine={"kind": "tests.marft.inference.test_foreign:Spoiled", "how": "loses"})
    with pytest.raises(RunError, match="none of 4 episodes could be scored; the first says: one request was lost"):
        train(run, RunFolder(tmp_path / "test"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "a NoneType, not a marft.common.types.Completion"),
        (replace(FINE, tokens=FINE.tokens[:0], log_probs=FINE.log_probs[:0]), "0 tokens where 1 to 3"),
        (replace(FINE, tokens=np.tile(FINE.tokens, 2)), "6 tokens where 1 to 3 were asked for"),
        (replace(FINE, log_probs=FINE.log_probs[:2]), "2 log-probs for 3 tokens"),
        (replace(FINE, tokens=FINE.tokens.astype(np.float32)), "tokens that are no array of one dimension with ids"),
        (replace(FINE, tokens=FINE.tokens[None]), "tokens that are no array"),
        (replace(FINE, log_probs=[-0.1, -0.2, -0.3]), "log_probs that are no array"),  # type: ignore[arg-type]
        (replace(FINE, tokens=np.array([5, 9, 2], np.int32)), "ids from 2 to 9, and the model knows those below 9"),
        (replace(FINE, tokens=np.array([5, -1, 2], np.int32)), "ids from -1 to 5"),
        (replace(FINE, text=b"ab"), "no text"),  # type: ignore[arg-type]
        (replace(FINE, finish="done"), "an end that is none of stop, length"),  # type: ignore[arg-type]
        (replace(FINE, versions=None), "no versions"),  # type: ignore[arg-type]
    ],
)
def test_what_nobody_could_learn_from_is_told_apart(given: object, said: str) -> None:
    assert said in find_problem(given, 3, 9)


@pytest.mark.parametrize("tells", [False, True])
def test_a_listener_is_given_to_an_engine_that_says_that_it_tells(tells: bool) -> None:
    """Another one may send what it is asked to another process, where no function goes."""
    given: list[Any] = []

    class Asked:
        async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
            given.append(sampling.on_token)
            return FINE

    heard: list[int] = []
    engine = PluginEngine("mine", cast("Engine", Asked()), {"a": 10}, tells)
    sampling = SamplingParams(on_token=heard.append)
    asyncio.run(engine.sample("a", Prompt(np.array([1], np.int32)), sampling, ActionKey("s", "t", 0, 0, "a", 0)))
    assert given == [sampling.on_token if tells else None]


def test_what_is_as_it_should_be_has_no_problem() -> None:
    assert find_problem(FINE, 3, 9) == ""
    assert find_problem(replace(FINE, tokens=FINE.tokens.astype(np.int64)), 3, 7) == ""


@pytest.mark.parametrize(
    ("masks", "forced", "says"),
    [
        (GrammarMasks.from_masks([1, 2], [b"\xff", b"\x06"]), (0,), True),
        (GrammarMasks.from_masks([1, 2], [b"\xff", b"\x06"]), (), False),
        (GrammarMasks.from_masks([1, 2], [b"\x01", b"\x06"]), (0,), False),
        (None, (0, 1, 2), True),
        (None, (), False),
    ],
)
def test_masks_of_a_grammar_are_of_all_tokens_and_allow_for_them(
    masks: GrammarMasks | None, forced: tuple[int, ...], says: bool
) -> None:
    assert _has_valid_masks(replace(FINE, masks=masks, forced=forced)) is says
