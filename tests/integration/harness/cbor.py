# SPDX-License-Identifier: PostgreSQL
"""The CBOR (RFC 8949) that control frames and events are made of, written for the tests alone."""

import struct


class Tag:
    def __init__(self, number, value):
        self.number = number
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Tag) and (self.number, self.value) == (other.number, other.value)

    def __repr__(self):
        return f"Tag({self.number}, {self.value!r})"


class Malformed(ValueError):
    pass


def _head(major, n):
    for info, size, limit in ((24, 1, 1 << 8), (25, 2, 1 << 16), (26, 4, 1 << 32), (27, 8, 1 << 64)):
        if n < 24:
            return bytes([major << 5 | n])
        if n < limit:
            return bytes([major << 5 | info]) + n.to_bytes(size, "big")
    raise ValueError(n)


def dumps(value):
    """One item, shortest heads, map keys in the order that the dict has."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    if isinstance(value, (bytes, bytearray)):
        return _head(2, len(value)) + bytes(value)
    if isinstance(value, str):
        raw = value.encode()
        return _head(3, len(raw)) + raw
    if isinstance(value, (list, tuple)):
        return _head(4, len(value)) + b"".join(map(dumps, value))
    if isinstance(value, dict):
        return _head(5, len(value)) + b"".join(dumps(k) + dumps(v) for k, v in value.items())
    if isinstance(value, Tag):
        return _head(6, value.number) + dumps(value.value)
    raise TypeError(type(value))


class _Reader:
    def __init__(self, data):
        self.data = memoryview(data)
        self.at = 0

    def take(self, n):
        if n > len(self.data) - self.at:
            raise Malformed(f"{n} bytes wanted at {self.at}, {len(self.data) - self.at} left")
        piece = self.data[self.at:self.at + n]
        self.at += n
        return piece

    def head(self):
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if info < 24:
            return major, info, info
        if info < 28:
            return major, info, int.from_bytes(self.take(1 << (info - 24)), "big")
        raise Malformed(f"additional information {info} at {self.at - 1}")

    def item(self):
        major, info, n = self.head()
        if major == 0:
            return n
        if major == 1:
            return -1 - n
        if major == 2:
            return bytes(self.take(n))
        if major == 3:
            return str(self.take(n), "utf-8")
        if major == 4:
            return [self.item() for _ in range(n)]
        if major == 5:
            result = {}
            for _ in range(n):
                key = self.item()
                if key in result:
                    raise Malformed(f"key {key!r} twice")
                result[key] = self.item()
            return result
        if major == 6:
            return Tag(n, self.item())
        if info == 25:
            return struct.unpack(">e", n.to_bytes(2, "big"))[0]
        if info == 26:
            return struct.unpack(">f", n.to_bytes(4, "big"))[0]
        if info == 27:
            return struct.unpack(">d", n.to_bytes(8, "big"))[0]
        simple = {20: False, 21: True, 22: None, 23: None}
        if n in simple:
            return simple[n]
        raise Malformed(f"simple value {n}")


def loads(data):
    """Exactly one item of definite lengths; Malformed otherwise."""
    reader = _Reader(data)
    value = reader.item()
    if reader.at != len(data):
        raise Malformed(f"{len(data) - reader.at} bytes behind the item")
    return value


def load_first(data):
    """The item that `data` begins with, and its size."""
    reader = _Reader(data)
    return reader.item(), reader.at
