"""What agents pass on to each other, one channel a file (entry-point group ``marft.channels``)."""
