"""Questions whose answers have to be looked up, in pages and files, and worked out: GAIA, and what is drawn in its manner."""
