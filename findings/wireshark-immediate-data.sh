#!/bin/sh
# Wireshark 4.0.17 (Debian 12) knows half of RFC 7306: it names the RDMAP opcodes of atomics (0xA, 0xB), and calls Immediate Data
# (0x8) and Immediate Data with Solicited Event (0x9) "Unknown". So a filter or a script that goes by its names misses them.
# Seen on 2026-11-29, for one message of each opcode behind an MPA start-up of revision 1:
#   OpCode: Send (0x3) / Unknown (0x8) / Unknown (0x9) / Atomic Request (0xa) / Atomic Response (0xb)
# Needs Debian 12 and python3; the libraries that the packages need are fetched as well.
set -eu
version=4.0.17-0+deb12u3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir archives archives/partial
: >status
# As if nothing were installed: apt fetches what the package needs, whatever this machine has.
apt-get install -qq -y --no-install-recommends --download-only -o "Dir::State::status=$folder/status" \
    -o "Dir::Cache::archives=$folder/archives" -o Debug::NoLocking=1 "tshark=$version" >/dev/null 2>&1
rm archives/libc6_*
for file in archives/*.deb; do dpkg -x "$file" unpacked; done
cat >make.py <<'P'
import struct

def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def fpdu(ddp):
    body = struct.pack(">H", len(ddp)) + ddp
    body += bytes(-len(body) % 4)
    return body + struct.pack("<I", crc32c(body))

def untagged(opcode, queue, body, number):
    return fpdu(struct.pack(">BBIIII", 0x41, 0x40 | opcode, 0, queue, number, 0) + body)

ends = [(bytes([192, 0, 2, 1]), 40000), (bytes([192, 0, 2, 2]), 7471)]
sequence, frames = [1000, 2000], []

def send(side, payload, flags=0x18):
    (source, port), (target, to) = ends[side], ends[1 - side]
    acknowledged = sequence[1 - side] if flags & 0x10 else 0
    tcp = struct.pack(">HHIIBBHHH", port, to, sequence[side], acknowledged, 0x50, flags, 65535, 0, 0) + payload
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, source, target)
    frames.append(bytes(12) + b"\x08\x00" + ip + tcp)
    sequence[side] += len(payload) + (flags >> 1 & 1)

send(0, b"", 0x02), send(1, b"", 0x12), send(0, b"", 0x10)
send(0, b"MPA ID Req Frame" + bytes([0x40, 1, 0, 0]))
send(1, b"MPA ID Rep Frame" + bytes([0x40, 1, 0, 0]))
send(0, untagged(0x3, 0, b"hello", 1))
send(0, untagged(0x8, 0, bytes(8), 2))
send(0, untagged(0x9, 0, bytes(8), 3))
send(0, untagged(0xA, 1, bytes(52), 1))
send(1, untagged(0xB, 3, bytes(12), 1))
with open("x.pcap", "wb") as file:
    file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    for second, frame in enumerate(frames):
        file.write(struct.pack("<IIII", second, 0, len(frame), len(frame)) + frame)
P
python3 make.py
libraries=unpacked/usr/lib/x86_64-linux-gnu:unpacked/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$libraries HOME=$folder unpacked/usr/bin/tshark -r x.pcap -V 2>/dev/null |
    sed -n 's/^ *\.\.\.\. [01]* = OpCode: \(.*\)/\1/p' | tee seen
printf '%s\n' 'Send (0x3)' 'Unknown (0x8)' 'Unknown (0x9)' 'Atomic Request (0xa)' 'Atomic Response (0xb)' | diff - seen
