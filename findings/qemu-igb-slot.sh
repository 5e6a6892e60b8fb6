#!/bin/sh
# qemu's NIC with several queues (igb, Intel 82576; qemu 10.0.2 of Debian 12's backports) goes into the slots up to 0d of q35's
# root bus only. It reserves addresses for eight virtual functions from 80 (hexadecimal) behind its own on, although nobody has
# asked for one. From slot 0e on they meet q35's own devices in slot 1f, and from 0f on they lie behind the bus's end. So a guest
# with many NICs, such as a bench of DPDK's drivers, has to put the igb ones first, or behind a pcie-root-port. Other NICs of qemu
# have no such limit.
# Seen on 2026-11-30:
#   igb in slot 0d: starts
#   igb in slot 0e: qemu-system-x86_64: -device igb,romfile=,addr=0e.0: PCI: slot 31 function 0 not available for igbvf, in use by
#   ICH9-LPC,id=(null)
#   igb in slot 0f: qemu-system-x86_64: -device igb,romfile=,addr=0f.0: VF addr overflows
#   e1000e in slot 0f: starts
#   igb behind a root port in slot 0f: starts
# Needs Debian 12, whose archive has the backports.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# The backports' lists, from the archive that apt uses, beside the machine's own.
archive=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | sed -n 's/ bookworm$//p' | head -n 1)
[ -n "$archive" ] || { echo "apt has no archive of Debian 12"; exit 1; }
printf 'deb %s bookworm main\ndeb %s bookworm-backports main\n' "$archive" "$archive" >sources
mkdir -p state/lists/partial cache/archives/partial
apt() {
    apt-get -o Dir::Etc::sourcelist="$folder/sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$folder/state" \
        -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@"
}
apt -qq update
wanted=$(apt -s install --no-install-recommends -t bookworm-backports 'qemu-system-x86=1:10.0.2+ds-2+deb13u1~bpo12+1' qemu-utils- |
    sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p') || { echo "this version is not to be had any more"; exit 1; }
# shellcheck disable=SC2086
apt -qq download $wanted
for file in *.deb; do dpkg -x "$file" root; done

start() { # what is started, devices ...
    what=$1
    shift
    said=$(echo quit | LD_LIBRARY_PATH=root/usr/lib/x86_64-linux-gnu:root/lib/x86_64-linux-gnu timeout 60 \
        root/usr/bin/qemu-system-x86_64 -L root/usr/share/qemu -L root/usr/share/seabios -nodefaults -no-user-config \
        -display none -machine q35,usb=off -accel tcg -m 64 -S -monitor stdio "$@" 2>&1) && said=starts
    echo "$what: $(echo "$said" | tail -n 1 | sed 's|.*/qemu|qemu|')"
}
start "igb in slot 0d" -device igb,romfile=,addr=0d.0
[ "$said" = starts ]
start "igb in slot 0e" -device igb,romfile=,addr=0e.0
case "$said" in *"not available for igbvf"*) ;; *) exit 1 ;; esac
start "igb in slot 0f" -device igb,romfile=,addr=0f.0
case "$said" in *"VF addr overflows"*) ;; *) exit 1 ;; esac
start "e1000e in slot 0f" -device e1000e,romfile=,addr=0f.0
[ "$said" = starts ]
start "igb behind a root port in slot 0f" -device pcie-root-port,id=behind,slot=1,addr=0f.0 -device igb,romfile=,bus=behind
[ "$said" = starts ]
