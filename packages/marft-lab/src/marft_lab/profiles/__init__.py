"""Instructions that are learned: proposed, played beside those that agents have, and kept where they are better."""
