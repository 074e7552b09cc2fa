/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_DAEMON_DECODE_H
#define WALBUS_DAEMON_DECODE_H

/*
 * What a walsender sends: the copy-both layer ('w' and 'k', PostgreSQL
 * documentation "Streaming Replication Protocol") and inside 'w' the messages
 * of pgoutput ("Logical Replication Message Formats"), protocol versions 1 to 4,
 * streamed and two-phase forms included. Bytes to structs; nothing is copied,
 * strings point into the input. Integers are big-endian, times come out as µs
 * since 1970-01-01 UTC.
 *
 * The one piece of state is whether the reader stands inside a stream block
 * ('S' to 'E'), because there the row and message forms carry an xid in front.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/macros.h"

#define DECODE_WHY_SIZE 160

enum copy_type { COPY_DATA = 'w', COPY_KEEPALIVE = 'k' };

/** One CopyData of the copy-both layer. The LSNs in a 'w' header are 0 on some writes: no positions. */
struct copy_frame {
    enum copy_type type;
    uint64_t wal_end;       /* keepalive: what the server has decoded and sent */
    bool reply_requested;   /* keepalive */
    struct bytes payload;   /* data: one pgoutput message */
};

/** 0, or -EBADMSG with what was found and needed in `why`. */
int decode_copy(struct bytes in, struct copy_frame *ret, char why[DECODE_WHY_SIZE]) MUST_CHECK;

enum pgoutput_type {
    PGOUTPUT_BEGIN = 'B',
    PGOUTPUT_COMMIT = 'C',
    PGOUTPUT_MESSAGE = 'M',
    PGOUTPUT_ORIGIN = 'O',
    PGOUTPUT_RELATION = 'R',
    PGOUTPUT_TYPE = 'Y',
    PGOUTPUT_INSERT = 'I',
    PGOUTPUT_UPDATE = 'U',
    PGOUTPUT_DELETE = 'D',
    PGOUTPUT_TRUNCATE = 'T',
    PGOUTPUT_STREAM_START = 'S',
    PGOUTPUT_STREAM_STOP = 'E',
    PGOUTPUT_STREAM_COMMIT = 'c',
    PGOUTPUT_STREAM_ABORT = 'A',
    PGOUTPUT_STREAM_PREPARE = 'p',
    PGOUTPUT_BEGIN_PREPARE = 'b',
    PGOUTPUT_PREPARE = 'P',
    PGOUTPUT_COMMIT_PREPARED = 'K',
    PGOUTPUT_ROLLBACK_PREPARED = 'r',
};

struct pgoutput {
    enum pgoutput_type type;
    bool streamed; /* stood inside a stream block; then xid is the top-level transaction's */
    uint32_t xid;  /* B, S, c, A, b P K r p; and inside a stream block M R Y I U D T */
    union {
        struct {
            uint64_t commit_lsn; /* start of the commit record */
            int64_t commit_time;
        } begin;
        struct { /* C and c; K (commit_lsn, end_lsn, time of the commit) */
            uint64_t commit_lsn, end_lsn;
            int64_t commit_time;
        } commit;
        struct {
            bool transactional;
            uint64_t lsn; /* end of the message's record */
            struct bytes prefix, content;
        } message;
        struct {
            bool first;
        } stream_start;
        struct {
            uint32_t subxid;
            bool has_lsn; /* protocol 4 with streaming = parallel */
            uint64_t lsn;
            int64_t time;
        } stream_abort;
        struct { /* b P p r; of r: prepare_lsn is the prepared transaction's end */
            uint64_t prepare_lsn, end_lsn;
            int64_t prepare_time, rollback_time; /* rollback_time of r only */
        } prepare;
    };
    struct bytes gid; /* b P K r p */
};

struct decoder {
    bool in_stream;
    uint32_t stream_xid;
};

/** A decoder for a new stream. */
#define DECODER_INIT ((struct decoder){0})

/**
 * One pgoutput message. Of the kinds that walbus skips (O R Y I U D T) the body
 * is not looked at beyond the xid of a stream block. 0, or -EBADMSG: unknown
 * type, too short, too long, a flag without meaning, a stream block in a stream
 * block; `why` says what was found, what was needed, and where. After an error
 * the decoder must not be used on.
 */
int decode_pgoutput(struct decoder *decoder, struct bytes in, struct pgoutput *ret,
                    char why[DECODE_WHY_SIZE]) MUST_CHECK;

#endif
