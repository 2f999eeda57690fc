"""``python -m marft``: the command, where it is not on the path."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working folder, in which no import of a library may resolve

from marft.cli.main import command

if __name__ == "__main__":
    command()
