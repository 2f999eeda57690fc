"""Questions whose answers are looked up in pages and files, and worked out: GAIA's, and what is drawn alike."""
