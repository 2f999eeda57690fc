"""Path planning on a grid with walls."""
