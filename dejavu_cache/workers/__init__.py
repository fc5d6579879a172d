"""Child processes that exchange JSON lines with their parent."""
