"""A new process that imports one module and prints the milliseconds; it imports nothing else."""

import sys
import time
from importlib import import_module

if __name__ == "__main__":
    since = time.perf_counter()
    import_module(sys.argv[1])
    print((time.perf_counter() - since) * 1000)
