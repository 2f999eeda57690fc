"""``python -m marft``: run the command line when ``marft`` is not on PATH."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working folder: imports of libraries must not resolve there

from marft.cli.main import command

if __name__ == "__main__":
    command()
