"""Research: flow networks, federations, leagues, world models, learned instructions, cold starts, planning."""
