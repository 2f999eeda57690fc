"""Paths to files and folders in environment settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from marft.config.paths import resolve_recipe_path


def _resolve_path(path: str, info: ValidationInfo) -> str:
    return resolve_recipe_path(path, info.context) if path else ""


AbsolutePath = Annotated[
    str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_resolve_path)
]  # absolute path; "" without a path
