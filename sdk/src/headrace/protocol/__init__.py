"""The words all parts share: bytes, names, errors, paths. Pure; needs msgspec and the codecs only.

Map, in the order a record meets it: `record` → `batch` (its bytes) → `compression` → `framing`
(many partitions in one body) → `requests` (binary bodies) and `models` (JSON bodies) → `routes`
(paths) → `errors` (what may come back). `limits` bounds all of it, `names` says what a topic may be
called, `partitioner` where a key goes, `configs` which topic settings there are.
"""
