#!/bin/bash
# packages.sh PACKAGE…: installs the Debian packages that this machine lacks, by root or sudo; nothing if it has them all.
#
# On Debian 12 QEMU comes from Debian's backports (unless BACKPORTS=no): 10.0 takes a fifth less CPU time than 7.2 for the
# same machine. A QEMU that is installed stays as it is, and so does a Packer that is no Debian package: Debian 13 has none.
# What comes instead of the backports' QEMU is said, with the reason.
#
# No pipe here ends in a program that stops reading early (grep -q, head): what writes into it may die of SIGPIPE, and
# pipefail makes that a failure of the whole pipe.
set -euo pipefail

missing=()
for package in "$@"; do
  [[ $(dpkg-query -W -f "\${Status}" "$package" 2>/dev/null) = "install ok installed"* ]] && continue
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

# "URI KEYRING" of Debian 12 in apt's sources, a line for each; nothing on another system.
debian_12() {
  apt-get indextargets --format "\$(RELEASE) \$(REPO_URI) \$(SIGNED_BY)" 'Created-By: Packages' 'Component: main' |
    sed -n 's/^bookworm //p'
}

# Adds the backports to apt's sources, from where apt has Debian 12. $1: lines of debian_12. Fails if they cannot be had.
add_backports() {
  local uri keyring folder backports
  read -r uri keyring <<<"$1"
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
  fall_back "the backports cannot be had from $uri"
  return 1
}

fall_back() { # REASON
  echo "$1: QEMU is Debian 12's own, 7.2. The same machine takes it about 1.4 times as long as QEMU 10" >&2
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
    fall_back "apt cannot install ${qemu[*]} from the backports (above)"
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
in_backports() { [[ $(apt-cache madison qemu-system-x86) = *" bookworm-backports/"* ]]; }

# All programs of QEMU share a package of one version: a further one is of the release that the first was taken from.
installed=$(dpkg-query -W -f "\${Version}" qemu-system-common 2>/dev/null) || installed=""
if [[ $installed = *bpo* && " ${missing[*]}" = *" qemu-"* ]]; then
  install_qemu
elif [[ " ${missing[*]} " = *" qemu-system-x86 "* ]]; then
  sources=$(debian_12)
  if [ "${BACKPORTS:-yes}" != yes ]; then
    [ -z "$sources" ] || fall_back "BACKPORTS=${BACKPORTS:-}"
  elif in_backports; then
    install_qemu
  elif [ -n "$sources" ] && add_backports "$sources"; then
    if in_backports; then install_qemu; else fall_back "the backports have no qemu-system-x86"; fi
  fi
fi
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
if command -v qemu-system-x86_64 >/dev/null; then
  version=$(qemu-system-x86_64 --version)
  echo "${version%%$'\n'*}"
fi
