"""Write COUNT records to the store ROOT, and print each one's size once it is acknowledged.

Arguments: ROOT START COUNT; the records' sizes are START, START + 1, ….
"""

from __future__ import annotations

import sys
from datetime import timedelta

from support.records import MOMENT, context, measurement, record

from dejavu_cache.stores import FileStore

store, start, count = FileStore(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for m in range(start, start + count):
    store.put(context(), [record(m, measurement(64, 1.0, MOMENT + timedelta(seconds=m)))])
    print(m, flush=True)
