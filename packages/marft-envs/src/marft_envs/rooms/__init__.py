"""Multi-room kitchens: agents fetch, cook and serve, block each other's way, and see one room each."""
