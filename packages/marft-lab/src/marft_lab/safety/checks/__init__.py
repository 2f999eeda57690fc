"""What a team must not do, or is made to do by an attack: one file a check."""
