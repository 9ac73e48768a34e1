"""What an image, a host, a file or a folder of somebody else's may try, each run from the command line as a user would.

SECURITY.md lists who is trusted with what, and names the test of each row.
"""
