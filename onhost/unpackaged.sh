#!/bin/sh
# Prints each file and link of the system's directories that no package owns: type, mode, path and link target,
# separated by tabs; the last line is "end", or a tool of the system did not do its work. Exit 3: no package manager,
# or one that does not know the system's own programs (unless $whole is set: then these are printed, too).
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin

owned() {
    if [ -s /var/lib/dpkg/status ] && command -v dpkg-query >/dev/null; then
        cat /var/lib/dpkg/info/*.list
        # Configuration that packages generate (ucf), as they left it: 50unattended-upgrades of every Ubuntu AMI.
        md5sum --check /var/lib/ucf/hashfile 2>/dev/null | sed -n 's/: OK$//p'
        dpkg-divert --list | sed -nE 's/^.*diversion of .* to (\/.*)$/\1/p' | sed 's/ by [^ ]*$//'
    elif command -v rpm >/dev/null; then
        rpm -qal
    fi
}

su=$(readlink -f "$(command -v su)")
# With a merged /usr, packages list some files by their former path.
merged=
[ ! -L /bin ] || merged=1

{
    owned
    echo //
    find /etc /usr /boot /opt /srv -xdev \
        \( -path /usr/share -o -path '/usr/src/linux-*' -o -path /usr/src/kernels -o -path /usr/include -o -name __pycache__ -o -path '/usr/lib/modules/*/build' \) -prune \
        -o \( -type f -o -type l \) -printf '%y\t%m\t%p\t%l\n'
} | awk -F '\t' -v su="$su" -v whole="${whole:-}" -v merged="$merged" '
    found && !($3 in own) { print | "sort -t \"\t\" -k 3" }
    found { next }
    $0 == "//" { found = 1; if (!whole && !(su in own)) exit status = 3; next }
    merged && /^\/(bin|sbin|lib|lib32|lib64|libx32)\// { own["/usr" $0] = 1; next }
    { own[$0] = 1 }
    END { if (!status) print "-\t\tend" | "sort -t \"\t\" -k 3"; exit status }'
