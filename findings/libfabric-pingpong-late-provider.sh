#!/bin/sh
# The server of fi_pingpong (libfabric 1.17.0, Debian 12) looks for its provider only when a client has come. With a provider
# that the machine does not have, it waits for a client as if all were well, where fi_info says so at once. The client then
# blames the connection, and only the server knows the reason. So a job that starts a server for "verbs" on a machine
# without a device hangs, and its client's message leads elsewhere.
# Seen on 2026-11-29 for provider "verbs" on a machine without an RDMA device:
#   fi_info: fi_getinfo: -61, status 61; the server alone: no word in three seconds;
#   the client: [error] util/pingpong.c:568 : ctrl/read: no data or remote connection closed, status 103;
#   the server, once the client has come: fi_getinfo(): util/pingpong.c:1489, ret=-61 (No data available), status 61
# Needs Debian 12 and a machine without RDMA devices; the libraries that the package needs are fetched as well.
set -eu
version=1.17.0-3
folder=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$folder"' EXIT
cd "$folder"
mkdir archives archives/partial
: >status
# As if nothing were installed: apt fetches what the package needs, whatever this machine has.
apt-get install -qq -y --no-install-recommends --download-only -o "Dir::State::status=$folder/status" \
    -o "Dir::Cache::archives=$folder/archives" -o Debug::NoLocking=1 "libfabric-bin=$version" >/dev/null 2>&1
rm archives/libc6_*
for file in archives/*.deb; do dpkg -x "$file" unpacked; done
libraries=$folder/unpacked/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$libraries:$folder/unpacked/lib/x86_64-linux-gnu"
PATH=$folder/unpacked/usr/bin:$PATH
port=47593

status=0
fi_info -p verbs >info 2>&1 || status=$?
echo "fi_info: $(head -n 1 info), status $status"
[ "$status" = 61 ] || exit 1

fi_pingpong -p verbs -B "$port" >said 2>&1 &
server=$!
sleep 3
kill -0 "$server" && [ ! -s said ] || { echo "the server did not wait: $(cat said)"; exit 1; }
echo "the server alone: no word in three seconds"
client=0
fi_pingpong -p verbs -P "$port" 127.0.0.1 >client 2>&1 || client=$?
echo "the client: $(head -n 1 client), status $client"
status=0
wait "$server" || status=$?
server=
echo "the server: $(head -n 1 said), status $status"
grep -q "no data or remote connection closed" client && [ "$client" = 103 ] && [ "$status" = 61 ] &&
    grep -q "No data available" said
