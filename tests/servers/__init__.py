"""Real servers for tests, on free loopback ports."""
