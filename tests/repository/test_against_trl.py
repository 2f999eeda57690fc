"""The pure parts of the benchmarks of a step: what both sides are given, how figures are summed up, which kind an
operation is of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from marft.config import to_toml
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_a_setting_reads_back_as_it_was_written(tmp_path: Path) -> None:
    from versus.setting import Setting, coin, questions

    setting = Setting("small", "folder", tasks=2, samples=3, words=True)
    setting.write(tmp_path / "setting.json")
    assert Setting.read(tmp_path / "setting.json") == setting
    assert setting.completions == 6
    assert len(set(questions(setting))) == 64
    assert {len(question.split()) for question in questions(setting)} == {100}
    assert len(set(questions(Setting("small", "folder")))) == 64
    assert len(set(questions(Setting("small", "folder", ends=True)))) == 320
    assert {coin(text) for text in ("a", "b")} == {0.0, 1.0}


def test_our_side_takes_one_step_on_all_completions_and_reads_no_reference(tmp_path: Path) -> None:
    from versus import marft_steps
    from versus.setting import TARGETS, Setting

    run = marft_steps.recipe(Setting("tiny", "tiny", tasks=2, samples=3))
    algorithm = run.algorithm
    assert (algorithm.minibatches, algorithm.epochs, algorithm.kl.coefficient) == (1, 1, 0.0)
    assert algorithm.critic.kind == "none"
    assert (run.rollout.tasks_per_step, run.rollout.samples_per_task) == (2, 3)
    assert run.policies["solver"].lora.target_modules == TARGETS
    assert "instructions" in to_toml(run)


def test_figures_are_medians_over_all_processes_and_the_ratio_is_of_seconds() -> None:
    import against_trl
    from versus.setting import Setting

    def row(*seconds: float) -> dict[str, object]:
        return {"steps": [{"generating": s, "learning": 1.0} for s in seconds], "peak_memory_mb": 100 * seconds[0]}

    setting = Setting("small", "/somewhere/folder", tasks=1, samples=2, tokens=10)
    one = against_trl.summary(setting, {"marft": [row(1.0, 3.0), row(2.0)], "trl": [row(5.0)]})
    assert one["sides"]["marft"]["seconds"] == 3.0
    assert (one["sides"]["marft"]["fastest"], one["sides"]["marft"]["slowest"]) == (2.0, 4.0)
    assert one["sides"]["marft"]["peak_memory_mb"] == 200
    assert one["ratio"] == 2.0
    assert "/somewhere" not in str(one)
    assert "| small | TRL 1.16 | 6 (6 to 6) | 5 | 1 | 3 | 300 | 0.5 GB | 2.00 |" in against_trl.table([one])
    assert against_trl.summary(setting, {"marft": [row(1.0)], "trl": []})["ratio"] is None


def test_figures_of_other_settings_are_refused(tmp_path: Path) -> None:
    import against_trl
    from versus.setting import Setting

    (tmp_path / "small-trl-0.json").write_text('{"steps": [], "setting": {"name": "small"}}')
    with pytest.raises(SystemExit, match="other settings"):
        against_trl.rows_of(Setting("small", "folder"), tmp_path)


def test_every_kind_of_operation_is_put_down_to_its_own() -> None:
    import step_profile

    sizes = step_profile.Sizes(hidden=576, intermediate=1536, vocabulary=49152, rank=8)
    expected = {
        ("aten::mm", ((576, 576), (576, 32))): "products: attention's projections",
        ("aten::addmm_", ((485, 576), (485, 1536), (1536, 576))): "products: feed-forward",
        ("aten::mm", ((256, 49152), (49152, 576))): "products: head",
        ("mkldnn::_linear_pointwise", ((32, 576), (49152, 576))): "products: head",
        ("aten::mm", ((24, 3392), (3392, 576))): "adapters",
        ("aten::bmm", ((96, 3, 64), (96, 64, 50))): "attention",
        ("aten::exp", ((256, 49152),)): "head: softmax and draws",
        ("aten::silu", ((1536, 32),)): "norms, rotations, gates, sums",
        ("aten::_foreach_add_", ()): "optimizer",
    }
    events = []
    for (name, shapes), kind in expected.items():
        given = [list(shape) for shape in shapes]
        assert step_profile.kind_of(name, given, sizes) == kind
        events.append(SimpleNamespace(key=name, input_shapes=given, self_cpu_time_total=1e6))
    events.append(SimpleNamespace(key="Own", input_shapes=[], self_cpu_time_total=5e6))
    seconds = step_profile.kinds_of(events, sizes)
    assert seconds == {**dict.fromkeys(step_profile.KINDS, 1.0), "products: head": 2.0, "Python and waiting": 0.0}


def test_the_floor_reads_every_prompt_once_and_learns_both_ways() -> None:
    import step_profile
    from versus.setting import Setting

    floor = step_profile.floor_operations(Setting("", "", tasks=1, samples=2, tokens=3), weights=10, head=100, prompt=4)
    generated = 2 * (10 * (4 + 2 * 2) + 100 * 6)  # a row's last token is not read
    assert floor == {"generating": generated, "learning": 2 * generated}


def test_a_profiles_table_adds_up_its_phases() -> None:
    import step_profile

    phase = {"kinds": dict.fromkeys(step_profile.KINDS, 0.5), "profiled": 5.0, "seconds": 4.0, "floor": 2.0}
    result = {"phases": {"generating": phase, "learning": phase}, "share_of_floor": 0.5, "matmul_gflop_per_second": 190}
    table = step_profile.table(result)
    assert "| adapters | 0.50 | 0.50 | 1.00 |" in table
    assert "| the floor | 2.00 | 2.00 | 4.00 |" in table
    assert "50% of the floor, at 190 GFLOP/s." in table


def test_both_curves_are_drawn_over_all_tokens_and_seconds_so_far() -> None:
    import against_trl

    steps = [{"generating": 1.0, "learning": 2.0, "reward": reward, "tokens": 100} for reward in (0.25, 0.5)]
    tokens, seconds = against_trl.plot({"marft": steps, "trl": steps}).axes
    assert [line.get_xdata().tolist() for line in tokens.lines] == [[100, 200]] * 2
    assert [line.get_xdata().tolist() for line in seconds.lines] == [[3.0, 6.0]] * 2
    assert list(seconds.lines[0].get_ydata()) == [0.25, 0.5]
