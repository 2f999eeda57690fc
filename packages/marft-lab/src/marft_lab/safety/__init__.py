"""Whether a team does what strangers order, says what it must not, or tells what it was to keep."""
