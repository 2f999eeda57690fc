"""Cold start: a teacher plays tasks, filters drop unsuitable episodes, and the rest becomes imitation rows per role."""
