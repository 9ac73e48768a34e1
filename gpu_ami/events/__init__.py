"""GPU events outside an image: the same code that runs on the image, for logs and hosts.

reader               events of a log, an archive, a host or standard input; what was left out, in sentences and as JSON
archives             compressed logs and archives, nested ones too, with limits
repeats              one fault once, where several logs have it
catalogue            what an Xid or SXid means and what to do about it
output               events for people; types of the lines of `gpu-ami events --json`
"""
