"""The command line: one file a command; it only parses and prints."""
