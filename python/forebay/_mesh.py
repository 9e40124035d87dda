"""Messages between the processes of a group."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

WAIT_MAX = 600.0
"""Seconds for which a process waits for a living peer."""

CLOSE_MAX = 5.0
"""Seconds for which a process waits until the others have connected, or have closed."""

_LENGTH_MAX = 1 << 16
_BYTES, _FAILURE, _END, _LOST = b"+", b"-", b".", b""

_DEAD_AFTER = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 7000}
"""A host without power is noticed after 7 s."""


@dataclass(eq=False)
class PeerFailed(Exception):
    """A peer in the group failed.

    Attributes:
        rank: its rank.
        why: what happened, as ``could not read its part``.
    """

    rank: int
    why: str


class Mesh:
    """Connections to all peers, used by a single thread at a time.

    If a process ends, the kernel closes its connections, and its peers notice immediately.

    Attributes:
        rank: the number of this process.
        names: the ranks of the processes, for messages.
    """

    def __init__(self, rank: int, names: list[int], peers: dict[int, Connection]) -> None:
        self.rank, self.names = rank, names
        self._peers, self._pid = peers, os.getpid()
        self._early: dict[int, bytes] = {}

    def exchange(self, own: bytes = b"") -> list[bytes]:
        """Sends bytes to all processes, and returns theirs by rank.

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
                    continue
                if message[:1] == _FAILURE:
                    raise self._failure(rank, message)
                if failure is None or message == _LOST:
                    failure = self._failure(rank, message)
                until = 0.0  # peers may have sent the reason
        if failure:
            raise failure
        return [found[rank] for rank in range(len(self.names))]

    def watch(self, seconds: float = 0.0) -> None:
        """Waits up to `seconds` for messages of peers, which `exchange` returns later.

        Raises:
            PeerFailed: a process failed or was lost.
        """
        ranks = self._peers.keys() - self._early.keys()
        self._early |= self._arrived(ranks, time.monotonic() + seconds)
        for rank, message in self._early.items():
            if message[:1] not in (_BYTES, _END):
                raise self._failure(rank, message)

    def fail(self, why: str, rank: int | None = None) -> None:
        """Says why this process, or the named one, failed. Its peers raise `PeerFailed`."""
        culprit = self.names[self.rank] if rank is None else rank
        self._send(_FAILURE + json.dumps([culprit, why[:1000]]).encode())

    def close(self) -> bool:
        """Closes the connections; returns whether all peers closed theirs."""
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
                peer.send_bytes(message)

    def _receive(self, ranks: set[int], until: float) -> list[tuple[int, bytes]]:
        """The messages that have arrived, by rank; waits for the first."""
        if early := ranks & self._early.keys():
            return [(rank, self._early.pop(rank)) for rank in early]
        return list(self._arrived(ranks, until).items())

    def _arrived(self, ranks: Iterable[int], until: float) -> dict[int, bytes]:
        rank_of = {self._peers[rank]: rank for rank in ranks}
        ready = wait(list(rank_of), max(until - time.monotonic(), 0))
        return {rank_of[peer]: _message(peer) for peer in ready if isinstance(peer, Connection)}

    def _failure(self, rank: int, message: bytes) -> PeerFailed:
        if message[:1] == _FAILURE:
            return PeerFailed(*json.loads(message[1:]))
        why = "was lost: its process ended" if message == _LOST else "ended its load early"
        return PeerFailed(self.names[rank], why)


def _message(peer: Connection) -> bytes:
    for _ in range(2):  # what was sent before a reset can be read after it
        with suppress(OSError, EOFError):
            return peer.recv_bytes(_LENGTH_MAX)
    return _LOST


def host() -> str:
    """Identifies processes that may share memory: of one host, namespace and user."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid")]
            return f"{file.read().strip()} {spaces} {os.geteuid()}"
    except OSError:
        return secrets.token_hex(16)


def begun(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; ``None`` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


def name_for(server: str, port: int) -> str:
    """A name or address of this host by which hosts that reach a server reach it too."""
    family, _, _, _, address = socket.getaddrinfo(server, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return server if ipaddress.ip_address(own).is_loopback else own


class Listener:
    """Waits for the connections of a mesh.

    Attributes:
        address: the address for peers.
    """

    def __init__(self, name: str | None = None) -> None:
        """With the name of this host, processes of other hosts connect over TCP."""
        self._token = secrets.token_hex(16)
        if name is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(f"\0forebay-{self._token}")
            self._socket.listen(1024)
            self.address = self._token
        else:
            is_dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if is_dual else socket.AF_INET
            self._socket = socket.create_server(
                ("", 0), family=family, backlog=1024, dualstack_ipv6=is_dual
            )
            self.address = f"{self._token} {name} {self._socket.getsockname()[1]}"

    def connect(self, addresses: dict[int, str]) -> Mesh:
        """Connects the processes with these addresses, by rank, which all make this call.

        Raises:
            PeerFailed: a process has ended, or did not connect within `CLOSE_MAX` seconds.
        """
        names = sorted(addresses)
        rank = next(one for one, name in enumerate(names) if addresses[name] == self.address)
        peers: dict[int, Connection] = {}
        try:
            with self._socket, ExitStack() as stack:
                self._connect([addresses[name] for name in names], rank, peers, stack)
                stack.pop_all()
        except (OSError, EOFError):
            lost = next(one for one in range(len(names)) if one not in {rank, *peers})
            raise PeerFailed(names[lost], "was lost before the load began") from None
        return Mesh(rank, names, peers)

    def _connect(
        self, addresses: list[str], rank: int, peers: dict[int, Connection], stack: ExitStack
    ) -> None:
        for number, address in enumerate(addresses[:rank]):
            peer = stack.enter_context(_dial(address))
            peer.send_bytes(f"{address.split()[0]} {rank}".encode())
            peers[number] = peer
        until = time.monotonic() + CLOSE_MAX
        while len(peers) < len(addresses) - 1:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            with suppress(OSError, EOFError):  # of a stranger
                peer = stack.enter_context(_tuned(self._socket.accept()[0]))
                said = peer.recv_bytes(64) if peer.poll(CLOSE_MAX / 5) else b""
                for number in range(rank + 1, len(addresses)):
                    if secrets.compare_digest(said, f"{self._token} {number}".encode()):
                        peers.setdefault(number, peer)

    def close(self) -> None:
        """Ends it without a connection."""
        self._socket.close()


def _dial(address: str) -> Connection:
    if " " in address:
        _, name, port = address.split()
        return _tuned(socket.create_connection((name, int(port)), CLOSE_MAX))
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(f"\0forebay-{address}")
    except OSError:
        peer.close()
        raise
    return _tuned(peer)


def _tuned(peer: socket.socket) -> Connection:
    """A connection to a process of the same user, or over TCP.

    Raises:
        PermissionError: the process is of another user.
    """
    with peer:
        if peer.family == socket.AF_UNIX:
            about = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", about)[1] != os.geteuid():
                raise PermissionError("a process of another user")
        else:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, value in _DEAD_AFTER.items():
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        peer.settimeout(None)
        # For a message that does not end; `wait` and `poll` precede reads.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
        return Connection(peer.detach())
