"""The cache server: tuning records over HTTP, stored in SQLite or Postgres."""
