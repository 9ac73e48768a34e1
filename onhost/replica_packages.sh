#!/bin/sh
# Prints packages that replace the vendors', one a line: "yes", name, version and summary, separated by tabs.
# A replica .deb has a field of its own, a replica .rpm has its own vendor.
{
    # shellcheck disable=SC2016  # dpkg-query's own variables
    dpkg-query -W -f '${Gpu-Ami-Replica}\t${Package}\t${Version}\t${binary:Summary}\t${db:Status-Status}\n'
    rpm -qa --qf '%{VENDOR}\t%{NAME}\t%{VERSION}-%{RELEASE}\t%{SUMMARY}\n' | sed -n 's/^gpu-ami replica\t/yes\t/p'
} 2>/dev/null | sed '/\tconfig-files$/d' | grep -i '^yes'
