"""Command ``marft replay``: credit for recorded episodes by several algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.cli.console import bold, wide_console
from marft.cli.errors import open_run_for_command
from marft.cli.handlers import progress_bar, silence_transformers
from marft.cli.listings import load_preset
from marft.common.errors import UserError


def replay_step(path: Path, names: Sequence[str], step: int, episodes: int) -> None:
    """Credit a recorded step with several algorithms, print the tables and write the report.

    Args:
        path: folder of a run.
        names: presets to compare; the run's own name means its own settings.
        step: recorded training step; 0: the last one.
        episodes: number of episodes to show.

    Raises:
        UserError: no preset is named, or the step has no recorded episodes.
    """
    folder = open_run_for_command(path)
    own_algorithm = folder.settings().algorithm
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        raise UserError("--algorithms: name at least one, for example marft,grpo")
    presets = [load_preset(name).model_copy(update={"reward": own_algorithm.reward}) for name in names]
    algorithms = [own_algorithm if preset.name == own_algorithm.name else preset for preset in presets]
    silence_transformers()
    from marft_lab.credit_audit import report
    from marft_lab.credit_audit.audit import audit_credit

    with progress_bar("crediting") as advance:
        advance(len(algorithms))
        audit = audit_credit(folder, algorithms, step, on_done=advance)
    heatmaps = report.select_heatmaps(audit, episodes)
    target = folder.replays / f"step_{audit.step:06d}"
    report.write_credit_report(target, f"{folder.path.resolve().name}: step {audit.step}", audit, heatmaps)
    console = wide_console()
    console.print(bold(f"{len(audit.episodes)} episodes of step {audit.step}\n"))
    console.print(report.audit_table(audit), "")
    if len(algorithms) > 1:
        console.print(report.agreement_table(audit), "")
    if heatmaps:
        console.print(report.action_table(audit, heatmaps), "")
    for note in report.audit_notes(audit):
        console.print(note, soft_wrap=True)
    console.print(f"see {target.with_suffix('.html')}", soft_wrap=True)
