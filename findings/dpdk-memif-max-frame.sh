#!/bin/sh
# DPDK 22.11.11 (Debian 12): net_memif reports "Maximum configurable length of RX packet: 1518" whatever `bsize` says, and
# testpmd refuses an MTU of 9000 ("Frame size (9018) > device max frame size (1518)"). Yet frames of 9,000 octets pass if
# both ends have bsize=9216: only the buffers bound the length. A program that believes the reported limit does without
# jumbo frames that would work.
# Seen on 2026-11-29: 461,120 frames and 4,150,080,000 octets arrived at one port in a second.
# Needs Debian 12 with DPDK's run-time libraries (apt-get install libdpdk-dev), as root for the namespaces.
set -eu
version=22.11.11-0+deb12u1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq "dpdk-dev=$version" 2>/dev/null
dpkg -x dpdk-dev_*.deb unpacked
export XDG_RUNTIME_DIR="$folder"
{
    printf 'show port info 0\nport stop all\nport config mtu 0 9000\nport start all\nset txpkts 9000\nset fwd io\n'
    sleep 4
    printf 'clear port stats all\nstart tx_first\n'
    sleep 1
    printf 'stop\nshow port stats all\nquit\n'
} | unshare --net --pid --fork --kill-child --mount-proc timeout 60 unpacked/usr/bin/dpdk-testpmd --no-huge -m 256 --no-pci \
    --no-telemetry -l 0,1 --vdev="net_memif0,role=server,id=0,socket=$folder/s,bsize=9216,socket-abstract=no" \
    --vdev="net_memif1,role=client,id=0,socket=$folder/s,bsize=9216,socket-abstract=no" -- \
    -i --total-num-mbufs=4096 --mbuf-size=9600 --no-flush-rx >output 2>&1
grep -m 1 'Maximum configurable length of RX packet: 1518' output
grep -m 1 'Frame size (9018) > device max frame size (1518)' output
awk '/#### *NIC statistics for port 0/ { on = 1 } 
    on && /RX-packets/ { print $2 " frames, " $NF " octets"; exit !($2 > 0 && $NF == 9000 * $2) }
' output || { cat output; exit 1; }
