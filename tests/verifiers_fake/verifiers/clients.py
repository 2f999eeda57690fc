"""Clients, as the package has them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Client(ABC):
    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def setup_client(self, config: Any) -> Any: ...
