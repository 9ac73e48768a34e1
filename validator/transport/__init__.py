"""Connections to hosts: one connection, one shell, commands in batches.

ssh                  SSH connections
known_hosts          host keys that the user knows, as OpenSSH reads them
target               address, user, port and key of a host, with its options in ~/.ssh/config
errors               errors of connections and commands
budget               what one host may send, and be waited for, in a run
shell                one long-lived `sh` that runs batches of commands; constants of a run are asked once
image_files          the files of an image instead of a host (tier T0)
cage                 the only way in which a program of an image runs here; a program itself
transcript           a machine of which only files, outputs of commands and package lists are known
transcript_values    what a transcript.yml says
backend              testinfra's backend over these
"""

from validator.transport.shell import Answer, Command
from validator.transport.ssh import Connection, Finished, SshError, Target, TransportFault, parse_url
from validator.transport.transcript_values import FILE as TRANSCRIPT_FILE

__all__ = [
    "TRANSCRIPT_FILE",
    "Answer",
    "Command",
    "Connection",
    "Finished",
    "SshError",
    "Target",
    "TransportFault",
    "parse_url",
]
