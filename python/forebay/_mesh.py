"""Messages between the processes of a group that run on one host."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

WAIT_MAX = 600.0
"""Seconds for which a process waits for a message of another one that is alive."""

CLOSE_MAX = 10.0
"""Seconds for which a process waits until the others have closed, or have connected."""

_LENGTH_MAX = 1 << 16
_BYTES, _FAILURE, _END = b"+", b"-", b"."


class PeerFailed(Exception):
    """Another process of the group failed.

    Attributes:
        rank: its rank.
        why: what happened, as ``could not read its part``.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)
        self.rank, self.why = rank, why


class Mesh:
    """A connection to each other process. One thread uses it at a time.

    If a process ends, the kernel closes its connections, so the others notice it at once.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
    """

    def __init__(self, rank: int, size: int, peers: dict[int, socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._peers = peers

    def exchange(self, own: bytes = b"") -> list[bytes]:
        """Sends bytes to all processes, and returns those of each by rank.

        Raises:
            PeerFailed: a process failed, ended, or sent nothing for `WAIT_MAX` seconds.
        """
        self._send(_BYTES + own)
        found = {self.rank: own, **self._receive(WAIT_MAX, _payload)}
        return [found[rank] for rank in range(self.size)]

    def fail(self, why: str, rank: int | None = None) -> None:
        """Says why this process, or another one, failed. The others raise `PeerFailed`."""
        culprit = self.rank if rank is None else rank
        self._send(_FAILURE + json.dumps([culprit, why[:1000]]).encode())

    def close(self) -> bool:
        """Closes the connections; returns whether all other processes closed theirs in time."""
        self._send(_END)
        try:
            self._receive(CLOSE_MAX, lambda _, message: message if message == _END else None)
        except PeerFailed:
            return False
        finally:
            for peer in self._peers.values():
                peer.close()
            self._peers = {}
        return True

    def _send(self, message: bytes) -> None:
        for peer in self._peers.values():
            with suppress(OSError):  # a lost process is noticed by the next `_receive`
                peer.sendall(message)

    def _receive(
        self, seconds: float, taken: Callable[[int, bytes], bytes | None]
    ) -> dict[int, bytes]:
        """The first message of each process that `taken` returns."""
        found: dict[int, bytes] = {}
        until, poll = time.monotonic() + seconds, select.poll()
        rank_of = {peer.fileno(): rank for rank, peer in self._peers.items()}
        for number in rank_of:
            poll.register(number, select.POLLIN)
        while rank_of:
            ready = poll.poll(max(until - time.monotonic(), 0) * 1000)
            if not ready:
                raise PeerFailed(min(rank_of.values()), f"sent nothing for {seconds:.0f} s")
            for number, _ in ready:
                rank = rank_of[number]
                try:
                    message = self._peers[rank].recv(_LENGTH_MAX)
                except ConnectionError:
                    message = b""
                if not message:
                    raise PeerFailed(rank, "was lost: its process ended")
                if (own := taken(rank, message)) is not None:
                    found[rank] = own
                    poll.unregister(number)
                    del rank_of[number]
        return found


def _payload(rank: int, message: bytes) -> bytes:
    kind, rest = message[:1], message[1:]
    if kind == _FAILURE:
        raise PeerFailed(*json.loads(rest))
    if kind == _END:
        raise PeerFailed(rank, "ended its load before the others")
    return rest


def host() -> str:
    """Identifies the host, and the network namespace whose sockets its processes share."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"


class Listener:
    """Waits for the connections of a mesh.

    Attributes:
        address: where the other processes of this host connect.
    """

    def __init__(self) -> None:
        self.address = f"forebay-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind("\0" + self.address)
        self._socket.listen(1024)

    def connect(self, addresses: list[str]) -> Mesh:
        """Connects the processes with these addresses, by rank, which all make this call.

        Raises:
            PeerFailed: a process has ended, or did not connect within `CLOSE_MAX` seconds.
        """
        rank = addresses.index(self.address)
        peers: dict[int, socket.socket] = {}
        with self._socket:
            try:
                for number, address in enumerate(addresses[:rank]):
                    peers[number] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    peers[number].connect("\0" + address)
                    if not _is_ours(peers[number]):
                        raise PermissionError
                    peers[number].sendall(rank.to_bytes(4, "big"))
                until = time.monotonic() + CLOSE_MAX
                while len(peers) < len(addresses) - 1:
                    self._socket.settimeout(max(until - time.monotonic(), 0.001))
                    peer, _ = self._socket.accept()
                    if _is_ours(peer):
                        peer.settimeout(CLOSE_MAX)
                        peers[int.from_bytes(peer.recv(4), "big")] = peer
                        peer.settimeout(None)
            except OSError:
                for peer in peers.values():
                    peer.close()
                lost = next(one for one in range(len(addresses)) if one not in {rank, *peers})
                raise PeerFailed(lost, "was lost before the load began") from None
        return Mesh(rank, len(addresses), peers)


def _is_ours(peer: socket.socket) -> bool:
    """Whether the other process is of the same user."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
