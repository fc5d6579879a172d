"""The team's cache server: records by HTTP, kept in SQLite or Postgres."""
