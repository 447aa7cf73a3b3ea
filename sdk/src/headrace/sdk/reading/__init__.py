"""The consumer's inner side, in the order of the flow: subscription, fetcher, handouts, decoding,
workers, commits; `session` holds them together."""
