#!/bin/sh
# librspreload of rdma-core 44.0 (Debian 12) has a program's sockets go over RDMA. On a machine without an RDMA device it lets
# them be the kernel's instead, and says nothing: the program runs, ends with success, and its figures are those of TCP. So who
# measures or tests rsockets by it has to look where the data went, for example whether the port is a listener of the kernel's.
# Seen on 2026-11-30, without any RDMA device, iperf3 3.12 with librspreload preloaded on both sides:
#   listeners of the kernel's on the server's port: 1
#   the client: status 0, words about RDMA or rsockets on either side: 0
# Needs an apt of Debian 12. It sends one mebibyte over the loopback interface, port 5981.
set -eu
if [ -d /sys/class/infiniband ] && [ -n "$(ls /sys/class/infiniband)" ]; then echo "this machine has an RDMA device"; exit 1; fi
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || :; rm -rf "$folder"' EXIT
cd "$folder"
apt-get -qq download iperf3=3.12-1+deb12u2 libiperf0=3.12-1+deb12u2 librdmacm1=44.0-2 libibverbs1=44.0-2 libsctp1=1.0.19+dfsg-2 \
    libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1
for file in *.deb; do dpkg-deb -x "$file" root; done
library=$(find "$folder/root" -name 'librspreload.so' | head -n 1)
iperf3() { LD_LIBRARY_PATH="$folder/root/usr/lib/x86_64-linux-gnu" LD_PRELOAD="$library" timeout 60 "$folder/root/usr/bin/iperf3" "$@"; }

iperf3 -s -1 -B 127.0.0.1 -p 5981 >server 2>&1 &
server=$!
listeners=0
for _ in $(seq 100); do
    listeners=$(awk '$2 == "0100007F:175D" && $4 == "0A"' /proc/net/tcp | wc -l)
    [ "$listeners" = 0 ] || break
    sleep 0.1
done
echo "listeners of the kernel's on the server's port: $listeners"
status=0
iperf3 -c 127.0.0.1 -p 5981 -n 1M >client 2>&1 || status=$?
words=$(cat server client | grep -ciE 'rdma|rsocket' || :)
echo "the client: status $status, words about RDMA or rsockets on either side: $words"
[ "$listeners" = 1 ] && [ "$status" = 0 ] && [ "$words" = 0 ]
