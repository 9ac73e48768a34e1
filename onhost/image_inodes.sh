#!/bin/sh
# Prints as JSON when an inode of this file system last changed, and the inodes of all directories and of the links in
# its root directory. Mount points are not of this file system.
find / -xdev -printf '%D %C@ %y %i %p\n' | LC_ALL=C awk '
NR == 1 { device = $1 }
$1 != device { next }
$2 > newest { newest = $2 }
$3 == "d" || ($3 == "l" && $5 !~ /^\/.*\//) {
    name = $0
    sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name)
    if (name !~ /["\\[:cntrl:]]/) row[++rows] = "\"" name "\": " $4
}
END {
    printf "{\"newest\": %s, \"inodes\": {", newest
    for (i = 1; i <= rows; i++) printf "%s%s", (i > 1 ? ", " : ""), row[i]
    print "}}"
}'
