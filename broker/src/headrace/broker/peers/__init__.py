"""Calls between brokers: a port, so that a simulation can bring its own network."""
