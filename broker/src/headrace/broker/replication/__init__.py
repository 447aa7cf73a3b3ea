"""Copying partitions between brokers: the leader's answers, the follower's loops, the ISR."""
