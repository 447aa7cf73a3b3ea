"""A log with a role: appends under a leader epoch, the high watermark, those who wait for it."""
