"""Messages between the processes of a group that run on one host."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import time
from contextlib import ExitStack, suppress

WAIT_MAX = 600.0
"""Seconds for which a process waits for a message of another one that is alive."""

CLOSE_MAX = 10.0
"""Seconds for which a process waits until the others have connected, or have closed."""

_LENGTH_MAX = 1 << 16
_BYTES, _FAILURE, _END, _LOST = b"+", b"-", b".", b""


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
        names: for each process its rank, by which messages name it.
    """

    def __init__(self, rank: int, names: list[int], peers: dict[int, socket.socket]) -> None:
        self.rank, self.names = rank, names
        self._peers, self._pid = peers, os.getpid()

    def exchange(self, own: bytes = b"") -> list[bytes]:
        """Sends bytes to all processes, and returns those of each by rank.

        Raises:
            PeerFailed: a process failed, ended, or sent nothing for `WAIT_MAX` seconds.
        """
        self._send(_BYTES + own)
        found, waiting, until = {self.rank: own}, set(self._peers), time.monotonic() + WAIT_MAX
        failure: PeerFailed | None = None
        while waiting:
            ready = self._receive(waiting, until)
            if not ready:
                rank = self.names[min(waiting)]
                raise failure or PeerFailed(rank, f"sent nothing for {WAIT_MAX:.0f} s")
            for rank, message in ready:
                waiting.discard(rank)
                if message[:1] == _BYTES:
                    found[rank] = message[1:]
                elif message[:1] == _FAILURE:
                    raise PeerFailed(*json.loads(message[1:]))
                elif message == _LOST:
                    failure = PeerFailed(self.names[rank], "was lost: its process ended")
                else:
                    failure = failure or PeerFailed(self.names[rank], "ended its load early")
            if failure:
                until = 0.0  # others may have sent why
        if failure:
            raise failure
        return [found[rank] for rank in range(len(self.names))]

    def fail(self, why: str, rank: int | None = None) -> None:
        """Says why this process, or the named one, failed. The others raise `PeerFailed`."""
        culprit = self.names[self.rank] if rank is None else rank
        self._send(_FAILURE + json.dumps([culprit, why[:1000]]).encode())

    def close(self) -> bool:
        """Closes the connections; returns whether all other processes have closed theirs."""
        try:
            if os.getpid() != self._pid:
                return True
            self._send(_END)
            waiting, until = set(self._peers), time.monotonic() + CLOSE_MAX
            while waiting and (ready := self._receive(waiting, until)):
                waiting -= {rank for rank, message in ready if message in (_END, _LOST)}
            return not waiting
        finally:
            for peer in self._peers.values():
                peer.close()
            self._peers = {}

    def _send(self, message: bytes) -> None:
        if os.getpid() != self._pid:
            return  # a forked child does not speak for its parent
        for peer in self._peers.values():
            with suppress(OSError):  # a lost process is noticed by the next `_receive`
                peer.sendall(message)

    def _receive(self, ranks: set[int], until: float) -> list[tuple[int, bytes]]:
        """A message of each rank that has sent one; waits for the first one."""
        poll = select.poll()
        rank_of = {self._peers[rank].fileno(): rank for rank in ranks}
        for number in rank_of:
            poll.register(number, select.POLLIN)
        ready = poll.poll(max(until - time.monotonic(), 0) * 1000)
        return [(rank_of[number], _message(self._peers[rank_of[number]])) for number, _ in ready]


def _message(peer: socket.socket) -> bytes:
    for _ in range(2):  # what was sent before a reset can be read after it
        with suppress(ConnectionError):
            return peer.recv(_LENGTH_MAX)
    return _LOST


def host() -> str:
    """Identifies processes that may share memory: of one host, namespace and user."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid")]
            return f"{file.read().strip()} {spaces} {os.geteuid()}"
    except OSError:
        return secrets.token_hex(16)


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

    def connect(self, addresses: dict[int, str]) -> Mesh:
        """Connects the processes with these addresses, by rank, which all make this call.

        Raises:
            PeerFailed: a process has ended, or did not connect within `CLOSE_MAX` seconds.
        """
        names = sorted(addresses)
        rank = next(one for one, name in enumerate(names) if addresses[name] == self.address)
        peers: dict[int, socket.socket] = {}
        try:
            with self._socket, ExitStack() as stack:
                self._connect([addresses[name] for name in names], rank, peers, stack)
                stack.pop_all()
        except OSError:
            lost = next(one for one in range(len(names)) if one not in {rank, *peers})
            raise PeerFailed(names[lost], "was lost before the load began") from None
        return Mesh(rank, names, peers)

    def _connect(
        self, addresses: list[str], rank: int, peers: dict[int, socket.socket], stack: ExitStack
    ) -> None:
        for number, address in enumerate(addresses[:rank]):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(peer.close)
            peer.connect("\0" + address)
            if not _is_ours(peer):
                raise PermissionError
            peer.sendall(rank.to_bytes(4, "big"))
            peers[number] = peer
        until = time.monotonic() + CLOSE_MAX
        while len(peers) < len(addresses) - 1:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            peer, _ = self._socket.accept()
            stack.callback(peer.close)
            peer.settimeout(CLOSE_MAX)
            said = peer.recv(5) if _is_ours(peer) else b""
            number = int.from_bytes(said, "big")
            if len(said) == 4 and rank < number < len(addresses) and number not in peers:
                peer.settimeout(None)
                peers[number] = peer

    def close(self) -> None:
        """Ends it without a connection."""
        self._socket.close()


def _is_ours(peer: socket.socket) -> bool:
    """Whether the other process is of the same user."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
