"""Live capture of NVIDIA Xid and SXid events from the kernel log. Python 3.7+, standard library alone.

records (kmsg, textlog) -> facts (grammar, details) -> events (catalogue, tracker, event) -> files (sinks, state),
tied together by service (live, exactly once) and textparse (files and standard input).
"""

SCHEMA = "gpu-ami/event/1"
VERSION = "1.0"
