"""Definitions of the subcommands: options and help texts. The implementation is imported when a command runs."""
