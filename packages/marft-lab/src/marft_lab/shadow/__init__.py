"""Shadow evaluation: a second team plays recorded sessions of a served team without effects; a test compares both."""
