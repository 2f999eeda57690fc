"""Playing episodes again from one action on, for a credit that asks for it: one file a mode."""
