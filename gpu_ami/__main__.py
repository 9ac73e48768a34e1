"""`python -m gpu_ami` is `gpu-ami`."""

import sys

if not sys.flags.safe_path:  # the working folder is searched last: a secrets.py there is not the standard library's
    sys.path.append(sys.path.pop(0))

from gpu_ami.cli import entry

entry()
