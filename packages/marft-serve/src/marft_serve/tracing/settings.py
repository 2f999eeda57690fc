"""Settings for the live export of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.config.endpoint import is_server_url
from marft.config.settings import Count, Positive
from marft.trainer.hooks import TrainingSection

if TYPE_CHECKING:
    from marft.common.callbacks import Callback
    from marft.config.run import RunSettings
    from marft.runs.run_folder import RunFolder


class TracingSettings(TrainingSection):
    """OTLP endpoint for live export. Set request headers in ``OTEL_EXPORTER_OTLP_HEADERS``."""

    key: ClassVar[str] = "tracing"

    otlp: str = Field(default="", description='URL of the endpoint, for example "http://localhost:4318"; "": no export')
    include_content: bool = Field(
        default=False, description="include prompts, answers, and arguments and results of tool calls"
    )
    timeout_seconds: Positive = Field(default=10.0, description="timeout for a response, in seconds")
    max_queued_episodes: Annotated[Count, Field(le=1_000_000)] = Field(
        default=1024, description="maximum number of queued episodes; later episodes are dropped"
    )

    @field_validator("otlp")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not is_server_url(url):
            raise PydanticCustomError(
                "url",
                "must look like http://localhost:4318, with what is secret in the environment variable "
                "OTEL_EXPORTER_OTLP_HEADERS",
            )
        return url

    def callbacks(self, run: RunSettings, folder: RunFolder) -> Sequence[Callback]:
        """Return the callback that exports the run's episodes, if an endpoint is set."""
        if not self.otlp:
            return ()
        from marft_serve.tracing.live_exporter import TracingCallback

        hint = f". Send them later:  marft trace {folder.path} --otlp {self.otlp}"
        return (TracingCallback(self, folder.read_id(), run.model_dump(mode="json"), hint),)
