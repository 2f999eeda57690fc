"""Command-line interface ``marft`` and the Python API."""

import os

from marft.common.thread_settings import limit_spinning

limit_spinning(os.environ)  # commands and the Python API pass here before torch is imported
