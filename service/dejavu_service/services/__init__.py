"""What may happen: roles, append-only merging, leases, pins and promotion, in terms of the storage."""
