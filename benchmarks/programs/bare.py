"""The simplest possible launcher: ``bare.py N COMMAND…`` starts N processes, each with its rank, and waits."""

import os
import subprocess
import sys

ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, "RANK": str(i)}) for i in range(int(sys.argv[1]))]
sys.exit(max(rank.wait() for rank in ranks))
