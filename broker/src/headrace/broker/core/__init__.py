"""Decisions, and nothing else: functions from values to values, without loop, clock or file.

`model` holds the values of coordination and `encoding` their bytes; `transitions` makes the next
partition record, `election` says who leads, `placement` where replicas go, `topic_plan` the next
step of a topic's life, `topic_config` which settings there are, `standing` what a starting broker
is, `liveness` who is dead, `batch_rules` what a leader takes, `retention` what may go.
"""
