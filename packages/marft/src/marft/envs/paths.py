"""Paths to files and folders in environment settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from marft.config.folders import from_recipe


def _absolute(path: str, info: ValidationInfo) -> str:
    return from_recipe(path, info.context) if path else ""


Place = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_absolute)]  # absolute path; "" without a path
