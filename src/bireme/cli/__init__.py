"""The command line: one module for each command, the parser, and the help pages."""
