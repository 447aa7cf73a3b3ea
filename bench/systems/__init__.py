"""The systems that bench/peers.py compares: for each, how its server is started and how a user of
its usual Python client produces and consumes. `base` says what a system is, `server` runs
processes; bench/README.md gives the reason for each setting.
"""
