"""An engine in a process of its own: what it is given and asked, what comes back, and what happens when it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.common.errors import EpisodeFailedError, RunError
from marft.common.processes.messages import LENGTHS, decode_frame, encode_frame
from marft.common.types import ActionKey, Prompt, SamplingParams, VersionRange
from marft.inference.subprocess_engine.engine import PendingRequest, SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.messages import (
    FROM_ENGINE,
    TO_ENGINE,
    CancelRequest,
    EngineInit,
    LoadCommand,
    SampleRequest,
    TokenChunk,
)
from marft.inference.subprocess_engine.python_environment import find_python
from marft.inference.subprocess_engine.vllm_server import build_prefix_tree
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import ROOT

T = TypeVar("T")
nightly = pytest.mark.skipif(
    not NIGHT, reason="played in tests/marft/inference/test_engine_lives.py, with processes: make nightly"
)
START = "import sys; sys.path[:] = {path!r}; from tests.engine_apart import main; main({descriptor})"
KINDS = {kind.__name__: kind for kind in (*TO_ENGINE, *FROM_ENGINE)}
PROMPT = Prompt(np.array([5, 6, 7, 8], np.int32))


class Weights:
    """What is published of a policy: written down as it is then."""

    def __init__(self) -> None:
        self.written: list[Path] = []

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "adapter").write_text("weights", encoding="utf-8")
        self.written.append(folder)

    def parameters(self) -> dict[str, Any]:
        return {}


def key(call: int = 0) -> ActionKey:
    return ActionKey("train/0", "t", 0, 0, "actor", call)


def command(descriptor: int) -> list[str]:
    return [sys.executable, "-c", START.format(path=[str(ROOT), *sys.path], descriptor=descriptor)]


@pytest.fixture
def with_engine(
    tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Runs what is done with an engine whose program does as it is told."""
    monkeypatch.setattr("marft.inference.subprocess_engine.engine.POLL_SECONDS", 0.1)

    def run(use: Callable[[SubprocessEngine, Weights], Awaitable[T]], *, patience: float = 20.0, **does: Any) -> T:
        async def whole() -> T:
            weights = Weights()
            opened = EngineInit("model", "float32", 64, 4, 1, 8, 0, {"folder": str(tmp_path), **does})
            policies = {"actor": SubprocessPolicy(tiny_tokenizer, (2,), weights.save)}
            engine = SubprocessEngine("fake", command, opened, policies, seed=1, timeout=patience)
            try:
                await engine.start()
                return await use(engine, weights)
            finally:
                await engine.close()
                assert not any(folder.path.exists() for folder in engine._weight_transfer.folders)

        return asyncio.run(asyncio.wait_for(whole(), 60))

    return run


async def said(engine: SubprocessEngine, call: int = 0, **sampling: Any) -> Any:
    return await engine.sample("actor", PROMPT, SamplingParams(**{"max_new_tokens": 6, **sampling}), key(call))


class TestFrames:
    def test_a_message_of_the_other_direction_is_none(self) -> None:
        frame = encode_frame(LoadCommand(1, "actor", 0))
        _, size = LENGTHS.unpack(frame[: LENGTHS.size])
        with pytest.raises(ValueError, match="no message"):
            decode_frame(frame[LENGTHS.size :], size, {kind.__name__: kind for kind in FROM_ENGINE})

    @pytest.mark.parametrize(("kind", "other"), [(b"<i4", b"|O8"), (b'""', b"12")])
    def test_arrays_of_objects_and_numbers_for_texts_are_no_message(self, kind: bytes, other: bytes) -> None:
        frame = encode_frame(TokenChunk(1, np.zeros(1, np.int32), np.zeros(1, np.float32), "", 0, 0)).replace(
            kind, other
        )
        _, size = LENGTHS.unpack(frame[: LENGTHS.size])
        with pytest.raises(ValueError, match="no message"):
            decode_frame(frame[LENGTHS.size :], size, KINDS)


def test_every_beginning_of_an_option_is_asked_for_once() -> None:
    assert build_prefix_tree([(1, 2), (1, 2, 3), (1, 4)]) == {(): [1], (1,): [2, 4], (1, 2): [3]}


def test_what_was_sampled_with_several_weights_has_all_their_versions(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    nobody: Any = None
    message = SampleRequest(1, "actor", np.array([7], np.int32), SamplingParams(), 0, [2])
    asked = PendingRequest(message, nobody)
    for lowest, highest, finish in ((3, 4, ""), (3, 5, ""), (4, 4, "length")):
        asked.add_chunk(TokenChunk(1, np.array([5], np.int32), np.zeros(1, np.float32), finish, lowest, highest))
    completion = asked.build_completion(tiny_tokenizer, (2,), SamplingParams())
    assert completion.versions == VersionRange(3, 5)
    assert completion.token_versions is None  # the first chunks do not say which token has which version


def test_tokens_keep_the_version_that_sampled_each_of_them(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    nobody: Any = None
    message = SampleRequest(1, "actor", np.array([7], np.int32), SamplingParams(), 0, [2])
    request, ids = PendingRequest(message, nobody), np.array([5, 6], np.int32)
    request.add_chunk(TokenChunk(1, ids, np.zeros(2, np.float32), "", 3, 3))
    request.add_chunk(TokenChunk(1, ids, np.zeros(2, np.float32), "length", 3, 4, versions=np.array([3, 4], np.int32)))
    completion = request.build_completion(tiny_tokenizer, (2,), SamplingParams())
    assert completion.versions == VersionRange(3, 4)
    assert completion.token_versions is not None
    assert completion.token_versions.tolist() == [3, 3, 3, 4]


@pytest.mark.slow
class TestEngine:
    def test_tokens_come_as_they_were_sampled(self, with_engine: Callable[..., Any]) -> None:
        heard: list[int] = []

        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            first = await said(engine)
            return first, await said(engine, on_token=heard.append), dict(engine.usage()), engine.program

        first, listened, usage, program = with_engine(use)
        assert first.tokens.tolist() == listened.tokens.tolist() == heard == [5, 6, 7, 8, 5, 6]
        assert first.log_probs.tolist() == [0, -1, -2, -3, -4, -5]
        assert (first.finish, first.versions, program) == ("length", VersionRange(0, 0), "a fake, 1.0")
        assert usage == {"sampled_tokens": 12, "prefill/prompt_tokens": 8, "engine_restarts": 0}

    def test_what_is_published_is_loaded_and_what_was_before_is_taken_away(
        self, with_engine: Callable[..., Any]
    ) -> None:
        async def use(engine: SubprocessEngine, weights: Weights) -> Any:
            await engine.publish({"actor": weights}, 7)
            now = [folder.exists() for folder in weights.written]
            return now, engine.version("actor"), (await said(engine)).versions

        assert with_engine(use) == ([False, True], 7, VersionRange(7, 7))

    def test_a_text_that_stops_ends_an_action_at_its_last_token(
        self, with_engine: Callable[..., Any], tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        stop = str(tiny_tokenizer.decode([7]))

        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine, stop=(stop,)), await said(engine)

        stopped, whole = with_engine(use)
        assert stopped.tokens.tolist() == [5, 6, 7]
        assert stopped.finish == "stop"
        assert stopped.text == whole.text.partition(stop)[0]

    @pytest.mark.parametrize("how", ["dies", "stillborn"])
    def test_one_that_ends_is_started_again_and_asked_again(self, with_engine: Callable[..., Any], how: str) -> None:
        heard: list[int] = []

        async def use(engine: SubprocessEngine, weights: Weights) -> Any:
            await engine.publish({"actor": weights}, 3)
            answers = await asyncio.gather(said(engine, 0), said(engine, 1, on_token=heard.append))
            return answers, dict(engine.usage())

        answers, usage = with_engine(use, **{how: 2})
        assert [answer.tokens.tolist() for answer in answers] == [[5, 6, 7, 8, 5, 6]] * 2
        assert heard == [5, 6, 7, 8, 5, 6]
        assert {answer.versions for answer in answers} == {VersionRange(3, 3)}
        assert usage["engine_restarts"] == 2
        assert usage["sampled_tokens"] == 12

    def test_a_text_that_stops_is_looked_for_in_what_is_said_again_alone(
        self, with_engine: Callable[..., Any], tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """The one that ended had said token 5, with which the next one begins anew."""

        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine, stop=(str(tiny_tokenizer.decode([5, 5])),))

        answer = with_engine(use, dies=1)
        assert (answer.tokens.tolist(), answer.finish) == ([5, 6, 7, 8, 5, 6], "length")

    def test_it_is_asked_as_its_policy_is_sampled_under_its_key(
        self, with_engine: Callable[..., Any], tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        how = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_new_tokens": 4}

        async def use(engine: SubprocessEngine, _: Weights) -> list[Any]:
            sent: list[Any] = []
            send = engine._connection.send
            engine._connection.send = lambda message: (sent.append(message), send(message))  # type: ignore[method-assign]
            for call in (0, 0, 1):
                await said(engine, call, **how)
            await said(engine, stop=(str(tiny_tokenizer.decode([7])),), on_token=lambda _: None)
            return sent

        first, again, other, stopped, forgotten = with_engine(use)
        assert (first.sampling, first.stop_ids) == (SamplingParams(**how), [2])  # type: ignore[arg-type]
        assert (stopped.sampling.stop, stopped.sampling.on_token) == ((), None)
        assert first.seed == again.seed != other.seed
        assert isinstance(forgotten, CancelRequest)
        assert forgotten.number == stopped.number

    @nightly
    def test_one_that_says_nothing_is_ended_and_started_again(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine), engine.usage()["engine_restarts"]

        answer, restarts = with_engine(use, patience=3.0, hangs=1)
        assert answer.tokens.tolist() == [5, 6, 7, 8, 5, 6]
        assert restarts == 1

    def test_one_that_never_comes_up_ends_the_run_with_its_last_words(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match=r"exit status 3\); the last that it said:\nthere is no room for it"):
            with_engine(use, stillborn=9)

    @nightly
    def test_one_that_is_killed_while_it_starts_has_more_lives(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            await said(engine)
            return engine.usage()["engine_restarts"]

        assert with_engine(use, killed=7) == 7

    @nightly
    def test_one_that_is_killed_again_and_again_ends_the_run(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match=r"its process was killed \(SIGKILL\)"):
            with_engine(use, killed=8)

    @BY_NIGHT
    def test_kills_give_one_that_ends_itself_no_more_lives(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match=r"exit status 3"):
            with_engine(use, killed=2, stillborn=9)

    def test_one_that_talks_nonsense_ends_the_run(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match="was ended: no message"):
            with_engine(use, garbles=9, how="noise")

    @BY_NIGHT
    @pytest.mark.parametrize("how", ["noise", "half", "huge", "misfit", "kinds"])
    def test_one_that_talks_nonsense_once_is_started_again(self, with_engine: Callable[..., Any], how: str) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine), engine.usage()["engine_restarts"]

        answer, restarts = with_engine(use, garbles=1, how=how)
        assert answer.tokens.tolist() == [5, 6, 7, 8, 5, 6]
        assert restarts == 1

    def test_one_that_ends_while_it_loads_is_given_the_weights_again(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return (await said(engine)).versions, engine.usage()["engine_restarts"]

        assert with_engine(use, leaves_loading=2) == (VersionRange(0, 0), 2)

    def test_one_that_is_never_ready_ends_the_run(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match=r"said nothing for 0\.5 s"):
            with_engine(use, patience=0.5, mute=9)

    def test_answers_to_what_nobody_asked_are_nobodys(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine), engine.usage()["engine_restarts"]

        answer, restarts = with_engine(use, strays=True)
        assert answer.tokens.tolist() == [5, 6, 7, 8, 5, 6]
        assert restarts == 0

    @BY_NIGHT
    def test_one_that_is_at_work_is_waited_for_beyond_its_patience(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine), engine.usage()["engine_restarts"]

        answer, restarts = with_engine(use, patience=1.0, slow=8)
        assert (len(answer.tokens), restarts) == (6, 0)

    def test_what_fails_there_fails_an_episode_alone(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            with pytest.raises(EpisodeFailedError, match="its grammar is too large"):
                await said(engine)
            return engine._error

        assert with_engine(use, fails=True) is None

    def test_a_thousand_requests_at_once_are_answered_each_with_its_own(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await asyncio.gather(
                *(
                    engine.sample("actor", Prompt(np.array([n], np.int32)), SamplingParams(max_new_tokens=2), key(n))
                    for n in range(1000)
                )
            )

        assert [answer.tokens.tolist() for answer in with_engine(use)] == [[n, n] for n in range(1000)]

    def test_what_it_refuses_at_the_start_is_said(self, with_engine: Callable[..., Any]) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            return await said(engine)

        with pytest.raises(RunError, match=r"^fake: no such model$"):
            with_engine(use, refuses=True)

    def test_who_no_longer_waits_is_forgotten(self, with_engine: Callable[..., Any], tmp_path: Path) -> None:
        async def use(engine: SubprocessEngine, _: Weights) -> Any:
            asking = asyncio.create_task(said(engine))
            await asyncio.sleep(0.3)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            for _ in range(100):
                await asyncio.sleep(0.05)
                if "CancelRequest" in (tmp_path / "log").read_text(encoding="utf-8"):
                    return engine._pending
            return None

        assert with_engine(use, hangs=9) == {}


def test_a_python_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no /no/python; install it:  marft engine install vllm"):
        find_python("vllm", "/no/python")


@pytest.mark.parametrize("program", ["/bin/cat", "/bin/true", "/etc/hostname"])
def test_what_is_no_python_is_named(program: str) -> None:
    with pytest.raises(ValueError, match=rf"engine\.python: {program} (has no vllm|is no Python that can be run)"):
        find_python("vllm", program)


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; give the Python in it, as bin/python of an environment"):
        find_python("vllm", str(tmp_path))


def test_a_python_that_hangs_is_named_without_what_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marft.inference.subprocess_engine.python_environment.CHECK_TIMEOUT", 0.4)
    monkeypatch.setattr("marft.inference.subprocess_engine.python_environment.NOTICE_SECONDS", 0.1)
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    with pytest.raises(ValueError, match=r"python has not answered in 0\.4 seconds; install it:"):
        find_python("vllm", str(hangs))
    said = f"engine.python: {hangs} is asked whether it has vllm, and has not answered in 0.1 seconds; it has 0.4\n"
    assert capsys.readouterr().err == said


def test_a_python_that_answers_is_waited_for_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_python("numpy", sys.executable) == sys.executable
    assert capsys.readouterr().err == ""


def test_a_python_without_the_engine_is_named() -> None:
    with pytest.raises(ValueError, match="has no no_such_engine"):
        find_python("no_such_engine", sys.executable)
