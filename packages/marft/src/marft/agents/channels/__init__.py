"""Communication channels between agents, one per file (entry-point group ``marft.channels``)."""
