"""The SDK's decisions: values in, values out. No asyncio, sockets, clocks, randomness, logs."""
