"""The HTTP API: runs, input, checkpoints, streams, the inbox, and the console page."""
