"""GPU events outside an image: the same code that runs on the image, for logs and hosts.

reader               events of a log file, a host or standard input
catalogue            what an Xid or SXid means and what to do about it
"""
