"""Kitchens of several rooms: agents who fetch, cook and serve, get in each other's way, and see one room each."""
