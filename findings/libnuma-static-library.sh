#!/bin/sh
# Debian's static libnuma (libnuma-dev 2.0.16-1, Debian 12) goes into programs and not into shared libraries: its thread-local
# variables are compiled for programs alone (relocation R_X86_64_TPOFF32). DPDK's static EAL of the same release goes into
# both, and it calls libnuma. So a shared library, such as a provider or a plugin, cannot hold all of DPDK, although
# `pkg-config --static --libs libdpdk` names libnuma like any other library.
# Seen on 2026-11-30 with gcc 12.2:
#   program with libnuma.a: status 0
#   shared library with librte_eal.a: status 0
#   shared library with libnuma.a: status 1, relocation R_X86_64_TPOFF32 against `mbind_flags' can not be used when making a
#   shared object; recompile with -fPIC
# Needs Debian 12 and gcc.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq libnuma-dev=2.0.16-1 libdpdk-dev=22.11.11-0+deb12u1 >/dev/null 2>&1 ||
    { echo "these versions are not to be had any more"; exit 1; }
for file in *.deb; do dpkg -x "$file" unpacked; done
libraries=unpacked/usr/lib/x86_64-linux-gnu
cat >probe.c <<'C'
int numa_available(void);
int probe(void) { return numa_available(); }
int main(void) { return probe() == 2; }
C

status=0
gcc -o program probe.c "$libraries/libnuma.a" || status=$?
echo "program with libnuma.a: status $status"
[ "$status" = 0 ] || exit 1

gcc -shared -fPIC -o eal.so -Wl,--whole-archive "$libraries/librte_eal.a" -Wl,--no-whole-archive || status=$?
echo "shared library with librte_eal.a: status $status"
[ "$status" = 0 ] || exit 1

LC_ALL=C gcc -shared -fPIC -o numa.so probe.c "$libraries/libnuma.a" 2>said || status=$?
echo "shared library with libnuma.a: status $status, $(grep -o 'relocation .*' said)"
[ "$status" != 0 ] && grep -q "R_X86_64_TPOFF32 against .mbind_flags" said
