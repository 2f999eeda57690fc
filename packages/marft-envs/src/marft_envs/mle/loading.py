"""Loader for competitions from folders prepared by MLE-bench.

Files of a competition:

    NAME/description.md                 or in public/
    NAME/config.yaml                    MLE-bench's file that names the metric; the recipe may name it instead
    NAME/leaderboard.csv                with a column score
    NAME/public/                        or prepared/public/: files for the team, including sample_submission.csv
    NAME/private/                       or prepared/private/: one table with the correct answers
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath

import yaml

from marft.agents.sandbox.runner import SandboxSettings
from marft.common.atomic import check_regular_file, read_text
from marft.common.errors import UserError
from marft.config.settings import did_you_mean
from marft_envs.mle.competition import (
    METRIC_ALIASES,
    METRICS,
    Competition,
    InvalidSubmissionError,
    Leaderboard,
    parse_predictions,
)

SAMPLE_NAMES = ("sample_submission.csv", "sampleSubmission.csv")
ANSWER_FILES = ("answers.csv", "test.csv", "gold_submission.csv")
MAX_MB = 32  # maximum megabytes of public files; every program run gets a fresh copy


def find_competitions(folder: str) -> dict[str, Path]:
    """Return competition folders by name: the folder itself, or its subfolders.

    Raises:
        UserError: the folder holds no competition.
    """
    root = Path(folder)
    places = (
        [root]
        if _find_parts(root)
        else sorted(folder_option for folder_option in root.glob("*") if _find_parts(folder_option))
    )
    if not places:
        raise UserError(
            f"environment.path: {folder} holds no competition; one is a folder with public/ and private/ (or both in "
            "prepared/), description.md and leaderboard.csv"
        )
    return {folder_option.name: folder_option for folder_option in places}


def read_competition(folder: Path, metrics: Mapping[str, str]) -> Competition:
    """Load a competition from its folder.

    Args:
        folder: folder of the competition.
        metrics: metric by competition name; overrides the competition's configuration.

    Raises:
        UserError: a part is missing or invalid. The message names it and the remedy.
    """
    parts = _find_parts(folder)
    assert parts, "competitions have been looked for"
    public, private = parts
    public_files = _read_public(folder, public)
    sample = next((public_files[name] for name in SAMPLE_NAMES if name in public_files), None)
    if sample is None:
        raise UserError(
            f"environment: {folder}: {public.name}/ has no sample_submission.csv, which says what is predicted"
        )
    metric = _find_metric(folder, metrics)
    description = next(
        (folder_option for folder_option in (folder, public) if (folder_option / "description.md").is_file()), None
    )
    if description is None:
        raise UserError(f"environment: {folder} has no description.md, which is what teams are told")
    columns = _read_columns(folder, sample)
    answers = _read_answers(folder, private, columns)
    description_file = description / "description.md"
    with _reading_errors(description_file):
        text = read_text(description_file)
    competition = Competition(text, public_files, answers, columns, metric, _read_leaderboard(folder, metric))
    _check_competition(folder, competition, sample)
    return competition


def _find_parts(folder: Path) -> tuple[Path, Path] | None:
    for place in (folder, folder / "prepared"):
        if (place / "public").is_dir() and (place / "private").is_dir():
            return place / "public", place / "private"
    return None


def _read_public(folder: Path, public: Path) -> dict[str, bytes]:
    files = sorted(file for file in public.rglob("*") if file.is_file())
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    if megabytes > MAX_MB:
        raise UserError(
            f"environment: {folder}: its public files have {megabytes:.0f} MB, and each run of a program is given all "
            f"of them; take a competition of at most {MAX_MB} MB, or a part of its rows"
        )
    return {str(file.relative_to(public)): file.read_bytes() for file in files}


def _find_metric(folder: Path, metrics: Mapping[str, str]) -> str:
    metric_name = metrics.get(folder.name, "")
    config = folder / "config.yaml"
    if not metric_name and config.is_file():
        try:
            config_table = yaml.safe_load(config.read_text(encoding="utf-8"))
            metric_name = str(config_table["grader"]["name"])
        except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise UserError(f"environment: {config} names no grader ({error}); name one: metrics") from error
    normalized = metric_name.lower().replace("_", "-").replace(" ", "-")
    metric = next(
        (name for name in METRICS if name.replace("_", "-") == normalized), METRIC_ALIASES.get(normalized, "")
    )
    if not metric:
        problem = (
            f"is graded by {metric_name!r}, which is none of ours" if metric_name else "does not say how it is graded"
        )
        raise UserError(
            f"environment: {folder} {problem}{did_you_mean(metric_name, METRICS)}; name its metric: metrics = "
            f"{{ {folder.name} = 'rmse' }}"
        )
    return metric


def _read_columns(folder: Path, sample: bytes) -> tuple[str, str]:
    with _reading_errors(folder / "sample_submission.csv"):
        header = next(csv.reader(sample.decode("utf-8-sig").splitlines()), [])
    if len(header) != 2:
        raise UserError(
            f"environment: {folder}: its submissions have {len(header)} columns; those of an id and one prediction "
            "can be graded here"
        )
    return header[0].strip(), header[1].strip()


def _read_answers(folder: Path, private: Path, columns: tuple[str, str]) -> dict[str, str]:
    """Read the answers by id, from the first table with both columns."""
    tables = sorted(private.glob("*.csv"), key=lambda file: (file.name not in ANSWER_FILES, file.name))
    for table in tables:
        with _reading_errors(table), check_regular_file(table).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows and set(columns) <= set(rows[0]):
            id_answer_pairs = [((row[columns[0]] or "").strip(), row[columns[1]]) for row in rows]
            duplicates = [name for name, times in Counter(name for name, _ in id_answer_pairs).items() if times > 1]
            without_answer = [name for name, answer in id_answer_pairs if answer is None]
            for problem, names in (("comes twice", duplicates), ("has no answer", without_answer)):
                if names:
                    raise UserError(f"environment: {table}: {columns[0]} {names[0]!r} {problem}")
            return {name: answer.strip() for name, answer in id_answer_pairs}
    raise UserError(
        f"environment: {folder}: no table in {private.name}/ has the columns of a submission: {', '.join(columns)}"
    )


def _read_leaderboard(folder: Path, metric: str) -> Leaderboard:
    file = folder / "leaderboard.csv"
    if not file.is_file():
        raise UserError(f"environment: {folder} has no leaderboard.csv, which medals are given by")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            scores = [float(row["score"]) for row in csv.DictReader(opened)]
        if not all(map(math.isfinite, scores)):
            raise UserError("one is not finite")
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"environment: {file} has no column score of numbers: {error}") from error
    if not scores:
        raise UserError(f"environment: {file} holds no teams")
    lower_is_better = METRICS[metric].lower_is_better
    if (scores[0] < scores[-1]) != lower_is_better and scores[0] != scores[-1]:
        raise UserError(
            f"environment: {file} begins with {scores[0]:g} and ends with {scores[-1]:g}, and the best by {metric} has "
            f"the {'lowest' if lower_is_better else 'highest'} score; order it from the best on, or name another metric"
        )
    return Leaderboard(sorted(scores, reverse=not lower_is_better), lower_is_better)


@contextmanager
def _reading_errors(file: Path) -> Iterator[None]:
    """Context manager: name the unreadable file in errors."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"environment: {file} cannot be read as text in UTF-8, or as a table of it: {error}") from error


def check_limits(name: str, competition: Competition, limits: SandboxSettings) -> None:
    """Check that the sandbox limits leave room for the public files and for correct predictions.

    Raises:
        UserError: no program could earn a reward under these limits.
    """
    folders = {parent for file in competition.public for parent in PurePath(file).parents}
    files_needed = len(competition.public) + len(folders) + 2  # plus the program and its submission
    if files_needed > limits.max_files:
        raise UserError(
            f"environment: {name}: its {len(competition.public):,} public files take {files_needed:,} of the "
            f"{limits.max_files:,} that a run of a program may have; set environment.limits.max_files = {files_needed}"
        )
    kilobytes = math.ceil(sum(len(f"{key},{value}\n".encode()) for key, value in competition.answers.items()) / 1024)
    if kilobytes > limits.output_kb:
        raise UserError(
            f"environment: {name}: right predictions alone take {kilobytes:,} KB, and a program may give back "
            f"{limits.output_kb:,}; set environment.limits.output_kb = {2 * kilobytes}"
        )


def _check_competition(folder: Path, competition: Competition, sample: bytes) -> None:
    """Check that the sample submission matches the answers, and that the answers can be graded."""
    try:
        parse_predictions(sample.decode("utf-8-sig"), competition.columns, list(competition.answers))
    except (InvalidSubmissionError, UnicodeDecodeError) as error:
        raise UserError(f"environment: {folder}: its sample does not fit its answers: {error}") from error
    answer_table = io.StringIO()
    csv.writer(answer_table).writerows([competition.columns, *competition.answers.items()])
    try:
        competition.score(answer_table.getvalue())
    except InvalidSubmissionError as error:
        raise UserError(
            f"environment: {folder}: its own answers cannot be graded by {competition.metric}: {error}"
        ) from error
