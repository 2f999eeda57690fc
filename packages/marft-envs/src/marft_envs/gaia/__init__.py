"""GAIA and generated tasks in its format: answer questions by lookup in pages and files, and by calculation."""
