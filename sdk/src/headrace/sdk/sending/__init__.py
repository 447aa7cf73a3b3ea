"""The producer's inner side, in the order of the flow: rows, intake (with unrouted), bulk, topics,
buffer, schedule, sender, outcomes, deliveries."""
