#!/bin/bash
# packages.sh PACKAGE…: installs the Debian packages that this machine lacks, by root or sudo; nothing if it has them all.
#
# On Debian 12 QEMU comes from Debian's backports (unless BACKPORTS=no): 10.0 takes a fifth less CPU time than 7.2 for the
# same machine. A QEMU that is installed stays as it is, and so does a Packer that is no Debian package: Debian 13 has none.
set -euo pipefail

missing=()
for package in "$@"; do
  dpkg-query -W -f "\${Status}" "$package" 2>/dev/null | grep -q '^install ok installed' && continue
  [ "$package" = packer ] && command -v packer >/dev/null && continue
  missing+=("$package")
done
[ ${#missing[@]} = 0 ] && exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  install="apt-get install --no-install-recommends -y ${missing[*]}"
  if ! command -v sudo >/dev/null; then
    echo "These Debian packages are missing, and installing them needs root:" >&2
    echo "  su -c 'apt-get update && $install'" >&2
    exit 2
  fi
  if ! sudo -n true 2>/dev/null && [ ! -t 0 ]; then
    echo "These Debian packages are missing, and sudo asks for a password:" >&2
    echo "  sudo apt-get update && sudo $install" >&2
    exit 2
  fi
  as_root=(sudo)
fi

# Adds the backports to apt's sources, from where apt has Debian 12; fails where that is not so, or they are not there.
add_backports() {
  local source uri keyring folder backports
  source=$(apt-get indextargets --format "\$(RELEASE) \$(REPO_URI) \$(SIGNED_BY)" 'Created-By: Packages' \
    'Component: main' | sed -n 's/^bookworm //p' | head -n 1)
  read -r uri keyring <<<"$source"
  [ -n "$uri" ] || return 1
  [[ $keyring = /* ]] || keyring="" # apt leaves the field's name where a source names no keyring
  eval "$(apt-config shell folder Dir::Etc::sourceparts/d)"
  backports=${folder}gpu-ami-backports.sources
  echo "QEMU comes from Debian's backports, which $backports adds to apt's sources (make BACKPORTS=no: it does not)"
  printf '%s\n' "# Written by gpu-ami. apt takes nothing from here by itself." "Types: deb" "URIs: $uri" \
    "Suites: bookworm-backports" "Components: main" ${keyring:+"Signed-By: $keyring"} |
    "${as_root[@]}" tee "$backports" >/dev/null
  "${as_root[@]}" apt-get update -q -o Dir::Etc::sourcelist="$backports" -o Dir::Etc::sourceparts=- \
    -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any && return
  "${as_root[@]}" rm -f "$backports"
  echo "the backports cannot be had from $uri: QEMU is Debian 12's own, then"
  return 1
}

apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# QEMU from the backports, if apt can install it from there: a release for the whole command, since apt takes what
# QEMU depends on from Debian 12 where the release is named for each package ("qemu-utils/bookworm-backports").
install_qemu() {
  local package qemu=() others=()
  for package in "${missing[@]}"; do
    case $package in qemu-*) qemu+=("$package") ;; *) others+=("$package") ;; esac
  done
  if ! apt-get install -s -q --no-install-recommends -t bookworm-backports "${qemu[@]}" >/dev/null; then
    echo "apt cannot install ${qemu[*]} from the backports (above): QEMU is Debian 12's own, then"
    return
  fi
  apt_install -t bookworm-backports "${qemu[@]}"
  missing=("${others[@]}")
}

echo "installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
if [[ " ${missing[*]} " = *" packer "* ]] && [ -z "$(apt-cache madison packer)" ]; then
  echo "This system has no package packer. Install HashiCorp's (https://developer.hashicorp.com/packer/install), then run make again." >&2
  exit 2
fi
# All programs of QEMU share a package of one version: a further one is of the release that the first was taken from.
if [ "$(dpkg-query -W -f "\${Version}" qemu-system-common 2>/dev/null | grep -c bpo)" = 1 ] && [[ " ${missing[*]}" = *" qemu-"* ]]; then
  install_qemu
elif [ "${BACKPORTS:-yes}" = yes ] && [[ " ${missing[*]} " = *" qemu-system-x86 "* ]]; then
  there() { apt-cache madison qemu-system-x86 | grep -q ' bookworm-backports/'; }
  if there || { add_backports && there; }; then
    install_qemu
  fi
fi
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
