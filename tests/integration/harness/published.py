# SPDX-License-Identifier: PostgreSQL
"""What `walbus publish` makes, as the server hands it on."""

from .command import walbus

TAKE = """SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',
                                                       'publication_names', 'walbus', 'messages', 'true')"""


def message_content(change):
    """Of pgoutput's M: flags, LSN, prefix with its NUL, length, content."""
    end = change.index(b"\0", 1 + 1 + 8)
    return change[1 + 1 + 8:end].decode(), change[end + 1 + 4:]


def published(bus, prefix, *arguments, slot="walbus"):
    """The content of the one event that these arguments publish."""
    with bus.connect() as conn:
        conn.rows(TAKE, slot)
        result = walbus("publish", "--dsn", bus.dsn(), prefix, *arguments)
        assert result.status == 0, result
        (found, content), = [message_content(bytes(data)) for data, in conn.rows(TAKE, slot) if bytes(data)[:1] == b"M"]
    assert found == prefix
    return content
