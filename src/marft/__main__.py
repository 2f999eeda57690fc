"""``python -m marft``: the command, where it is not on the path."""

from marft.cli.main import command

if __name__ == "__main__":
    command()
