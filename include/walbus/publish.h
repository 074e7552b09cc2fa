/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_PUBLISH_H
#define WALBUS_PUBLISH_H

/*
 * Publishing events.
 *
 * An event is published with one statement on the caller's own libpq
 * connection, inside the caller's own transaction. Nothing is written to a
 * table. If the transaction commits, the event is delivered to every
 * subscription that matches its prefix; if it rolls back, or the savepoint
 * around the call does, it never existed.
 *
 *     PQclear(PQexec(conn, "BEGIN"));
 *     PQclear(PQexecParams(conn, "INSERT INTO orders …", …));
 *
 *     struct walbus_event event = WALBUS_EVENT_INIT;
 *     event.prefix = "orders.created";
 *     event.content_type = "application/json";
 *     event.data_kind = WALBUS_DATA_TEXT;
 *     event.data = json;
 *     event.data_size = strlen(json);
 *     enum walbus_result result =
 *         walbus_publish(publisher, conn, &event, WALBUS_REQUIRE_TRANSACTION, NULL);
 *     if (result != WALBUS_OK) {
 *         fprintf(stderr, "%s\n", walbus_publisher_error(publisher));
 *         PQclear(PQexec(conn, "ROLLBACK"));
 *         return;
 *     }
 *     PQclear(PQexec(conn, "COMMIT"));     // check it: the event is published when this succeeds
 *
 * (Each PQexec is to be checked, of course; the example leaves that out.)
 *
 * Outside a transaction block the statement is its own transaction, and the
 * events of one call are committed together.
 *
 * No session state is used, neither prepared statements nor settings, so
 * publishing works behind a transaction pooler. All parameters are sent in
 * binary. The server must be PostgreSQL 14 or newer and have wal_level =
 * logical: with a lower one publishing succeeds and nobody will ever see the
 * event (`walbus setup` tells). The role needs EXECUTE on
 * pg_logical_emit_message, which every role has unless it was revoked.
 *
 * A prefix is the routing key. It may be published when it has 1 to max_prefix
 * bytes and consists of tokens of A-Z a-z 0-9 _ - joined by single dots. A
 * first token that begins with "_" is reserved and needs a flag; the routers' own
 * _walbus.heartbeat is never delivered and may not be published at all.
 *
 * A function that returns anything but WALBUS_OK before it has sent something
 * leaves connection and transaction as they were: these are all results but
 * WALBUS_CONNECTION_LOST, WALBUS_NOT_PERMITTED, WALBUS_SERVER and
 * WALBUS_BAD_RESULT.
 */

#include <stddef.h>
#include <stdint.h>

#include "walbus/macros.h"
#include "walbus/result.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;   /* libpq's PGconn */
struct pg_result; /* libpq's PGresult */

/* ---- the publisher ---- */

/**
 * What events have in common, and the limits. It holds no connection: one
 * publisher serves any number of them, one call at a time. One thread at a
 * time; threads that publish at once have a publisher each.
 */
struct walbus_publisher;

/** Default of max_prefix, bytes. */
#define WALBUS_MAX_PREFIX 255
/** Default of max_content, bytes. */
#define WALBUS_MAX_CONTENT (64u * 1024 * 1024)
/**
 * The largest max_content, bytes. PostgreSQL 14 and 15 accept messages of up to
 * 1 GB that they then cannot decode, which makes the slot unreadable for good;
 * messages of this size are known to be decoded by every version.
 */
#define WALBUS_LARGEST_CONTENT (512u * 1024 * 1024)

struct walbus_publisher_options {
    /** sizeof(struct walbus_publisher_options) as compiled. A larger one, of a later
     *  version, is taken when what is beyond is zero. */
    size_t size;
    /** `source` of events that have none of their own: a URI reference that names the publishing
     *  application, "/shop/orders". UTF-8, not empty. Required. Copied. */
    const char *source;
    /** Longest prefix that may be published, bytes; 0: WALBUS_MAX_PREFIX. */
    size_t max_prefix;
    /** Largest content (the whole encoded event), bytes; 0: WALBUS_MAX_CONTENT. */
    size_t max_content;
};

/** Every member at its default; `source` is still to be set. */
#define WALBUS_PUBLISHER_OPTIONS_INIT                       \
    {                                                       \
        sizeof(struct walbus_publisher_options), NULL, 0, 0 \
    }

/**
 * Makes a publisher. `options` is not kept.
 *
 * WALBUS_OK            *ret is the publisher; the caller frees it
 * WALBUS_BAD_ARGUMENT  NULL, a size that is too small or beyond any version's, members of a later
 *                      version that are not zero, no source, one that is empty or not UTF-8,
 *                      max_content above WALBUS_LARGEST_CONTENT, max_prefix above 1 MiB
 * WALBUS_NO_MEMORY
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publisher_new(const struct walbus_publisher_options *options, struct walbus_publisher **ret);

/** Frees a publisher, or does nothing with NULL. Returns NULL: `p = walbus_publisher_free(p)`. */
WALBUS_PUBLIC struct walbus_publisher *walbus_publisher_free(struct walbus_publisher *publisher);

/**
 * From now on events are signed with this key, for the prefix that they are published under and
 * this audience: whoever gets them can tell that the key's holder made them, and that they were
 * not signed for another prefix or audience. A second key takes the place of the first; NULL takes
 * it away, and events are unsigned again.
 *
 * The envelope with the signature is the content: it counts against max_content. What is published
 * raw is never signed. The secret is kept in locked memory, which core dumps leave out, and wiped
 * when the publisher is freed or the key replaced. Signing adds some 100 bytes and 30 µs.
 *
 * path      a file with a private COSE_Key for Ed25519 (`walbus keygen`), which nobody but its owner
 *           has rights to (mode 0600), who is this process's user or root; read now and not kept
 *           open. NULL: no key
 * audience  what events are signed for besides their prefix, as the subscribers' trust files have it:
 *           so that what was signed for one system is not valid in another. At most 255 bytes of
 *           UTF-8, without control characters, blanks at its ends, and '#' or ';' behind a blank;
 *           NULL: ""
 *
 * WALBUS_OK
 * WALBUS_BAD_ARGUMENT  publisher is NULL; the audience is not as above
 * WALBUS_BAD_KEY       the file cannot be read, is not private, or holds no such key:
 *                      walbus_publisher_error()
 * WALBUS_NO_MEMORY     also when no more memory may be locked (RLIMIT_MEMLOCK)
 *
 * After a failure everything is as it was before the call.
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publisher_set_key(struct walbus_publisher *publisher, const char *path,
                         const char *audience);

/**
 * Why the last call with this publisher failed: one line for people, more
 * particular than walbus_result_text() (which of the events, which byte, the
 * server's own words); "" when it did not fail. Owned by the publisher, valid
 * until the next call with it; never NULL. The publisher must not be NULL.
 */
WALBUS_PUBLIC const char *walbus_publisher_error(const struct walbus_publisher *publisher);

/**
 * SQLSTATE of the server's error behind the last call ("40001"), "" when there
 * was none. Owned by the publisher, valid until the next call with it; never
 * NULL. The publisher must not be NULL.
 */
WALBUS_PUBLIC const char *walbus_publisher_sqlstate(const struct walbus_publisher *publisher);

/* ---- events ---- */

/** A further CloudEvents attribute. */
struct walbus_attribute {
    const char *name;  /* a-z and 0-9, at least one, not "data"; each once, so not one that is there
                          already: specversion, id, source, type, time */
    const char *value; /* UTF-8 */
};

enum walbus_data_kind {
    WALBUS_DATA_CBOR = 0, /* exactly one well-formed CBOR item, taken as it is */
    WALBUS_DATA_TEXT =
        1, /* UTF-8, which becomes one CBOR text string: JSON, for one, with content_type */
    WALBUS_DATA_BYTES = 2, /* any bytes, which become one CBOR byte string */
};

/**
 * An event, as CloudEvents 1.0 understands it. Begin with WALBUS_EVENT_INIT and
 * set what you need; only `prefix` is required. Everything is borrowed for the
 * time of the call.
 */
struct walbus_event {
    /** sizeof(struct walbus_event) as compiled; in an array all have the same. A larger one, of a
     *  later version, is taken when what is beyond is zero. */
    size_t size;
    /** The routing key. */
    const char *prefix;
    /** NULL: the prefix. */
    const char *type;
    /** NULL: the publisher's. */
    const char *source;
    /** NULL: a new UUIDv7. No control characters. Subscribers drop repeats by source and id, so an id of your own must be
     *  unique for its source. */
    const char *id;
    /** µs since 1970-01-01 UTC, in the years 1 to 9999; 0: now. */
    int64_t time_us;
    /** `subject`: what in the source it is about, an order's number. NULL: none. */
    const char *subject;
    /** `datacontenttype`: "application/json". NULL: none. */
    const char *content_type;
    /** Further attributes: dataschema, traceparent, partitionkey, your own. At most 64 attributes
     *  altogether. NULL when n_attributes is 0. */
    const struct walbus_attribute *attributes;
    size_t n_attributes;
    /** NULL: the event has no data. Not NULL with data_size 0: empty text or bytes. */
    const void *data;
    size_t data_size; /* bytes */
    enum walbus_data_kind data_kind;
};

#define WALBUS_EVENT_INIT                                                                     \
    {                                                                                         \
        sizeof(struct walbus_event), NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, 0, \
            WALBUS_DATA_CBOR                                                                  \
    }

/** UUID text and its NUL. */
#define WALBUS_ID_SIZE 37

/** What a published event got. This struct does not grow. */
struct walbus_receipt {
    /** The LSN that the server returned: the end of the message's WAL record. It does not rise in
     * the order of delivery; subscribers see it beside the message's position. */
    uint64_t lsn;
    /** The id that the library made, with its NUL; "" when the event brought its own. */
    char id[WALBUS_ID_SIZE];
};

/* ---- flags ---- */

/**
 * Deliver at once, whatever becomes of the surrounding transaction: also when it
 * rolls back. On PostgreSQL 17 and newer the server flushes its WAL before the
 * call returns; on older ones delivery waits for the server's next WAL flush, up
 * to some seconds inside an open transaction, and a crash of the server before
 * that loses the event.
 */
#define WALBUS_NON_TRANSACTIONAL 0x1u
/**
 * Refuse with WALBUS_NO_TRANSACTION outside a transaction block, where the
 * event would be committed at once and alone. For code that must not publish
 * without the change that it tells of. In pipeline mode the client cannot know
 * of a BEGIN still on its way: the check then passes as soon as any command is
 * under way. Not together with WALBUS_NON_TRANSACTIONAL (WALBUS_BAD_ARGUMENT).
 */
#define WALBUS_REQUIRE_TRANSACTION 0x2u
/** Allow a prefix whose first token begins with "_", other than _walbus.heartbeat. */
#define WALBUS_ALLOW_RESERVED 0x4u

/* ---- publishing, and waiting for the server's answer ---- */

/**
 * Publishes one event. One round trip.
 *
 * conn     the caller's connection, idle or in a transaction block, not in pipeline mode
 * event    see above; borrowed
 * flags    WALBUS_… from above, or 0
 * ret      gets LSN and id; may be NULL; written only on WALBUS_OK
 *
 * WALBUS_OK                  done; the event is delivered when the transaction commits
 * WALBUS_BAD_ARGUMENT        publisher, conn, event or its prefix is NULL; the event's size is too
 *                            small, or beyond any version's; it has members of a later version
 *                            that are not zero; data is NULL with a size; an unknown data_kind;
 *                            attributes is NULL with a number, or a name or value in it is NULL; a
 *                            time outside the years 1 to 9999; an unknown flag, or two that
 *                            exclude each other
 * WALBUS_NO_MEMORY           memory ran out
 * WALBUS_NOT_CONNECTED       conn is not open
 * WALBUS_BUSY                a command is in progress on conn, or its results are not read to the
 *                            end
 * WALBUS_PIPELINE            conn is in pipeline mode: use walbus_publish_send()
 * WALBUS_FAILED_TRANSACTION  an earlier statement of the transaction failed
 * WALBUS_NO_TRANSACTION      only with WALBUS_REQUIRE_TRANSACTION
 * WALBUS_BAD_PREFIX          against the rules at the top
 * WALBUS_BAD_EVENT           an attribute or the data is not valid, the id has a control character
 * WALBUS_TOO_LARGE           the encoded event is larger than max_content
 * WALBUS_NOT_PERMITTED       the role may not execute pg_logical_emit_message
 * WALBUS_SERVER              another error; walbus_publisher_sqlstate()
 * WALBUS_CONNECTION_LOST     the connection broke
 * WALBUS_BAD_RESULT          the answer was not understood: something else than PostgreSQL answers
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish(struct walbus_publisher *publisher, struct pg_conn *conn,
               const struct walbus_event *event, unsigned flags, struct walbus_receipt *ret);

/**
 * Publishes `n` events in one statement and one round trip, in the order of the
 * array; prefixes may differ. All or none: one that is not valid refuses all
 * before anything is sent, and walbus_publisher_error() says which. With n = 0
 * nothing is sent and the result is WALBUS_OK.
 *
 * ret      an array of n, or NULL; written only on WALBUS_OK
 *
 * Results as of walbus_publish(), and
 * WALBUS_BAD_ARGUMENT        also: events is NULL and n is not 0; the sizes of two events differ
 * WALBUS_BATCH_TOO_LARGE     all events together are more than about 1 GB, which is as much as one
 *                            statement carries: publish them in several calls
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish_many(struct walbus_publisher *publisher, struct pg_conn *conn,
                    const struct walbus_event *events, size_t n, unsigned flags,
                    struct walbus_receipt *ret);

/**
 * Publishes bytes as they are, without an envelope. Subscribers get them marked
 * as opaque, unless they are an event already encoded or signed.
 *
 * content  `size` bytes; may be NULL when size is 0
 * ret_lsn  as struct walbus_receipt's lsn; may be NULL; written only on WALBUS_OK
 *
 * Results as of walbus_publish(), without WALBUS_BAD_EVENT, and
 * WALBUS_BAD_ARGUMENT        publisher, conn or prefix is NULL; content is NULL and size is not 0;
 *                            an unknown flag, or two that exclude each other
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish_raw(struct walbus_publisher *publisher, struct pg_conn *conn, const char *prefix,
                   const void *content, size_t size, unsigned flags, uint64_t *ret_lsn);

/* ---- publishing in pipeline mode, or in an event loop ---- */

/**
 * Sends what walbus_publish_many() sends, and does not wait: for connections in
 * pipeline mode or non-blocking ones. The statement has been handed to libpq when
 * this returns WALBUS_OK; whether it worked, only its PGresult tells. n is at least 1.
 *
 * On a non-blocking connection a part of it may still be in libpq's buffer: call PQflush() until
 * it returns 0, waiting for the socket to be writable or readable in between, before you wait for
 * the result.
 *
 * ids      an array of n, gets the ids (each receipt's lsn becomes 0); may be NULL; written only
 *          on WALBUS_OK
 *
 * Without pipeline mode the connection must be idle or in a transaction block
 * with nothing in progress. A pipeline that is known to be aborted takes the statement,
 * and its result says WALBUS_FAILED_TRANSACTION.
 *
 * Each statement sent gives, in the order of sending, one PGresult to read and then NULL:
 *
 *     PQenterPipelineMode(conn);
 *     PQsendQueryParams(conn, "BEGIN", 0, NULL, NULL, NULL, NULL, 0);
 *     PQsendQueryParams(conn, "INSERT …", …);
 *     if (walbus_publish_send(publisher, conn, events, n, 0, NULL) != WALBUS_OK)
 *         …;                                     // nothing of it is queued: roll back
 *     PQsendQueryParams(conn, "COMMIT", 0, NULL, NULL, NULL, NULL, 0);
 *     PQpipelineSync(conn);
 *
 *     // BEGIN and INSERT: read their results, each with the NULL behind it; then
 *     PGresult *res = PQgetResult(conn);
 *     result = walbus_publish_read(publisher, res, lsns, n);
 *     PQclear(res);
 *     while ((res = PQgetResult(conn)))          // the NULL that ends this statement
 *         PQclear(res);
 *     // COMMIT: its result must be "COMMIT", not "ROLLBACK"; then PGRES_PIPELINE_SYNC
 *
 * Results as of walbus_publish_many(), without WALBUS_PIPELINE, WALBUS_NOT_PERMITTED,
 * WALBUS_SERVER and WALBUS_BAD_RESULT; n = 0 is WALBUS_BAD_ARGUMENT.
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish_send(struct walbus_publisher *publisher, struct pg_conn *conn,
                    const struct walbus_event *events, size_t n, unsigned flags,
                    struct walbus_receipt *ids);

/** walbus_publish_raw(), without waiting, as walbus_publish_send() has it. Its PGresult is read with
 *  n = 1. */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish_send_raw(struct walbus_publisher *publisher, struct pg_conn *conn,
                        const char *prefix, const void *content, size_t size, unsigned flags);

/**
 * Reads the result of a statement that walbus_publish_send() or
 * walbus_publish_send_raw() sent. `result` stays the caller's.
 *
 * ret_lsns  an array of n, in the order of the events; may be NULL; written only on WALBUS_OK
 * n         as many as were sent
 *
 * WALBUS_OK
 * WALBUS_BAD_ARGUMENT        publisher or result is NULL, n is 0
 * WALBUS_FAILED_TRANSACTION  the server skipped the statement because one before it failed
 * WALBUS_NOT_PERMITTED, WALBUS_SERVER, WALBUS_CONNECTION_LOST   as of walbus_publish()
 * WALBUS_BAD_RESULT          not the result of a publishing statement of n events
 */
WALBUS_PUBLIC WALBUS_MUST_CHECK enum walbus_result
walbus_publish_read(struct walbus_publisher *publisher, const struct pg_result *result,
                    uint64_t *ret_lsns, size_t n);

#ifdef __cplusplus
}
#endif

#endif
