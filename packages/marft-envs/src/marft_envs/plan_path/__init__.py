"""Ways through a grid with walls."""
