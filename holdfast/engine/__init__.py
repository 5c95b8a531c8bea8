"""The drivers: plain async Python against a small protocol of ports. No Temporal, no clock, no I/O."""
