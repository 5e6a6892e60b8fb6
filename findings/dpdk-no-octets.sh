#!/bin/sh
# DPDK 22.11.11 (Debian 12): net_ring and net_null count frames and no octets. testpmd's "RX-bytes" and "TX-bytes" of both
# stay 0, and "Rx-bps" with them, although frames go round by the million. So a monitor that derives throughput from a
# port's octets shows an idle port. net_memif counts both.
# Seen on 2026-11-30:
#   net_ring: RX 324617248 frames, 0 octets; TX 324617280 frames, 0 octets
#   net_null: RX 20730048 frames, 0 octets; TX 20730048 frames, 0 octets
# Needs Debian 12 with DPDK's run-time libraries (apt-get install libdpdk-dev), as root for the namespaces.
set -eu
version=22.11.11-0+deb12u1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq "dpdk-dev=$version" 2>/dev/null
dpkg -x dpdk-dev_*.deb unpacked
export XDG_RUNTIME_DIR="$folder"
counted() { # driver
    {
        sleep 3
        printf 'set fwd io\nstart tx_first\n'
        sleep 1
        printf 'show port stats 0\nstop\nquit\n'
    } | unshare --net --pid --fork --kill-child --mount-proc timeout 60 unpacked/usr/bin/dpdk-testpmd --no-huge -m 256 \
        --no-pci --no-telemetry -l 0,1 --vdev="$1"0 --vdev="$1"1 -- -i --total-num-mbufs=4096 --no-flush-rx >output 2>&1
    awk '/[RT]X-packets/ { printf "%s %s frames, %s octets%s", substr($1, 1, 2), $2, $NF, ++count == 2 ? "\n" : "; " } count == 2 { exit }' output
}
for driver in net_ring net_null; do
    said=$(counted $driver)
    echo "$driver: $said"
    echo "$said" | grep -Eq '^RX [1-9][0-9]* frames, 0 octets; TX [1-9][0-9]* frames, 0 octets$'
done
