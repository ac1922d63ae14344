"""What is known about the options of the command line, in tables: the options, and which exclude each other."""
