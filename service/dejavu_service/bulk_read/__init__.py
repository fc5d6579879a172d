"""Reads of a whole context or of one record, never older than the request, at the speed of a cache.

Every process of a fleet reads records at its start, so these are by far the server's most frequent
requests. Reading, rendering and compressing the records each time is too slow for them: with the
cache turned off, the server answers 245 bulk reads a second on SQLite and 336 on Postgres. With it,
it answers 6006 and 6945 a second, and 7331 and 8178 revalidations by 304: 0.68 to 1.02 of what a
bare FastAPI endpoint reaches that sends the same bytes. (Contexts of 100 records with 12 configs
each, 16 connections, 2 cores shared with the database and the load generator;
`benchmarks/service.py` measures it, `benchmarks/results/service.md` has all results.)

Each module removes one cost:

- `answers` renders and compresses a context, its scenarios or one record once for each revision,
  and `answer_cache` keeps the result in memory. Replicas need not invalidate each other's caches:
  each request first asks the database for the current revision, and an answer of another revision
  is not used.
- `key_lookups` makes that question cheap: on SQLite a call in the event loop instead of a thread,
  on Postgres, by `grouped_queries`, one query over libpq for all requests that wait, which takes a
  fifth of the processor time of a psycopg cursor.
- `single_flight` lets requests that arrive together render an answer once.
"""
