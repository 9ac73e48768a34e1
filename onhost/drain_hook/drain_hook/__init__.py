"""Notices of an instance's end, and the scripts that they run. Python 3.7 or newer, standard library only.

metadata    the instance metadata service (IMDSv2)
notices     the notices of interruption, termination and maintenance that it tells
scripts     runs the scripts of a folder in their order, before a deadline
state       what was done for which notice, across restarts and kill -9
service     watches, runs, and writes the log that the CloudWatch agent sends
"""
