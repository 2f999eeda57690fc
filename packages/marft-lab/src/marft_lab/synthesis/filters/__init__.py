"""Filters of a teacher's episodes, one pure function per file."""
