"""Command definitions for environments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, command_group

app = command_group()


@app.command("check-env", context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def check_env(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Environment: a name, an import path, or a recipe.")],
    num_tasks: Annotated[
        int, typer.Option(min=1, help="Number of training tasks to play, in addition to one task per held-out split.")
    ] = 4,
    max_steps: Annotated[
        int, typer.Option(min=1, help="Maximum steps of an episode; a recipe's own limit takes precedence.")
    ] = 200,
    max_median_ms: Annotated[
        float, typer.Option(min=0.001, help="Warn if the median call takes longer, in milliseconds.")
    ] = 100.0,
    max_call_ms: Annotated[
        float, typer.Option(min=0.001, help="Warn if any call takes longer, in milliseconds.")
    ] = 1000.0,
    max_blocking_ms: Annotated[
        float, typer.Option(min=0.001, help="Warn if a call blocks its thread for longer, in milliseconds.")
    ] = 10.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of a call, in seconds.")] = 20.0,
    max_observation_chars: Annotated[
        int, typer.Option(min=1, help="Warn if an observation is longer, in characters.")
    ] = 20_000,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Skip the checks in new processes: faster, but finds less.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check an environment for faults.

    The check loads the environment, plays it with several scripted players, and replays the episodes. Append
    settings of the environment as options: --lines 3. The exit status is 1 if a check fails.
    """
    from marft.cli import options, output
    from marft_envs.cli import env_check
    from marft_envs.env_check.target import Limits, find_keys

    limits = Limits(
        tasks=num_tasks,
        max_steps=max_steps,
        max_median_seconds=max_median_ms / 1000,
        max_call_seconds=max_call_ms / 1000,
        max_blocking_seconds=max_blocking_ms / 1000,
        call_timeout_seconds=timeout,
        max_observation_chars=max_observation_chars,
        use_processes=not in_process,
    )
    words = options.parse_overrides(context, Path(environment), find_keys(environment))
    if not env_check.check_environment(environment, words, limits, output.output_mode(False, as_json)):
        raise typer.Exit(1)
