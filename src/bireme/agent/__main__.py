"""``python -m bireme.agent``: one node's launcher, started by hand or by an orchestrator."""

from bireme.cli.agent import command

if __name__ == "__main__":
    command()
