"""``python -m marft``: the command, where it is not on the path."""

from marft.cli.main import main

if __name__ == "__main__":
    main()
