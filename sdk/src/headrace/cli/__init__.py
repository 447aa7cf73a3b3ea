"""The command line: `headrace`. A thin face over the SDK.

Each command parses its flags, calls the SDK and prints; what it prints is made by pure functions
(`tables`, `line_format`). The broker is started as a process of its own (`dev`, `broker`), never
imported.
"""
