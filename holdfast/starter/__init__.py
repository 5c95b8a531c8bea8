"""Where people come in: client, command line, embedded server."""
