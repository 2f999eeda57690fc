"""MLflow logger."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.common.texts import truncate
from marft.config.interfaces.metric_logger import MetricLogger, RunInfo
from marft.config.settings import NonEmptyString, PlainTable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ID = "marft.run"  # tag that identifies the run on resume
MAX_LENGTH = 4_000  # maximum length of a parameter or tag, in characters
MAX_PARAMETERS = 100  # maximum number of parameters in a request
FORBIDDEN_CHARACTERS = re.compile(r"[^/\w.\- :]")


class MLflow(MetricLogger):
    """Logger for an MLflow tracking server or database. A resumed run continues the same MLflow run, found by its tag
    ``marft.run``.
    """

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    experiment: NonEmptyString = Field(default="marft", description="name of the experiment; created if missing")
    tracking_uri: str = Field(
        default="",
        description=(
            'tracking server or database, such as http://host:5000 or sqlite:///mlflow.db; "": MLFLOW_TRACKING_URI, '
            "else MLflow's default"
        ),
    )
    run_name: str = Field(default="", description='run name in MLflow; "": the name of the MARFT run')
    tags: PlainTable = Field(default={}, description="additional tags: names and values")

    @field_validator("tracking_uri")
    @classmethod
    def _check_no_password(cls, uri: str) -> str:
        try:
            is_safe = not urlsplit(uri).password
        except ValueError:
            is_safe = False
        if not is_safe:
            raise PydanticCustomError(
                "uri",
                "must hold no password: name it in MLFLOW_TRACKING_URI, or MLFLOW_TRACKING_USERNAME and _PASSWORD",
            )
        return uri

    def open(self, run: RunInfo) -> _Run:
        """Open the MLflow run, creating it if missing."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self.tracking_uri or None)
        experiment_info = client.get_experiment_by_name(self.experiment)
        experiment = experiment_info.experiment_id if experiment_info else client.create_experiment(self.experiment)
        matching_runs = client.search_runs([experiment], f"tags.`{ID}` = '{run.id}'", max_results=1)
        if matching_runs:
            opened = _Run(client, matching_runs[0].info.run_id)
            client.update_run(opened.id, status="RUNNING")
            logged_params = matching_runs[0].data.params
        else:
            tags = {ID: run.id, **{name: str(text) for name, text in self.tags.items()}}
            created = client.create_run(experiment, tags=tags, run_name=self.run_name or run.name)
            opened, logged_params = _Run(client, created.info.run_id), {}
        logged = {sanitize_name(key): truncate(str(value), MAX_LENGTH) or '""' for key, value in run.parameters.items()}
        new = [
            Param(key, value) for key, value in logged.items() if key not in logged_params
        ]  # MLflow parameters cannot change
        for first in range(0, len(new), MAX_PARAMETERS):
            client.log_batch(opened.id, params=new[first : first + MAX_PARAMETERS])
        return opened


class _Run:
    def __init__(self, client: MlflowClient, run: str) -> None:
        self._client, self.id, self._notes = client, run, 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        timestamp = int(time.time() * 1000)
        self._client.log_batch(
            self.id, [Metric(sanitize_name(key), value, timestamp, step) for key, value in metrics.items()]
        )

    def note(self, step: int, text: str) -> None:
        self._notes += 1
        self._client.set_tag(self.id, f"note of step {step:06d}.{self._notes}", truncate(text, MAX_LENGTH))

    def close(self) -> None:
        self._client.set_terminated(self.id)


def sanitize_name(name: str) -> str:
    """Return a metric or parameter name in characters that MLflow accepts.

    >>> sanitize_name("pass@2"), sanitize_name("agents/actor/kl"), sanitize_name("rewards/../x")
    ('pass_2', 'agents/actor/kl', 'rewards_.._x')
    """
    name = FORBIDDEN_CHARACTERS.sub("_", name)
    return name if posixpath.normpath(name) == name and name[:1] not in "./" else name.replace("/", "_")
