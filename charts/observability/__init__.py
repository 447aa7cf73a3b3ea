"""Alerts and dashboards of Headrace as values; charts/generate.py writes them into the chart."""
