"""`python -m app` with these arguments, in this very process, which ends with the one that started it, however that went."""

import os
import sys

from app.cli.processes import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())  # the kernel keeps it across exec
    os.execv(sys.executable, [sys.executable, "-m", "app", *sys.argv[1:]])
