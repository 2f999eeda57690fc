"""A second team beside one that is served: it plays recorded sessions without effects, and a test judges it."""
