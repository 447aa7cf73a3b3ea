"""Headrace for Spark: a Python data source, batch and streaming, read and write."""
