"""Finds what a job can use: hosts, slots, devices, cores, addresses, a port, the program."""
