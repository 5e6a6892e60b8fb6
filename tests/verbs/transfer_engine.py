"""Two processes that write and read each other's memory by Mooncake's transfer engine, and check every octet."""

import ctypes
import random
import subprocess
import sys

from mooncake.engine import TransferEngine

ADDRESS = sys.argv[1]
SIZES = [1, 4096, 1 << 20, 8 << 20]
LENGTH = 16 << 20


def pattern(size, seed):
    return random.Random(seed).randbytes(size)


def engine():
    made = TransferEngine()
    if made.initialize(ADDRESS, "P2PHANDSHAKE", "rdma", "uwarp0") != 0:
        sys.exit("the engine does not start")
    memory = ctypes.create_string_buffer(LENGTH)
    if made.register_memory(ctypes.addressof(memory), LENGTH) != 0:
        sys.exit("the memory cannot be registered")
    return made, memory


def target():
    """Says where it is, and then shows the octets that it is asked for."""
    made, memory = engine()
    print(made.get_rpc_port(), ctypes.addressof(memory), flush=True)
    for line in sys.stdin:
        size, seed = map(int, line.split())
        print(memory.raw[:size] == pattern(size, seed), flush=True)


def initiator():
    peer = subprocess.Popen(
        [sys.executable, __file__, ADDRESS, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    port, remote = peer.stdout.readline().split()
    place = f"{ADDRESS}:{port}"
    made, memory = engine()
    local = ctypes.addressof(memory)
    for seed, size in enumerate(SIZES):
        memory[:size] = pattern(size, seed)
        if made.transfer_sync_write(place, local, int(remote), size) != 0:
            sys.exit(f"a write of {size} octets fails")
        # What has completed is in the peer's memory, whatever way the question takes.
        print(size, seed, file=peer.stdin, flush=True)
        if peer.stdout.readline().strip() != "True":
            sys.exit(f"{size} octets were not written as they are")
        ctypes.memset(local + LENGTH // 2, 0, size)
        if made.transfer_sync_read(place, local + LENGTH // 2, int(remote), size) != 0:
            sys.exit(f"a read of {size} octets fails")
        if memory.raw[LENGTH // 2 : LENGTH // 2 + size] != pattern(size, seed):
            sys.exit(f"{size} octets were not read as they are")
    peer.stdin.close()
    if peer.wait() != 0:
        sys.exit("the target fails")
    print("all data is right")


if __name__ == "__main__":
    if sys.argv[2:] == ["target"]:
        target()
    else:
        initiator()
