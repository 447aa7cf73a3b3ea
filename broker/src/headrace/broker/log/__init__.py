"""The log of one partition and the data directory: whole batches to files and back, and recovery.

Map: files (storage port, descriptors, threads), journal (framed append-only files), index and
segment (one .log file), epochs, producers (idempotence), log (appending, and the face of its parts:
state, segments, replicated, reader, lookups, slices, cutter, truncations, retention, snapshots,
restore, syncing, cleaning), compactor (one pass of cleaning), compaction_process (where it runs),
swap (its crash-safe end), flusher (group commit), recovery (what is done at start), volume (the
data directory).
"""
