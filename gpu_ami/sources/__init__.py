"""Sources: is everything that a plan names really there, signed by the planned key, before anything is launched?

errors           what keeps a source from answering as a plan expects
cache            answers kept in the user's cache folder
client           HTTP: deadlines, limits, proxies, TLS
compression      gzip, xz and zstd, with a limit of what they hold
keys             OpenPGP keys and signatures
rpm_versions     order of rpm versions
index            packages of a repository: there, near, newer
repository       a repository as a plan names it, and what was read of it
apt              apt repositories
dnf              dnf repositories
dependencies     dependencies inside a repository, at the planned versions
"""
