#!/bin/sh
# Debian 13's ucx_perftest (ucx-utils 1.18.1+ds-2+b1) is built with MPI, and then it is neither a server nor a client any more,
# although its help still says how to start both. Each ends at once and wants to be one of two ranks. So it compares UCX's
# transports between two hosts or containers only where MPI can start it there: mpirun -np 2 ucx_perftest. Debian 12's (1.13.1) is
# built without.
# Seen on 2026-11-30:
#   the help: Usage: ucx_perftest [ server-address ] [ options ]
#   a server: status 255, This test should be run with exactly 2 processes in p2p case (actual: 1)
# Needs root, for chroot, and an apt of Debian.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# Debian 13's lists, from the archive that apt uses, beside the machine's own.
archive=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
    sed -nE 's/ (bookworm|trixie)$//p' | head -n 1)
[ -n "$archive" ] || { echo "apt has no archive of Debian"; exit 1; }
echo "deb $archive trixie main" >sources
mkdir -p state/lists/partial cache/archives/partial
touch state/status
apt() {
    apt-get -o Dir::Etc::sourcelist="$folder/sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$folder/state" \
        -o Dir::State::status="$folder/state/status" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@"
}
apt -qq update
wanted=$(apt -s install --no-install-recommends ucx-utils=1.18.1+ds-2+b1 | sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p')
[ -n "$wanted" ] || { echo "this version is not to be had any more"; exit 1; }
# shellcheck disable=SC2086
apt -qq download $wanted
mkdir -p root/usr/bin root/usr/lib root/usr/lib64 root/tmp
for name in bin lib lib64; do ln -s "usr/$name" "root/$name"; done
for file in *.deb; do dpkg-deb --fsys-tarfile "$file" | tar -x -C root --keep-directory-symlink; done

help=$(chroot root /usr/bin/ucx_perftest -h 2>&1 | grep -i 'usage' | sed 's/^ *//') || help=
echo "the help: $help"
case "$help" in *server-address*) ;; *) exit 1 ;; esac
status=0
timeout 60 chroot root /usr/bin/ucx_perftest -t tag_lat >said 2>&1 || status=$?
echo "a server: status $status, $(grep -o 'This test should be run.*' said)"
[ "$status" != 0 ] && grep -q "exactly 2 processes" said
