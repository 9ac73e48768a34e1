#!/bin/sh
# Prints what has changed in the root file system since an image was made of it: the time now; inode and path of each
# named file; mount points; each path whose inode has changed after the time. Parts are separated by lines of "//", the
# last line is "end".
# $1: the time, in seconds since 1970  $2…: paths
export LC_ALL=C
since=$1
shift
date +%s
echo //
stat -c '%i %n' -- "$@" 2>/dev/null
echo //
cut -d' ' -f2 /proc/self/mounts
echo //
find / -xdev -newerct "@$since" -printf '%p\n'
echo //
echo end
