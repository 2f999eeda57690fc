"""What worlds on a grid share: cells and maps, their symmetries, distances, moves in words, sessions in moves."""
