"""The least that a launcher can be: start N processes, each with its rank, and wait. ``bare.py N COMMAND…``"""

import os
import subprocess
import sys

ranks = [subprocess.Popen(sys.argv[2:], env={**os.environ, "RANK": str(i)}) for i in range(int(sys.argv[1]))]
sys.exit(max(rank.wait() for rank in ranks))
