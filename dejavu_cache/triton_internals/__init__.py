"""Everything that knows Triton's inside: an upgrade of Triton is read here."""
