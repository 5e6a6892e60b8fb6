#!/bin/sh
# DPDK 22.11.11 (Debian 12): a net_memif server keeps the file of a region whose client leaves between ADD_REGION and
# CONNECT, as a client does that is killed while it connects. The driver closes a region's descriptor only if it has mapped
# the region, which CONNECT does. So each such client costs the server one descriptor and keeps the client's memory alive.
# A client that connects and then leaves costs nothing.
# Seen on 2026-11-29: 20 clients that left early, 20 descriptors more; 20 clients that left later, none.
# Needs Debian 12 with DPDK's run-time libraries (apt-get install libdpdk-dev) and python3, as root for the namespaces.
set -eu
version=22.11.11-0+deb12u1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq "dpdk-dev=$version" 2>/dev/null
dpkg -x dpdk-dev_*.deb unpacked
cat >client.py <<'P'
"""Counts a server's descriptors of regions before and after clients that leave early, and clients that leave later."""
import array, os, socket, struct, sys, time

def regions(process):
    folder = f'/proc/{process}/fd'
    names = (os.readlink(f'{folder}/{number}') for number in os.listdir(folder))
    return sum(name.startswith('/memfd:region') for name in names)

def client(path, connects):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(path)
        def say(kind, body, *files):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', files))] if files else []
            channel.sendmsg([(struct.pack('<H', kind) + body).ljust(128, b'\0')], rights)
        def hear(kind):
            said = channel.recv(128)
            assert len(said) == 128 and struct.unpack('<H', said[:2])[0] == kind, (kind, said)
        hear(2)                                                    # HELLO
        say(3, struct.pack('<HIB24x32s', 0x200, 0, 0, b'client'))  # INIT of version 2.0
        hear(1)                                                    # ACK
        memory = os.memfd_create('region')
        os.ftruncate(memory, 1 << 16)
        for ring in 0, 1 << 15:
            os.pwrite(memory, struct.pack('<I', 0x3E31F20), ring)  # the cookie of an empty ring
        say(4, struct.pack('<HQ', 0, 1 << 16), memory)             # ADD_REGION
        hear(1)
        os.close(memory)
        if connects:
            for flags, ring in (1, 0), (0, 1 << 15):
                bell = os.eventfd(0, os.EFD_NONBLOCK)
                say(5, struct.pack('<HHHIBH', flags, 0, 0, ring, 6, 0), bell)  # ADD_RING of 64 descriptors
                hear(1)
                os.close(bell)
            say(6, b'client')                                      # CONNECT
            hear(7)                                                # CONNECTED

path, process = sys.argv[1], int(sys.argv[2])
seen = [regions(process)]
for connects in False, True:
    for _ in range(20):
        for attempt in range(100):                                 # the server may not have done with the last client
            try:
                client(path, connects)
                break
            except (AssertionError, ConnectionError, BrokenPipeError):
                time.sleep(0.02)
    time.sleep(1)
    seen.append(regions(process))
print(f'{seen[1] - seen[0]} more behind clients that left early, {seen[2] - seen[1]} behind clients that left later')
sys.exit(seen != [0, seen[1], seen[1]] or seen[1] < 20)
P
cat >run.sh <<'R'
sleep 20 | unpacked/usr/bin/dpdk-testpmd --no-huge -m 256 --no-pci --no-telemetry -l 0,1 \
    --vdev="net_memif0,role=server,id=0,socket=$PWD/s,socket-abstract=no" -- -i --total-num-mbufs=4096 >output 2>&1 &
for attempt in $(seq 100); do [ ! -S s ] || break; sleep 0.1; done
sleep 1
python3 client.py s "$(pgrep -x dpdk-testpmd)"
R
unshare --net --pid --fork --kill-child --mount-proc sh run.sh || { cat output; exit 1; }
