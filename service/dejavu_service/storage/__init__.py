"""Tables and the SQL on them; each function works within a connection of the caller's."""
