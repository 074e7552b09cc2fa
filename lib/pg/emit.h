/* SPDX-License-Identifier: PostgreSQL */
#ifndef WALBUS_PG_EMIT_H
#define WALBUS_PG_EMIT_H

/*
 * The statements that emit logical messages: pg_logical_emit_message with
 * binary parameters of declared types, so that an untyped literal can never pick its text variant,
 * and with every name qualified, so that no search_path matters.
 *
 * Many messages go in one statement as arrays, one of prefixes and one of contents, in PostgreSQL's
 * binary form, unnested side by side in a subquery's select list. The rows of that come in the
 * order of the arrays, one at a time; unnest in FROM would first write all contents into a
 * tuplestore, and on disk beyond work_mem.
 *
 * From PostgreSQL 17 on a non-transactional message asks for a flush; of many
 * the last one does, which flushes everything before it: a third array says which.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/macros.h"

struct pg_conn;
struct pg_result;

/** Servers from here on take the argument `flush`. */
#define EMIT_FLUSH_SERVER 170000

/**
 * Most bytes of arguments of one statement. PostgreSQL takes messages of up to
 * 1 GB - 2 from a client (PQ_LARGE_MESSAGE_LIMIT) and builds values of up to
 * 1 GB - 1 (MaxAllocSize); the rest is room for heads and alignment.
 */
#define EMIT_STATEMENT_MAX ((size_t)1000000000)

/* ---- arrays in PostgreSQL's binary form ---- */

struct emit_array {
    struct buf buf;
    uint32_t n;  /* elements begun */
    size_t item; /* where the last element's bytes begin */
};

/** Begins a one-dimensional array without NULLs. Free buf with buf_deinit. */
void emit_array_init(struct emit_array *array, uint32_t element_oid);
/** Opens the next element; append its bytes to array->buf, then close it. */
void emit_array_open(struct emit_array *array);
/** 0, or -E2BIG when the element has more than EMIT_STATEMENT_MAX bytes. */
int emit_array_close(struct emit_array *array) MUST_CHECK;
/** Writes the number of elements into the head and returns the whole; at least one element. */
struct bytes emit_array_finish(struct emit_array *array);
/** What the array's elements take in the server's memory at most, aligned and each with its head; the
 *  array's own head may be some bytes longer there. */
size_t emit_array_server_size(const struct emit_array *array);

/* ---- statements ---- */

#define EMIT_PARAMS_MAX 4

struct emit_statement {
    const char *sql; /* static */
    int n;           /* parameters */
    unsigned types[EMIT_PARAMS_MAX];
    const char *values[EMIT_PARAMS_MAX]; /* borrowed */
    int lengths[EMIT_PARAMS_MAX];
    int formats[EMIT_PARAMS_MAX];
};

/** One message. The statement borrows prefix and content. 0; -E2BIG beyond EMIT_STATEMENT_MAX. */
int emit_one(struct emit_statement *ret, int server_version, bool transactional,
             struct bytes prefix, struct bytes content) MUST_CHECK;

/** Many messages; prefixes and contents are pairs. */
struct emit_batch {
    struct emit_array prefixes; /* text[] */
    struct emit_array contents; /* bytea[] */
    struct emit_array flushes;  /* boolean[]; emit_many's, where a flush is asked for */
};

void emit_batch_init(struct emit_batch *batch);
void emit_batch_deinit(struct emit_batch *batch);

/**
 * Adds a message in two steps, so that a content can be encoded in its place:
 * begin returns the buffer to append the content to, end closes it. End: 0;
 * -E2BIG when the batch is now beyond EMIT_STATEMENT_MAX; -ENOMEM.
 */
struct buf *emit_batch_begin(struct emit_batch *batch, struct bytes prefix);
int emit_batch_end(struct emit_batch *batch) MUST_CHECK;

/** The statement of all messages added, at least one; it borrows from the batch. One that asks for a
 *  flush is made once a batch. 0; -E2BIG; -ENOMEM. */
int emit_many(struct emit_statement *ret, int server_version, bool transactional,
              struct emit_batch *batch) MUST_CHECK;

/** Hands the statement to libpq and does not wait. False: PQerrorMessage. */
bool emit_send(struct pg_conn *conn, const struct emit_statement *statement) MUST_CHECK;
/** Executes it and waits. The result is the caller's, to be cleared; NULL: PQerrorMessage. */
struct pg_result *emit_exec(struct pg_conn *conn,
                            const struct emit_statement *statement) MUST_CHECK;

/** Reads the LSNs of n messages, in their order; `ret` may be NULL. 0; -EBADMSG when this is not
 * the successful result of such a statement with n messages. */
int emit_read(const struct pg_result *result, uint64_t *ret, size_t n) MUST_CHECK;

#endif
