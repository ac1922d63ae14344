"""Plans a job: ranks, environments, commands, exported variables. Pure, except for reading environment files."""
