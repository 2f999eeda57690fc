"""Credit audit: the advantages that several algorithms give to the same recorded episodes."""
