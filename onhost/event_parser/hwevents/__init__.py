"""Live capture of NVIDIA Xid and SXid events from the kernel log. Python 3.7+, standard library only.

records (kmsg; prefix, wrappers) -> facts (grammar, details, nvlink5) -> events (catalogue, event, tracker) -> files
(outbox, sinks, state, emf); run by service (live, exactly once) or by textlog (files and standard input).
"""

SCHEMA = "gpu-ami/event/1"
VERSION = "1.0"
