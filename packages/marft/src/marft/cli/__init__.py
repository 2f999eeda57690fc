"""Command-line interface ``marft`` and the Python API."""

import os

from marft.common.pools import wait_briefly

wait_briefly(os.environ)  # commands and the Python API pass here before torch is imported
