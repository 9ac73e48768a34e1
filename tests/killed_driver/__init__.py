"""`gpu-ami` from plan to publication as a process that can be killed; Packer and machines are scripted, time is quick.

packer.py    the calls of Packer 1.6.6
commands.py  forks a process a line, which runs commands one after the other
account.py   the moments at which a driver is killed, and what is left in its account
project.py   an account, a place in it, and a folder in which the commands run
"""

SPEED = 10.0  # seconds of a region's clock, and of every wait, in one second
