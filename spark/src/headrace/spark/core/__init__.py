"""Decisions of source and sink: values in, values out; no Spark, no network, no clock."""
