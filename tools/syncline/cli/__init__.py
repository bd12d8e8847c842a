"""The command line: the only code, with the testing kit, that sees client and server both."""
