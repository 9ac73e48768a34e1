#!/bin/sh
# gpu-ami replica: the original finds out what the kernel's headers have; -k RELEASE.
set -e
test "$1" = -k
test -e "/lib/modules/$2/build/Makefile"
echo y
