"""peak_memory.py COMMAND...: runs it and prints, after what it says, the peak of its resident memory in bytes.

A process begins with the peak of the one that it was started from, so a test that measures stands behind this small one.
"""

import resource
import subprocess
import sys

done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(done.returncode)
