"""``python -m bireme``: the same as the command ``bireme``."""

from bireme.cli.main import command

if __name__ == "__main__":
    command()
