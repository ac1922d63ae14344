"""Tables of the command line's options: what each does, which exclude each other, and those of other launchers."""
