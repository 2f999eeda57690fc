"""What worlds on a grid share: cells and maps, symmetries, distances, moves in words, sessions that are played in moves."""
