# SPDX-License-Identifier: PostgreSQL
"""Stands between a program and a Server, and can do what networks do: keep silent, hide an end, take time."""

import os
import shutil
import socket
import struct
import threading

from . import places


class _Link:
    """One connection of the program, and its other half to the server."""

    def __init__(self, program, server):
        self.program = program
        self.server = server
        self.replication = False
        self.silent = False  # nothing that the program says is passed on
        self.left = None     # so many bytes more come from the server, and then none
        self.cut = False     # nor anything that the server says, its end included

    def close(self):
        for sock in (self.program, self.server):
            _shut(sock)
            sock.close()


def _shut(sock):
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _take(sock, n):
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


class Relay:
    """Passes on every byte between a socket folder of its own and the server's.

    on_query: called with each simple query's text before it is passed on, from the connection's own thread; it may
        take its time. When it returns False, the query and all that the program says behind it is swallowed.
    """

    def __init__(self, server, on_query=None):
        self.on_query = on_query
        self.folder = places.new_folder("walbus-rl-")
        self._server = server
        self._links = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.path.join(self.folder, ".s.PGSQL.5432"))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, dbname="postgres", user="postgres"):
        return f"host={self.folder} port=5432 dbname={dbname} user={user}"

    def cut_replication(self):
        """As when a firewall forgets a connection: on the replication connections of this moment nothing passes any
        more in either direction, not even an end."""
        for link in self._links:
            if link.replication:
                link.silent = link.cut = True

    def stall_replication_after(self, size):
        """On the replication connections of this moment so many bytes more come from the server, and then none: who is killed
        now has a part of what was sent, however late it is killed."""
        for link in self._links:
            if link.replication:
                link.left = size

    def _accept(self):
        while True:
            try:
                program, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(os.path.join(self._server.sockets, ".s.PGSQL.5432"))
            except OSError:  # as from the server itself: nobody is there
                program.close()
                server.close()
                continue
            link = _Link(program, server)
            self._links.append(link)
            threading.Thread(target=self._from_program, args=(link,), daemon=True).start()
            threading.Thread(target=self._from_server, args=(link,), daemon=True).start()

    def _from_program(self, link):
        try:
            # The startup packet has no type. Over a Unix socket libpq asks for neither TLS nor GSS.
            head = _take(link.program, 4)
            body = _take(link.program, struct.unpack(">I", head)[0] - 4)
            link.replication = b"\0replication\0" in body
            link.server.sendall(head + body)
            while True:
                head = _take(link.program, 5)
                body = _take(link.program, struct.unpack(">I", head[1:])[0] - 4)
                if head[:1] == b"Q" and self.on_query and not link.silent:
                    link.silent = self.on_query(body[:-1].decode("utf-8", "replace")) is False
                if not link.silent:
                    link.server.sendall(head + body)
        except (EOFError, OSError):
            _shut(link.server)

    def _from_server(self, link):
        try:
            while piece := link.server.recv(1 << 16):
                if link.left is not None:
                    piece = piece[:link.left]
                    link.left -= len(piece)
                if not link.cut:
                    link.program.sendall(piece)
        except OSError:
            pass
        if not link.cut:
            _shut(link.program)

    def close(self):
        _shut(self._listener)
        self._listener.close()
        for link in self._links:
            link.close()
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
