#!/bin/sh
# Packages that stand in for the vendors' own: "yes", name, version and summary, separated by tabs, one a line.
# A .deb says so in a field of its own, an .rpm in its vendor.
{
    # shellcheck disable=SC2016  # dpkg-query's own variables
    dpkg-query -W -f '${Gpu-Ami-Replica}\t${Package}\t${Version}\t${binary:Summary}\t${db:Status-Status}\n'
    rpm -qa --qf '%{VENDOR}\t%{NAME}\t%{VERSION}-%{RELEASE}\t%{SUMMARY}\n' | sed -n 's/^gpu-ami replica\t/yes\t/p'
} 2>/dev/null | sed '/\tconfig-files$/d' | grep -i '^yes'
