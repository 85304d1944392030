"""A cable between two interfaces, on which frames of the first arrive late, and some of them never.

    python slow_cable.py IN OUT DELAY_S LOSS

For kernels without netem. Frames of OUT pass as they are.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import selectors
import socket
import sys
import time

ALL_PROTOCOLS = 3
SOL_PACKET, IGNORE_OUTGOING, VNET_HEADER = 263, 23, 15
"""Of <linux/if_packet.h>. With its header a frame keeps what its sender left to the hardware:
checksums, and to be cut into pieces."""
LARGEST = 70_000


def open_interface(name: str) -> socket.socket:
    """Return a socket that has all that arrives at an interface, and sends there."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (VNET_HEADER, IGNORE_OUTGOING):
        made.setsockopt(SOL_PACKET, option, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
    made.bind((name, ALL_PROTOCOLS))
    return made


def main(first: str, second: str, delay_s: float, loss: float) -> None:
    """Pass frames on until the end."""
    near, far = open_interface(first), open_interface(second)
    selector, numbers, draw = selectors.DefaultSelector(), itertools.count(), random.Random(0)
    for end in (near, far):
        selector.register(end, selectors.EVENT_READ)
    waiting: list[tuple[float, int, bytes]] = []
    print("ready", flush=True)
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in selector.select(left_s):
            if key.fileobj is far:
                pass_on(near, far.recv(LARGEST))
            else:
                frame = near.recv(LARGEST)
                if draw.random() >= loss:
                    heapq.heappush(waiting, (time.monotonic() + delay_s, next(numbers), frame))
        while waiting and waiting[0][0] <= time.monotonic():
            pass_on(far, heapq.heappop(waiting)[2])


def pass_on(end: socket.socket, frame: bytes) -> None:
    """Send a frame; where the cable is out it is lost, as on any cable."""
    with contextlib.suppress(OSError):
        end.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
