"""Callbacks: what they are told and in which order, what they may do to a run, and what becomes of their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft
from marft.common.callbacks import Callback, CallbackList
from marft.common.packages import registered_entry_points
from marft.common.types import ActionCredit, Episode
from marft.config import RunSettings, load_recipe, parse_recipe
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.runs.checkpoints import read_callback_states, write_callback_states
from marft.runs.run_files import CALLBACK_ARRAYS_FILE, CALLBACK_VALUES_FILE
from marft.runs.run_folder import RunFolder
from marft.runs.state import CheckpointRecord, State, read_record, verify
from marft.trainer.early_stopping import EarlyStopping
from marft.trainer.rollback import Rollback
from marft.trainer.train import train
from tests.callback_parts import Counts
from tests.helpers import recipe, settings
from tests.marft.runs.test_resume import assert_same
from tests.runs import Listening, contents, finished

COUNTS = {"name": "tests.callback_parts:Counts"}
STOPPING = "marft.trainer.early_stopping:EarlyStopping"
HOOKS = [name for name in vars(Callback) if not name.startswith("_") and name != "name"]


def run_with(output: Path, *callbacks: Mapping[str, Any], steps: int = 2, **changes: Any) -> RunSettings:
    return parse_recipe(recipe("tiny", output, callbacks=list(callbacks), training={"steps": steps}, **changes))


class Hears(Callback):
    """Writes down every call but notes, into a list that several may share."""

    def __init__(self, heard: list[str], name: str = "") -> None:
        self.heard, self.prefix = heard, name

    def _hear(self, text: str) -> None:
        self.heard.append(f"{self.prefix}{text}")

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        self._hear(f"start {completed_steps}/{steps}")

    def on_episode(self, episode: Episode) -> None:
        assert episode.is_scored
        self._hear("episode")

    def on_rollout(self, step: int, episodes: Sequence[Episode]) -> None:
        self._hear(f"rollout {step}: {len(episodes)}")

    def on_credit(self, step: int, credits: Sequence[ActionCredit]) -> None:
        assert all(isinstance(credit, ActionCredit) for credit in credits)
        self._hear(f"credit {step}: {len(credits)}")

    def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        assert {"reward", "policy_loss", "seconds/learning"} <= metrics.keys()
        self._hear(f"update {step}: {len(episodes)}")

    def on_publish(self, step: int) -> None:
        self._hear(f"publish {step}")

    def on_validate(self, step: int, metrics: dict[str, float]) -> None:
        assert {"validation_accuracy", "validation_reward"} == metrics.keys()
        self._hear(f"validate {step}")

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self._hear(f"step {step}")

    def on_rollback(self, step: int, target: int) -> None:
        self._hear(f"rollback {step} to {target}")

    def on_train_end(self, error: BaseException | None) -> None:
        self._hear(f"end {error!r}")

    def wants_stop(self) -> bool:
        self._hear("stop?")
        return False

    def state_dict(self) -> Mapping[str, object]:
        self._hear("state")
        return {}


class FailsError(Exception):
    pass


class Fails(Callback):
    """Raises in one of its methods, at a step or, where there is none, at once."""

    def __init__(self, where: str, step: int = 2) -> None:
        self.where, self.step, self.now, self.ended = where, step, 0, list[BaseException | None]()

    @property
    def name(self) -> str:
        return f"Fails {id(self)}"

    def __getattribute__(self, name: str) -> Any:
        if name not in HOOKS:
            return super().__getattribute__(name)

        def called(*arguments: Any) -> Any:
            if name == "on_rollout":
                self.now = arguments[0]
            if name == "on_train_end":
                self.ended.append(arguments[0])
            if name == self.where and self.now >= self.step:
                raise FailsError(name)
            return {"wants_stop": False, "state_dict": {}}.get(name)

        return called

    def state_dict(self) -> Mapping[str, object]:
        raise NotImplementedError  # or it would not be asked


class Remembers(Callback):
    """Keeps what JSON and arrays hold, and draws from a stream that must go on where it was."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.steps: list[int] = []
        self.curve = np.zeros((0, 2))
        self.loaded: list[Mapping[str, object]] = []

    def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        metrics["mine/draw"] = self.random.random()

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)
        self.curve = np.append(self.curve, [[metrics["reward"], metrics["mine/draw"]]], axis=0)

    def state_dict(self) -> Mapping[str, object]:
        return {
            "steps": self.steps, "random": self.random.bit_generator.state, "curve": self.curve,
            "transposed": self.curve.T, "last": np.array(self.steps[-1], np.int16), "odd/key": np.array([True, False]),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.loaded.append(state)
        assert isinstance(state["steps"], list)
        assert isinstance(state["curve"], np.ndarray)
        self.steps, self.curve = state["steps"], state["curve"]
        self.random.bit_generator.state = state["random"]  # type: ignore[assignment]


class StopsAt(Callback):
    def __init__(self, step: int) -> None:
        self.at, self.now, self.asked = step, 0, 0

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.now = step

    def wants_stop(self) -> bool:
        self.asked += 1
        return self.now >= self.at


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two steps that nobody observes."""
    return finished(tmp_path_factory.mktemp("straight"))[1]


def newest(folder: RunFolder) -> CheckpointRecord:
    return read_record(folder.saved_steps()[-1])


class TestWhatIsTold:
    def test_of_a_run_step_by_step(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--evaluation.every", "2", "--evaluation.validation_tasks", "2")
        train(run, RunFolder.create(run), callbacks=[Hears(heard := list[str]())])
        actions = 4 * 2

        def step(number: int, *more: str) -> list[str]:
            return [
                *["episode"] * 4, f"rollout {number}: 4", f"credit {number}: {actions}", f"update {number}: 4",
                f"publish {number}", *more, f"step {number}", "stop?", "state",
            ]  # fmt: skip

        assert heard == ["start 0/2", "stop?", *step(1), *step(2, "validate 2"), "end None"]

    def test_goes_to_all_in_their_order_and_the_end_backwards(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--training.steps", "1")
        heard: list[str] = []

        class Second(Hears):
            pass

        train(run, RunFolder.create(run), callbacks=[Hears(heard, "a "), Second(heard, "b ")])
        assert heard[-2:] == ["b end None", "a end None"]
        before = heard[:-2]
        assert [text[0] for text in before] == ["a", "b"] * (len(before) // 2)
        assert [text[2:] for text in before[::2]] == [text[2:] for text in before[1::2]]

    def test_of_a_run_that_is_over_is_its_beginning_and_its_end(self, tmp_path: Path) -> None:
        run, folder = finished(tmp_path)
        train(run, folder, resume=True, callbacks=[Hears(heard := list[str]())])
        assert heard == ["start 2/2", "stop?", "end None"]

    def test_before_the_callbacks_of_a_recipe_come_those_of_the_caller(self, tmp_path: Path) -> None:
        order: list[str] = []

        class Mine(Callback):
            def on_train_start(self, completed_steps: int, steps: int) -> None:
                order.append(f"mine, {len(Counts.heard)}")

        Counts.heard.clear()
        run = run_with(tmp_path, COUNTS, steps=1)
        train(run, RunFolder.create(run), callbacks=[Mine()])
        assert order == ["mine, 0"]
        assert Counts.heard == [("start", 0), ("step", 1)]

    def test_a_list_passes_on_all_there_is(self) -> None:
        """A hook that is added to the class must be added to the list."""
        heard: list[tuple[Any, ...]] = []

        class Told(Callback):
            def __getattribute__(self, name: str) -> Any:
                if name not in HOOKS:
                    return super().__getattribute__(name)

                def called(*given: Any) -> bool:
                    heard.append((name, *given))
                    return name == "wants_stop"

                return called

        calls: dict[str, tuple[Any, ...]] = {
            "on_train_start": (2, 9), "on_episode": ("episode",), "on_rollout": (3, ["episode"]),
            "on_credit": (3, ["credit"]), "on_update": (3, ["episode"], {}), "on_publish": (3,),
            "on_validate": (3, {}), "on_step_end": (3, {}), "on_rollback": (3, 1), "on_guard": (3, "kl", "far"),
            "on_note": ("odd",), "on_train_end": (None,), "wants_stop": (),
        }  # fmt: skip
        assert {*calls, "state_dict", "load_state_dict"} == {*HOOKS}
        both = CallbackList([Told(), Told()])
        assert [getattr(both, name)(*words) for name, words in calls.items()][-1] is True
        assert heard == [(name, *words) for name, words in calls.items() for _ in range(2)]

    def test_a_guard_is_a_note_where_nobody_says_otherwise(self) -> None:
        listening = Listening()
        CallbackList([listening]).on_guard(3, "kl", "far")
        assert listening.notes == ["step 3: far"]

    def test_a_way_back_is_told_with_where_it_leads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def target(rollback: Rollback, state: State, _: object) -> CheckpointRecord | None:
            return read_record(tmp_path / "test/checkpoints/step_000001") if state.step == 2 else None

        monkeypatch.setattr(Rollback, "target", target)
        run = settings("tiny", tmp_path, "--training.steps", "3", "--guards.on_collapse", "rollback")
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[Hears(heard := list[str]()), keeps := Counts()])
        places = [text for text in heard if text.startswith(("step", "rollback", "stop", "state"))]
        assert places == [
            "stop?", "step 1", "stop?", "state", "step 2", "stop?", "rollback 2 to 1", "state", "step 3", "stop?",
            "state",
        ]  # fmt: skip
        assert [row.get(ROLLBACK_KEY) for row in folder.read_metrics()] == [None, 1.0, None]
        assert keeps.state_dict() == {"count": 3}, "a callback's state is not rolled back"


class TestWhatACallbackMayDo:
    def test_a_metric_of_its_own_is_logged_with_the_step(self, tmp_path: Path, straight: RunFolder) -> None:
        seen: list[float] = []

        class Adds(Callback):
            def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
                metrics["mine/twice"] = 2.0 * step

            def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
                seen.append(metrics["mine/twice"])

        run = settings("tiny", tmp_path)
        train(run, folder := RunFolder.create(run), callbacks=[Adds()])
        assert [row["mine/twice"] for row in folder.read_metrics()] == seen == [2.0, 4.0]
        assert_same(folder, straight, "step_000002")  # and it learns the same
        assert not any(
            (path / name).exists()
            for path in folder.saved_steps()
            for name in (CALLBACK_VALUES_FILE, CALLBACK_ARRAYS_FILE)
        )

    @pytest.mark.parametrize(
        "where",
        [
            "on_step_end",
            "state_dict",
            *(
                pytest.param(hook, marks=pytest.mark.slow)
                for hook in ("on_episode", "on_rollout", "on_credit", "on_update", "on_publish", "wants_stop")
            ),
        ],
    )
    def test_an_exception_ends_the_run_and_what_was_saved_is_whole(
        self, where: str, tmp_path: Path, straight: RunFolder
    ) -> None:
        # episodes of a step are told before its rollout is
        run, fails = settings("tiny", tmp_path), Fails(where, step=1 if where == "on_episode" else 2)
        folder = RunFolder.create(run)
        heard: list[str] = []
        with pytest.raises(FailsError, match=where) as caught:
            train(run, folder, callbacks=[Hears(heard), fails])
        assert fails.ended == [caught.value]
        assert heard[-1] == f"end {caught.value!r}"
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000001"]
        verify(folder.checkpoints / "step_000001")
        assert train(run, folder, resume=True).step == 2
        assert_same(folder, straight, "step_000002")

    def test_the_end_is_told_to_all_even_where_one_fails(self, tmp_path: Path) -> None:
        first, last, heard = Fails("on_train_end", 0), Fails("on_train_end", 0), list[str]()
        run = settings("tiny", tmp_path, "--training.steps", "1")
        folder = RunFolder.create(run)
        with pytest.raises(FailsError, match="on_train_end"):
            train(run, folder, callbacks=[first, Hears(heard), last])
        assert first.ended == last.ended == [None]
        assert heard[-1] == "end None"
        assert newest(folder).state.step == 1

    def test_the_end_is_told_with_what_ended_the_run_even_where_another_fails(self) -> None:
        fails, heard, reason = Fails("on_train_end", 0), list[str](), KeyboardInterrupt("enough")
        with pytest.raises(FailsError) as caught, CallbackList([Hears(heard), fails]):
            raise reason
        assert fails.ended == [reason]
        assert heard == [f"end {reason!r}"]
        assert caught.value.__context__ is reason

    def test_all_are_asked_whether_they_have_enough(self, tmp_path: Path) -> None:
        run, first, second = settings("tiny", tmp_path, "--training.steps", "4"), StopsAt(1), StopsAt(9)
        folder = RunFolder.create(run)
        assert train(run, folder, callbacks=[first, second]).step == 1
        assert (first.asked, second.asked) == (2, 2)
        assert newest(folder).state.step == 1

    def test_a_stop_saves_a_checkpoint_whatever_the_interval_is(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--training.steps", "4", "--checkpoints.every", "4")
        folder = RunFolder.create(run)
        assert train(run, folder, callbacks=[StopsAt(1)]).step == 1
        assert [path.name for path in folder.saved_steps()] == ["step_000001"]


class Other(Remembers):
    """Has a state under a name of its own."""


class Plain(Callback):
    """Has no state."""

    @property
    def name(self) -> str:
        return "Remembers"


class TestState:
    def test_survives_a_stop_to_the_bit(self, tmp_path: Path) -> None:
        folders, kept = [], []
        for name, stops in (("straight", []), ("stopped", [StopsAt(1)])):
            run = settings("tiny", tmp_path, "--training.steps", "3", name=name)
            folder = RunFolder.create(run)
            if stops:
                train(run, folder, callbacks=[stopped := Remembers(), Plain(), *stops])
            train(run, folder, resume=bool(stops), callbacks=[remembers := Remembers(), Plain()])
            folders.append(folder)
            kept.append(remembers)
        assert kept[1].steps == [1, 2, 3]
        (state,) = kept[1].loaded
        before = stopped.state_dict()
        assert state.keys() == before.keys()
        for key, value in before.items():
            if isinstance(value, np.ndarray):
                same = state[key]
                assert isinstance(same, np.ndarray)
                assert (same.dtype, same.shape, same.tobytes()) == (value.dtype, value.shape, value.tobytes()), key
        draws = [[row["mine/draw"] for row in folder.read_metrics()] for folder in folders]
        assert draws[0] == draws[1]
        assert kept[0].curve.tobytes() == kept[1].curve.tobytes()
        states = [contents(folder.checkpoints / "step_000003") for folder in folders]
        assert states[0][CALLBACK_VALUES_FILE] == states[1][CALLBACK_VALUES_FILE]
        assert states[0][CALLBACK_ARRAYS_FILE] == states[1][CALLBACK_ARRAYS_FILE]

    def test_that_nobody_takes_is_refused_by_name_before_anything_changes(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[Remembers(), StopsAt(1)])
        before = contents(folder.path)
        for callbacks in ([], [Other()], [Plain()]):
            with pytest.raises(
                ValueError, match=r"the state of the callback 'Remembers'.*does not have: add it"
            ) as told:
                train(run, folder, resume=True, callbacks=callbacks)
            assert "[[callbacks]]" in str(told.value)
            assert contents(folder.path) == before
        assert train(run, folder, resume=True, callbacks=[Remembers(), Other()]).step == 2

    def test_starts_anew_in_a_run_that_only_takes_the_weights(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        train(run, folder := RunFolder.create(run), callbacks=[Remembers()])
        other = settings("tiny", tmp_path, name="other")
        start = folder.saved_steps()[-1]
        assert train(other, RunFolder.create(other), start_from=start, callbacks=[fresh := Remembers()]).step == 2
        assert not fresh.loaded
        assert train(run, folder, overwrite=True).step == 2

    def test_of_two_with_one_name_is_refused_before_anything_begins(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        with pytest.raises(ValueError, match=r"two are called 'Remembers'; give one of them another name"):
            train(run, RunFolder.create(run), callbacks=[Remembers(), Remembers()])
        with pytest.raises(ValueError, match=r"two are called 'tests\.callback_parts:Counts'"):
            train(run := run_with(tmp_path, COUNTS, COUNTS), RunFolder.create(run))
        assert not (tmp_path / "test/metrics.jsonl").exists()
        CallbackList(
            [Listening(), Listening(), Plain(), Plain(), Remembers(), Other()]
        )  # those have none, or own names

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            {1, 2},
            (1, 2),
            float("nan"),
            {"deep": np.zeros(2)},
            {1: "key"},
            np.array([object()]),
            np.float32(1),
        ],
        ids=["object", "set", "tuple", "nan", "deep array", "number as key", "array of objects", "float32"],
    )
    def test_that_cannot_be_written_down_is_refused_with_its_callback(self, value: object, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"callback 'Bad': its state cannot be saved: .*JSON values, and numbers in"
        ):
            write_callback_states(tmp_path, {"Good": {"a": 1, "b": np.zeros(2)}, "Bad": {"value": value}})
        assert not list(tmp_path.iterdir())

    def test_of_a_section_is_not_saved(self) -> None:
        callbacks = CallbackList([Counts()])
        callbacks.add(Counts(), Remembers())
        assert callbacks.state_dict() == {"Counts": {"count": 0}}

    def test_that_cannot_be_written_down_leaves_earlier_checkpoints_whole(
        self, tmp_path: Path, straight: RunFolder
    ) -> None:
        class Bad(StopsAt):
            def state_dict(self) -> Mapping[str, object]:
                return {"value": object()} if self.now == 2 else {}

        run = settings("tiny", tmp_path)
        folder = RunFolder.create(run)
        with pytest.raises(ValueError, match="callback 'Bad': its state cannot be saved: Object of type object"):
            train(run, folder, callbacks=[Bad(9)])
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000001"]
        verify(folder.checkpoints / "step_000001")
        assert train(run, folder, resume=True).step == 2
        assert_same(folder, straight, "step_000002")

    def test_is_covered_by_the_digests_of_its_checkpoint(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        train(run, folder := RunFolder.create(run), callbacks=[Remembers()])
        path = folder.checkpoints / "step_000002"
        for name in (CALLBACK_VALUES_FILE, CALLBACK_ARRAYS_FILE):
            whole = (path / name).read_bytes()
            (path / name).write_bytes(whole[:-1])
            with pytest.raises(ValueError, match=name):
                verify(path)
            (path / name).write_bytes(whole)

    @pytest.mark.parametrize("name", ["a", "a/b", '"]', "ä\n"])
    def test_is_found_again_whatever_it_is_called(self, name: str, tmp_path: Path) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        write_callback_states(tmp_path, {name: {"b/c": array, "": array.T, "n": None}, "a/b/b": {"c": array[0]}})
        states = read_callback_states(tmp_path)
        assert states[name]["n"] is None
        for key, value in {"b/c": array, "": array.T}.items():
            assert np.array_equal(states[name][key], value)  # type: ignore[arg-type]
        assert states["a/b/b"].keys() == {"c"}

    @pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 1}', '{"b": {}}'])
    def test_that_cannot_be_read_is_said(self, text: str, tmp_path: Path) -> None:
        write_callback_states(tmp_path, {"a": {"x": np.zeros(1)}})
        (tmp_path / CALLBACK_VALUES_FILE).write_text(text)
        with pytest.raises(ValueError, match="cannot read the state of callbacks in"):
            read_callback_states(tmp_path)


class TestInARecipe:
    @pytest.fixture(autouse=True)
    def fresh(self) -> Iterator[None]:
        Counts.heard.clear()
        yield
        Counts.heard.clear()

    def test_by_import_path_with_keys_and_a_state_of_its_own_run(self, tmp_path: Path) -> None:
        run = run_with(tmp_path, {**COUNTS, "stride": 3})
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[StopsAt(1)])
        assert read_callback_states(folder.saved_steps()[-1]) == {COUNTS["name"]: {"count": 3}}
        train(load_recipe(folder.path / "config.toml"), folder, resume=True)
        assert Counts.heard == [("start", 0), ("step", 3), ("start", 3), ("step", 6)]
        train(run, folder, overwrite=True)  # the recipe's own object is as it was
        assert Counts.heard[4:] == [("start", 0), ("step", 3), ("step", 6)]

    def test_that_is_taken_out_is_asked_for_by_name(self, tmp_path: Path) -> None:
        run = run_with(tmp_path, COUNTS)
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[StopsAt(1)])
        before = contents(folder.path)
        with pytest.raises(ValueError, match=r"callback 'tests\.callback_parts:Counts', which this run does not have"):
            train(run_with(tmp_path), folder, resume=True)
        assert contents(folder.path) == before

    def test_may_have_others_and_other_keys_when_a_run_goes_on(self, tmp_path: Path) -> None:
        run = run_with(tmp_path, COUNTS)
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[StopsAt(1)])
        train(run_with(tmp_path, {**COUNTS, "stride": 5}, {"name": STOPPING}), folder, resume=True)
        assert Counts.heard == [("start", 0), ("step", 1), ("start", 1), ("step", 6)]

    def test_by_name(self) -> None:
        if "early_stopping" not in registered_entry_points("callbacks"):
            pytest.skip("make install registers it")
        run = load_recipe("demo", ["--callbacks", "[{ name = 'early_stopping', metric = 'reward', patience = 3 }]"])
        (callback,) = run.callbacks
        assert isinstance(callback, EarlyStopping)
        assert (callback.name, callback.metric, callback.patience) == ("early_stopping", "reward", 3)

    @pytest.mark.parametrize(
        ("table", "told"),
        [
            ("{ name = 'nobody_knows' }", "no callback is called 'nobody_knows'"),
            ("{ name = 'tests.sink_parts:Keeps' }", "is not a callback, or CallbackPlugin"),
            ("{ name = 'tests.runs:Listening' }", "is not a callback: its class must derive from"),
            ("{ name = 'tests.callback_parts:Counts', strid = 2 }", "did you mean 'stride'"),
            (f"{{ name = '{STOPPING}', patience = 0 }}", "patience"),
            (f"{{ name = '{STOPPING}', metric = '' }}", "metric"),
        ],
    )
    def test_that_nobody_understands_is_refused(self, table: str, told: str) -> None:
        with pytest.raises(ValueError, match="recipe:") as caught:
            settings("tiny", "runs", "--callbacks", f"[{table}]")
        for word in told.split(", or "):
            assert word in str(caught.value)

    def test_a_class_of_a_script_may_stand_in_its_place(self, tmp_path: Path) -> None:
        class Mine(marft.CallbackPlugin):
            def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
                Counts.heard.append(("mine", step))

        run = marft.load_recipe(recipe("tiny", tmp_path), callbacks=[Mine])
        marft.train(run, training={"steps": 1}, name="scripted")
        assert Counts.heard == [("mine", 1)]

    def test_of_the_caller_by_marft_train(self, tmp_path: Path) -> None:
        run = marft.train(recipe("tiny", tmp_path), callbacks=[StopsAt(1), counts := Counts()], name="called")
        assert run.step == 1
        assert counts.state_dict() == {"count": 1}
